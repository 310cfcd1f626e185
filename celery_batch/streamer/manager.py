"""service-streamer's older way to run workers: the user's function makes and runs each."""

from __future__ import annotations

from celery_batch.errors import ConfigurationError
from celery_batch.streamer.process_supervisor import Job, keep_running

__all__ = ["GpuWorkerManager"]


class GpuWorkerManager:
    """Runs a subclass's `gpu_worker` in processes that are replaced when they die."""

    @staticmethod
    def gpu_worker(index: int, gpu_num: int) -> None:
        """
        Make a worker and run it; override this.

        Args:
            index: Which of the workers this is, from 0.
            gpu_num: Over how many GPUs the workers are to be spread.
        """
        raise NotImplementedError("a subclass must define gpu_worker(index, gpu_num)")

    def run_workers(self, worker_num: int = 8, gpu_num: int = 4) -> None:
        """
        Run worker processes until this one ends; those that die are replaced.

        A worker whose function returns is done; when all have returned, so does this.

        Args:
            worker_num: How many workers.
            gpu_num: Passed to each of them.

        Raises:
            ConfigurationError: ``worker_num`` is below 1, or the call is not guarded by
                ``if __name__ == "__main__"``.
            LoadFailed: A process could not start.
        """
        if worker_num < 1:
            raise ConfigurationError(f"worker_num: must be at least 1, got {worker_num!r}")
        jobs = [
            Job(f"worker {index}", self.gpu_worker, (index, gpu_num)) for index in range(worker_num)
        ]
        keep_running(jobs)
