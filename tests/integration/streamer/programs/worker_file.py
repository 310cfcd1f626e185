"""One worker with a model class."""

from tiny_model import ManagedBertModel

from celery_batch import RedisWorker

if __name__ == "__main__":
    worker = RedisWorker(ManagedBertModel, batch_size=64, max_latency=0.1)
    worker.run_forever(gpu_id=0)
