"""A worker whose batches are limited by cost."""

from celery_batch import RedisWorker
from tests.apps.models.streamer_models import Measure

if __name__ == "__main__":
    limits = {"max_batch_cost": 40, "padded": True}
    RedisWorker(Measure, 16, 0.5, prefix="cost", linger=0.1, **limits).run_forever()
