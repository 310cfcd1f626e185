"""Our RedisStreamer: service-streamer's interface on Celery workers."""

from __future__ import annotations

import os
import sys
from typing import Any

from bench.model import BATCH, MODELS
from bench.systems.system import TIMEOUT, System
from celery_batch.streamer import ManagedModel, RedisStreamer, run_redis_workers_forever

__all__ = ["OurRedis", "Reference"]


class Reference(ManagedModel):
    """The reference model that the environment names, in a process of its own."""

    def init_model(self) -> None:
        """Have nothing to load."""

    def predict(self, batch: list[int]) -> list[int]:
        """Answer as every model here."""
        return MODELS[os.environ["BENCH_MODEL"]](batch)


class OurRedis(System):
    """One request of many items is one write; workers are a program of their own."""

    def start(self) -> None:
        """Start the workers; each shows that it is there."""
        os.environ["BENCH_MODEL"] = self.model
        self.serve(sys.executable, "-m", "bench.systems.our_redis", self.url, str(self.workers))
        self.streamer = RedisStreamer(self.url, worker_timeout=TIMEOUT)
        self.streamer.predict([0])
        ping = self.streamer.app.control.ping
        while len(ping(timeout=1.0, limit=self.workers)) < self.workers:
            pass

    def submit_one(self, item: int) -> Any:
        """Submit a request of one."""
        return self.streamer.submit([item])

    def submit(self, items: range) -> list[Any]:
        """Submit one request of all items, each of which is a task."""
        return [self.streamer.submit(items)]

    def collect(self, waiting: list[Any]) -> list[int]:
        """Wait for each request."""
        return [output for future in waiting for output in future.result(TIMEOUT)]


if __name__ == "__main__":
    run_redis_workers_forever(
        Reference, BATCH, 0.1, worker_num=int(sys.argv[2]), redis_broker=sys.argv[1]
    )
