"""
The workers of the web server in infill_redis.py, until Ctrl-C.

    python -m examples.infill_redis_workers
    python -m examples.infill_redis_workers 4        # four processes

On a machine with GPUs the processes share them: give main() cuda_devices=(0, 1).
"""

from __future__ import annotations

import sys

from celery_batch import Model
from celery_batch.streamer import run_redis_workers_forever
from examples.infill_redis import PREFIX, REDIS
from workers.models.infilling import TextInfilling

__all__ = ["main"]


def main(
    model: type[Model] = TextInfilling,
    worker_num: int = 2,
    cuda_devices: tuple[int, ...] | None = None,
) -> None:
    """
    Start workers, replace those that die, and end them all when this ends.

    Args:
        model: What answers.
        worker_num: How many processes hold a model.
        cuda_devices: The GPUs that they share, by number.
    """
    run_redis_workers_forever(
        model,
        batch_size=64,
        max_latency=0.1,
        worker_num=worker_num,
        cuda_devices=cuda_devices,
        redis_broker=REDIS,
        prefix=PREFIX,
    )


if __name__ == "__main__":
    main(worker_num=int(sys.argv[1]) if sys.argv[1:] else 2)
