"""Players on service-streamer: its threads, its processes, its Redis."""

from __future__ import annotations

import logging
import os
import sys
from typing import Any
from urllib.parse import unquote, urlsplit

import redis
from service_streamer import (
    ManagedModel,
    RedisStreamer,
    Streamer,
    ThreadedStreamer,
    service_streamer,
)

from bench.models.reference import BATCH, MODELS
from bench.systems.system import LATENCY, Streaming

__all__ = ["OnProcesses", "OnRedis", "OnThreads", "Reference", "address", "meet"]

service_streamer.logger.setLevel(logging.WARNING)


class Reference(ManagedModel):  # type: ignore[misc]
    """The reference model that the environment names, in a process of its own."""

    def init_model(self) -> None:
        """Have nothing to load."""
        meet(os.environ["BENCH_REDIS"])

    def predict(self, batch: list[int]) -> list[int]:
        """Answer as every model here."""
        return MODELS[os.environ["BENCH_MODEL"]](batch)


def meet(url: str) -> None:
    """Give its Redis connections our password and database; it knows only host and port."""
    place = urlsplit(url)
    database = int(place.path.strip("/"))
    login: dict[str, Any] = {"password": unquote(place.password or ""), "db": database}
    service_streamer.Redis = lambda host, port: redis.Redis(host, port, **login)


def address(url: str) -> str:
    """Return the host and port in a URL, as it wants them."""
    place = urlsplit(url)
    return f"{place.hostname}:{place.port}"


class _Theirs(Streaming):
    def start(self) -> None:
        """Start the workers, which read the environment."""
        os.environ.update(BENCH_MODEL=self.model, BENCH_REDIS=self.url)
        super().start()

    def submit(self, items: range) -> list[Any]:
        """Submit one request of all items, which it splits into single ones."""
        return [self.streamer.submit(list(items))]


class OnThreads(_Theirs):
    """ThreadedStreamer: queues in one process."""

    def make(self) -> Any:
        """Return the streamer; it has one worker and no more."""
        return ThreadedStreamer(MODELS[self.model], BATCH, LATENCY)


class OnProcesses(_Theirs):
    """Streamer: queues between the processes of one machine."""

    def make(self) -> Any:
        """Return the streamer, its workers ready."""
        made = Streamer(Reference, BATCH, LATENCY, worker_num=self.workers)
        made._wait_for_worker_ready()  # noqa: SLF001 - as its own documentation does
        return made


class OnRedis(_Theirs):
    """RedisStreamer: single items over Redis, from any machine to any."""

    def make(self) -> Any:
        """Return the client; its workers are a program of their own."""
        meet(self.url)
        workers = str(self.workers)
        place = address(self.url)
        self.serve(sys.executable, "-m", "bench.systems.redis_streamer_worker", place, workers)
        return RedisStreamer(place)
