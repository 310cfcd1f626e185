"""Who loads models anew on a worker's behalf: its pool processes, or a thread of its own."""

from __future__ import annotations

import json
import os
import socket
import threading
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

from celery_batch.worker.renewing import address_of, carry_out

__all__ = ["Here", "InPool", "hands_for"]

#: What became of a step, by process: what went wrong, or None.
Answers = dict[int, str | None]

#: Of steps; one that took too long may be answered while the next order is carried out.
_numbers = count(1)


class InPool:
    """
    The pool processes, each of which has the model.

    Args:
        pool: Celery's prefork pool.
        folder: Where the sockets are.
    """

    def __init__(self, pool: Any, folder: Path) -> None:
        self._pool = pool
        self._address = str(folder / "orders")
        self._channel = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._channel.bind(self._address)
        self._channel.settimeout(0)
        self._order: dict[str, Any] = {}
        self._unsent: set[int] = set()
        self._silent: set[int] = set()
        self._answers: Answers = {}

    def begin(self, task_name: str, step: str) -> None:
        """Have every process that there is now do one step."""
        to = {"number": next(_numbers), "answer_to": self._address}
        self._order = {"task": task_name, "step": step, **to}
        self._silent, self._answers = self._pids(), {}
        self._unsent = set(self._silent)

    def answers(self) -> Answers | None:
        """Return what became of the step; None while some process is at it."""
        self._send()
        self._hear()
        there = self._pids()
        # Who is gone has been replaced, and who came in its place has loaded what there is now.
        self._silent &= there
        return None if self._silent else self._answers

    @property
    def at_it(self) -> int:
        """How many processes have not answered."""
        return len(self._silent)

    def close(self) -> None:
        """Let go of the socket."""
        self._channel.close()
        with suppress(OSError):
            Path(self._address).unlink()

    def _pids(self) -> set[int]:
        processes = list(self._pool._pool._pool)  # noqa: SLF001 (billiard has no public list)
        return {process.pid for process in processes if process.exitcode is None}

    def _send(self) -> None:
        for pid in list(self._unsent):
            with suppress(OSError):  # one that is loading as any new process listens before long
                order = json.dumps(self._order).encode()
                self._channel.sendto(order, address_of(pid, self._address))
                self._unsent.discard(pid)

    def _hear(self) -> None:
        with suppress(BlockingIOError):
            while True:
                answer = json.loads(self._channel.recv(1 << 16))
                if answer["number"] == self._order["number"]:
                    self._answers[answer["pid"]] = answer["error"]
                    self._silent.discard(answer["pid"])


class Here:
    """
    A thread beside the batches, where these run in the worker's main process.

    Args:
        app: The Celery app.
    """

    def __init__(self, app: Any) -> None:
        self._app = app
        self._thread: threading.Thread | None = None
        self._error: str | None = None

    def begin(self, task_name: str, step: str) -> None:
        """Do one step."""
        self._error = None

        def work() -> None:
            self._error = carry_out(self._app, task_name, step)

        self._thread = threading.Thread(target=work, name="batch-orders", daemon=True)
        self._thread.start()

    def answers(self) -> Answers | None:
        """Return what became of the step; None while it is done."""
        return None if self.at_it else {os.getpid(): self._error}

    @property
    def at_it(self) -> int:
        """How many processes have not answered."""
        return int(self._thread is not None and self._thread.is_alive())

    def close(self) -> None:
        """Nothing is to be let go of."""


def hands_for(consumer: Any) -> InPool | Here:
    """
    Return who loads models anew for a consumer.

    Args:
        consumer: Celery's.
    """
    warm_up = getattr(consumer.controller, "batch_warm_up", None)
    return InPool(consumer.pool, warm_up.folder) if warm_up is not None else Here(consumer.app)
