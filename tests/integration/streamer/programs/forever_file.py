"""Workers of one prefix, kept running."""

from multiprocessing import freeze_support

from tiny_model import ManagedBertModel

from celery_batch import run_redis_workers_forever

if __name__ == "__main__":
    freeze_support()
    run_redis_workers_forever(ManagedBertModel, 64, prefix="channel_1")
