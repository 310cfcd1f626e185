"""Workers that the program's own function makes, as it was done first."""

import os

from celery_batch import GpuWorkerManager, StreamWorker


class BertManager(GpuWorkerManager):
    """Runs a model in each process."""

    @staticmethod
    def gpu_worker(index, gpu_num):
        """Make a worker on its GPU, and run it."""
        os.environ["CUDA_VISIBLE_DEVICES"] = str(index % gpu_num)
        from tiny_model import TextInfillingModel  # noqa: PLC0415 (after the choice of a GPU)

        model = TextInfillingModel()
        worker = StreamWorker(model.predict, 64, max_latency=0.1)
        worker.run()


if __name__ == "__main__":
    manager = BertManager()
    manager.run_workers(worker_num=2, gpu_num=2)
