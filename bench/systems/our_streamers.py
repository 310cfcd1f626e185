"""Players on our streamers: threads, processes and Redis, as their ancestor's are asked."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from bench.models.reference import BATCH, MODELS
from bench.servers.workers_ready import wait_for_workers
from bench.systems.system import LATENCY, TIMEOUT, Streaming
from celery_batch.streamer import (
    ManagedModel,
    RedisStreamer,
    Streamer,
    ThreadedStreamer,
    run_redis_workers_forever,
)

__all__ = ["OnOurProcesses", "OnOurRedis", "OnOurThreads", "Reference"]


class Reference(ManagedModel):
    """The reference model of a name, in a process of its own."""

    def init_model(self, *args: Any, **_: Any) -> None:
        """Take the model by its name."""
        self.model = MODELS[args[0]]

    def predict(self, batch: list[int]) -> Sequence[int]:
        """Answer as every model here."""
        answers: list[int] = self.model(batch)
        return answers


class OnOurThreads(Streaming):
    """ThreadedStreamer: a thread of one process."""

    def make(self) -> ThreadedStreamer:
        """Return the streamer; it has one worker and no more."""
        made = ThreadedStreamer(MODELS[self.model], BATCH, LATENCY)
        return self.exits.enter_context(made)


class OnOurProcesses(Streaming):
    """Streamer: processes of one machine."""

    def make(self) -> Streamer:
        """Return the streamer, its workers ready."""
        made = Streamer(Reference, BATCH, LATENCY, self.workers,
                        model_init_args=[self.model], wait_for_worker_ready=True)  # fmt: skip
        return self.exits.enter_context(made)


class OnOurRedis(Streaming):
    """RedisStreamer: Celery workers, which are a program of their own."""

    def make(self) -> RedisStreamer:
        """Return the streamer once all workers have answered."""
        options = (self.url, str(self.workers), self.model)
        self.serve(sys.executable, "-m", "bench.systems.our_streamers", *options)
        made = RedisStreamer(self.url, worker_timeout=TIMEOUT)
        wait_for_workers(made.app, self.workers, self.servers)
        return made

    def submit(self, items: range) -> list[Any]:
        """Submit one request of all items, each of which is a task."""
        return [self.streamer.submit(items)]


if __name__ == "__main__":
    url, workers, model = sys.argv[1:]
    run_redis_workers_forever(
        Reference, BATCH, LATENCY, int(workers), redis_broker=url, model_init_args=[model]
    )
