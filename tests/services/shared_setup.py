"""Apps with a worker that goes on while many tests use it, for each broker and pool."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any, Self
from uuid import uuid4

import psutil
from celery import _state
from kombu import pools

from celery_batch.processes.managed_process import wait_until
from celery_batch.processes.redis_server import RedisServer
from tests.services.setup import Setup, Worker, enter_setup, environment_of, surroundings

#: Seconds that anything may take on a slow machine.
SOON = 60.0


def eventually(ready: Callable[[], Any], what: str, timeout: float = SOON) -> Any:
    """Ask until there is a true answer; return it."""
    answers: list[Any] = []

    def why_not() -> str:
        answers.append(ready())
        return "" if answers[-1] else f"got {answers[-1]!r}"

    wait_until(why_not, [], what=what, timeout=timeout)
    return answers[-1]


def batch_info(result: Any) -> Any:
    """Return the facts of a result's batch, which may come a moment after a poll has found it."""
    return eventually(lambda: result.batch_info, "the facts of a batch")


@dataclass
class SharedSetup:
    """
    An app on one broker, with a worker that the tests share.

    Args:
        setup: The app's client side.
        broker: The broker's name in the tests' ids.
        pool: The pool's name.
    """

    setup: Setup
    broker: str
    pool: str
    _worker: Worker | None = None
    _names = count(1)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.setup, name)

    @property
    def worker(self) -> Worker:
        """The shared worker, with one process, started again if a test has ended it."""
        if self._worker is None or self._worker.child.exit_code is not None:
            self._worker = self.setup.worker("-P", self.pool, "-c", "1")
        return self._worker

    @contextmanager
    def another(
        self, *options: str, queue: str, conf: dict[str, Any] | None = None, **env: str
    ) -> Iterator[Worker]:
        """Have one more worker, of a queue of its own, while the context lasts."""
        worker = self.setup.worker("-P", self.pool, "-Q", queue, *options, conf=conf, **env)
        try:
            yield worker
        finally:
            worker.stop(grace=10)

    def ask_to_stop(self) -> None:
        """Have the shared worker begin to end; `close` waits for it."""
        if self._worker is not None and self._worker.child.exit_code is None:
            with suppress(ValueError, psutil.NoSuchProcess):  # it has ended just now
                psutil.Process(self._worker.pid).terminate()

    def unique(self, prefix: str) -> str:
        """Return a name that no other test has used."""
        return f"{prefix}-{next(self._names)}"

    def items(self, kind: str) -> list[Any]:
        """Return what a task's model has seen, batch after batch, in one list."""
        return [item for fact in self.recall(kind) for item in fact["items"]]

    def batches(self, kind: str) -> list[list[Any]]:
        """Return the batches that a task's model has seen."""
        return [fact["items"] for fact in self.recall(kind)]

    def close_gate(self) -> str:
        """Keep the worker's process busy; return the gate's name for `open_gate`."""
        gate = self.unique("gate")
        self.hold.delay(gate)
        self.wait_at(gate)
        return gate

    def wait_at(self, gate: str) -> None:
        """Return when a model waits at a gate."""
        waiting = lambda: gate in [fact["name"] for fact in self.recall("gate")]  # noqa: E731
        eventually(waiting, f"somebody at {gate}")

    def open_gate(self, gate: str) -> None:
        """Let the model at a gate, and all that come later, go on."""
        with self.memory() as client:
            client.set(f"shop:open:{gate}", "open")

    def wait_for_buffered(self, task: str, number: int) -> None:
        """Return when so many requests of a task wait in the worker for a batch."""
        waiting = lambda: number <= self.worker.status()[task].get("waiting", 0)  # noqa: E731
        eventually(waiting, f"{number} requests of {task} in line")

    def send_later(self, task: Any) -> tuple[Any, dict[str, Any]]:
        """Send a call whose argument is its countdown; return how it waits, long before its end."""
        inspect = self.app.control.inspect([self.worker.name], timeout=60.0, limit=1)
        for seconds in (2, 10, 50):  # on a busy machine the first may be over too soon
            end = time.monotonic() + seconds / 4
            result = task.apply_async((seconds,), countdown=seconds)
            while (scheduled := inspect.scheduled()) and time.monotonic() < end:
                for each in scheduled[self.worker.name]:
                    if each["request"]["id"] == result.id:
                        return result, each
        raise AssertionError("no call was seen waiting for its time")

    def send_to_expire(
        self, send: Callable[[datetime], Any], task: str, waiting: int
    ) -> tuple[Any, datetime]:
        """Send a call that expires in line, as the last of so many; return when, too."""
        for seconds in (2, 10, 30):  # on a busy machine it may expire before it is seen there
            end = datetime.now(UTC) + timedelta(seconds=seconds)
            result = send(end)
            while datetime.now(UTC) < end:
                if self.worker.status()[task].get("waiting", 0) >= waiting:
                    return result, end
        raise AssertionError("no call was seen waiting before it expired")

    def wait_for_nobody(self) -> None:
        """Return when the worker holds no request, not even a revoked one that waits its time."""
        inspect = self.app.control.inspect([self.worker.name], timeout=60.0, limit=1)
        nobody = {self.worker.name: []}
        eventually(
            lambda: inspect.scheduled() == inspect.reserved() == nobody, "a worker that is idle"
        )

    def wait_for_batches(self, task: str) -> None:
        """Return when the worker has heard of the end of all batches of a task."""
        ended = lambda: not self.worker.status()[task]["running"]  # noqa: E731
        eventually(ended, f"the end of the batches of {task}")

    def get(self, results: Iterable[Any]) -> list[Any]:
        """Return the values or errors of results, in order, when all are there."""
        return [result.get(timeout=SOON, propagate=False) for result in results]


class SharedSetups:
    """
    The setups of one broker so far, each made when it is asked for first.

    Args:
        broker: The broker's name in the tests' ids.
        url: The broker's URL.
        redis: A Redis that no test makes empty, for results and memories.
        folder: For the workers' logs.
        module: The app's module.
    """

    def __init__(self, broker: str, url: str, redis: RedisServer, folder: Path, module: str):
        self._made: dict[str, SharedSetup] = {}
        self._broker, self._url, self._redis, self._folder = broker, url, redis, folder
        self._module = module

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        """Stop the workers, all at once, and the clients."""
        for shared in self._made.values():
            shared.ask_to_stop()
        for shared in self._made.values():
            shared.close()
        pools.reset()

    def find(self, pool: str = "prefork") -> SharedSetup:
        """Return the place with a worker of this pool."""
        if pool not in self._made:
            # Other modules of this process have workers on the same server.
            queue = f"lasting-{pool}-{uuid4().hex}"
            environment = environment_of(self._url, backend=self._redis.url, queue=queue)
            folder = self._folder / pool
            folder.mkdir()
            with surroundings(environment):
                setup = enter_setup(environment, folder, self._module)
            self._made[pool] = SharedSetup(setup, self._broker, pool)
        return self._made[pool]


@contextmanager
def entered(shared: SharedSetup) -> Iterator[SharedSetup]:
    """Have this process be a client of the place's app, whose tasks remember nothing yet."""
    before = _state._tls.current_app
    with surroundings(shared.environment):
        shared.app.set_current()
        if shared.app.amqp.producer_pool._closed:  # another test's client has closed all of them
            shared.app._after_fork()
        with shared.memory() as client:
            if facts := client.keys("shop:*"):
                client.delete(*facts)
        assert shared.worker.child.exit_code is None
        yield shared
    _state._set_current_app(before)
