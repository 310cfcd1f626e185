"""The workers of RedisStreamer, a program that is told HOST:PORT and COUNT."""

from __future__ import annotations

import os
import sys

from service_streamer import run_redis_workers_forever

from bench.systems.streamers import Reference, meet

# The processes that it spawns import this module again, and need the same way to Redis.
meet(os.environ["BENCH_REDIS"])

if __name__ == "__main__":
    run_redis_workers_forever(
        Reference, 64, 0.1, worker_num=int(sys.argv[2]), redis_broker=sys.argv[1]
    )
