"""Players on our streamers of one machine: threads and processes, as their ancestor's are asked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bench.model import BATCH, MODELS
from bench.systems.system import TIMEOUT, System
from celery_batch.streamer import ManagedModel, Streamer, ThreadedStreamer

__all__ = ["OnOurProcesses", "OnOurThreads"]

_LATENCY = 0.1


class Reference(ManagedModel):
    """The reference model of a name, in a process of its own."""

    def init_model(self, *args: Any, **_: Any) -> None:
        """Take the model by its name."""
        self.model = MODELS[args[0]]

    def predict(self, batch: list[int]) -> Sequence[int]:
        """Answer as every model here."""
        answers: list[int] = self.model(batch)
        return answers


class _Streaming(System):
    streamer: ThreadedStreamer | Streamer

    def start(self) -> None:
        """Start the workers; the first answer says that they are there."""
        self.streamer = self.make()
        self.exits.callback(self.streamer.destroy_workers)
        self.collect(self.submit(range(BATCH)))

    def make(self) -> ThreadedStreamer | Streamer:
        """Return the streamer."""
        raise NotImplementedError

    def submit_one(self, item: int) -> Any:
        """Submit a batch of one."""
        return self.streamer.submit([item])

    def collect(self, waiting: list[Any]) -> list[int]:
        """Wait for each future."""
        return [future.result(TIMEOUT)[0] for future in waiting]


class OnOurThreads(_Streaming):
    """ThreadedStreamer: a thread of one process."""

    def make(self) -> ThreadedStreamer:
        """Return the streamer; it has one worker and no more."""
        return ThreadedStreamer(MODELS[self.model], BATCH, _LATENCY)


class OnOurProcesses(_Streaming):
    """Streamer: processes of one machine."""

    def make(self) -> Streamer:
        """Return the streamer, its workers ready."""
        return Streamer(Reference, BATCH, _LATENCY, self.workers,
                        model_init_args=[self.model], wait_for_worker_ready=True)  # fmt: skip
