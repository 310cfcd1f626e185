"""Workers that get remote control commands, and the commands."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kombu import pools

from celery_batch.processes.managed_process import wait_until
from tests.services.setup import Setup, Worker

__all__ = ["LONG", "RemoteControl"]

#: Seconds in which anything happens even on a busy machine.
LONG = 60.0


class RemoteControl:
    """
    Workers that get remote control commands.

    Args:
        setup: The tests' app `controlled`.
        weights: The file that its model is loaded from.
    """

    def __init__(self, setup: Setup, weights: Path) -> None:
        self.setup, self.weights = setup, weights

    def worker(self, *options: str, **env: str) -> Worker:
        """Start a worker of all queues and return when it takes tasks."""
        options = options or ("-c", "1")
        return self.setup.worker(
            "-Q", self.setup.QUEUES, *options, CONTROLLED_WEIGHTS=str(self.weights), **env
        )

    @contextmanager
    def at_work(self, weights: str, *options: str) -> Iterator[Worker]:
        """Run a worker with some weights in this block."""
        self.weights.write_text(weights)
        worker = self.worker(*options)
        try:
            yield worker
        finally:
            worker.stop()

    @property
    def folder(self) -> Path:
        """The folder of the weights."""
        return self.weights.parent

    def send(self, worker: Worker, command: str, **arguments: Any) -> dict[str, Any]:
        """Send a worker a command and return its reply."""
        return worker.ask(command, **arguments)

    def run(self, worker: Worker, command: str, **arguments: Any) -> Any:
        """Send a command that succeeds, and return the new state."""
        reply = self.send(worker, command, **arguments)

        assert ["ok"] == list(reply), reply
        return reply["ok"]

    def depth(self, queue: str) -> int:
        """Return how many messages wait in the broker for a worker to read them."""
        with self.setup.app.connection_for_write() as connection:
            try:
                found = connection.default_channel.queue_declare(queue, passive=True)
            except connection.channel_errors:  # Redis drops a list that is empty
                return 0
            return int(found.message_count)

    def open(self, *gates: str) -> None:
        """Let the batches go on that wait at these gates."""
        with self.setup.memory() as client:
            client.mset({f"shop:open:{gate}": "yes" for gate in gates})

    def reconnect(self) -> None:
        """Have this process use new connections, as all were cut."""
        app = self.setup.app
        app.pool.force_close_all()
        app._pool = app.amqp._producer_pool = None  # as Celery does after a fork
        pools.reset()

    def until(self, worker: Worker, what: str, is_so: Callable[[], object]) -> None:
        """Return when something is so."""
        wait_until(lambda: "" if is_so() else "not yet", [worker.child], what=what, timeout=LONG)
