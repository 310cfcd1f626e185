"""A worker that says how many went through its slow model together."""

import time

from celery_batch import RedisWorker
from tests.apps.memory import remember


def count(batch):
    """Answer each item with the number of those in its batch, slowly."""
    remember("counted", rows=len(batch))
    time.sleep(0.4)
    return [len(batch)] * len(batch)


if __name__ == "__main__":
    RedisWorker(count, 16, 12.0, prefix="counting", linger=4.0).run_forever()
