"""Players on our streamers; as a program, the workers of RedisStreamer: URL and COUNT."""

from __future__ import annotations

import os
import sys
from typing import Any

from bench.model import BATCH, MODELS
from bench.players.player import TIMEOUT, Player
from bench.roll_call import call_the_roll
from celery_batch import Model
from celery_batch.streamer import RedisStreamer, Streamer, run_redis_workers_forever

__all__ = ["OnProcesses", "OnRedis", "Reference"]

_LATENCY = 0.1


class Reference(Model):
    """The reference model that the environment names."""

    def predict(self, batch: list[int]) -> list[int]:
        """Answer as every model here."""
        return MODELS[os.environ["BENCH_MODEL"]](batch)


class _Streaming(Player):
    streamer: Any

    def start(self) -> None:
        """Start the workers; the first answers say that they are there."""
        os.environ["BENCH_MODEL"] = self.model
        self.streamer = self.make()
        self.collect(self.submit(range(BATCH * self.workers)))

    def make(self) -> Any:
        """Return the streamer."""
        raise NotImplementedError

    def submit_one(self, item: int) -> Any:
        """Submit a batch of one."""
        return self.streamer.submit([item])

    def collect(self, waiting: list[Any]) -> list[int]:
        """Wait for each future."""
        return [future.result(TIMEOUT)[0] for future in waiting]


class OnProcesses(_Streaming):
    """Streamer: processes of one machine."""

    def make(self) -> Any:
        """Return the streamer, its workers ready."""
        return Streamer(
            Reference, BATCH, _LATENCY, worker_num=self.workers, wait_for_worker_ready=True
        )

    def stop(self) -> None:
        """Stop the workers."""
        self.streamer.destroy_workers()
        super().stop()


class OnRedis(_Streaming):
    """RedisStreamer: Celery workers on any machine."""

    def make(self) -> Any:
        """Return the client; its workers are a program of their own."""
        self.serve(sys.executable, "-m", __name__, self.url, str(self.workers))
        streamer = RedisStreamer(self.url, prefix="bench")
        call_the_roll(streamer.app, self.workers, self.servers)
        return streamer


if __name__ == "__main__":
    from bench.players.own_streamers import Reference as Known  # as the workers import it

    run_redis_workers_forever(
        Known,
        BATCH,
        _LATENCY,
        worker_num=int(sys.argv[2]),
        redis_broker=sys.argv[1],
        prefix="bench",
    )
