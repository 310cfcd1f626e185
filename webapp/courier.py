"""The way of the inputs to the workers, and of the outcomes back."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from celery import Celery, Task
from kombu.exceptions import LimitExceeded, OperationalError
from redis.exceptions import RedisError

from webapp.errors import RETRY_AFTER, BrokerUnreachable, DeadlineExceeded, NoWorker, Refused
from webapp.inbox import Inbox, Wait
from webapp.outcomes import Outcome, outcome_of
from webapp.readiness import LISTEN, Census, Prober

__all__ = ["Courier"]

log = logging.getLogger(__name__)

#: What Celery, kombu and redis-py raise when a server is away; RuntimeError is what
#: Celery's result consumer makes of having tried in vain to connect again.
_UNREACHABLE = (OperationalError, RedisError, RuntimeError, OSError)


class Courier:
    """
    Sends inputs as tasks, one each, and waits for all of them with one deadline.

    Args:
        app: A Celery app made ready by `webapp.settings.prepare`.
        prober: Asked, when an answer is late, whether anybody is there to give it.
    """

    def __init__(self, app: Celery, prober: Prober) -> None:
        self._app = app
        self._inbox = Inbox(app)
        self._prober = prober
        self._turn = threading.Lock()
        self._unreachable_until = 0.0

    def outcomes(self, task: Task, inputs: Sequence[str], timeout: float) -> list[Outcome]:
        """
        Return what became of each input, in order.

        Args:
            task: Called once for each input.
            inputs: Its arguments.
            timeout: Seconds, sending included.  What has not reached the model by then
                never will.

        Raises:
            Refused: The broker cannot be reached, or not every task ended in time.
        """
        deadline = time.monotonic() + timeout
        wait = Wait(self._app, len(inputs))
        try:
            self._subscribe(wait, deadline)
            self._send(task, inputs, wait, deadline)
            # Workers need a moment to be heard: time to ask them before it is too late.
            if not wait.until(deadline - min(LISTEN, timeout / 2)):
                probe = self._prober.start()
                if not wait.until(deadline):
                    raise _late(probe.census([task.name], within=0), task.name, wait, timeout)
            return [outcome_of(result) for result in wait.results]
        finally:
            self._inbox.drop(wait)

    def _subscribe(self, wait: Wait, deadline: float) -> None:
        # Celery takes turns here too, but its lock cannot be given up: with Redis away,
        # each thread in turn would try for seconds.
        if not self._turn.acquire(timeout=_left(deadline)):
            raise BrokerUnreachable("the result store is too slow")
        try:
            with self._refusing_when_unreachable():
                self._inbox.expect(wait)
        finally:
            self._turn.release()

    def _send(self, task: Task, inputs: Sequence[str], wait: Wait, deadline: float) -> None:
        with (
            self._refusing_when_unreachable(),
            self._app.producer_pool.acquire(block=True, timeout=_left(deadline)) as producer,
            # Once more, inside: who waits for this producer must see that it failed.
            self._refusing_when_unreachable(),
        ):
            for result, value in zip(wait.results, inputs, strict=True):
                if not (left := _left(deadline)):
                    raise BrokerUnreachable("the broker is too slow to take the inputs")
                task.apply_async((value,), task_id=result.id, producer=producer, expires=left)

    @contextmanager
    def _refusing_when_unreachable(self) -> Iterator[None]:
        """Try to reach the servers; for a moment after a failure, do not even try."""
        if time.monotonic() < self._unreachable_until:
            raise BrokerUnreachable("the broker could not be reached a moment ago")
        try:
            yield
        except LimitExceeded:
            # Others hold the connections; whether in vain, they will find out.
            raise BrokerUnreachable("the broker is too slow to take the inputs") from None
        except _UNREACHABLE as error:
            log.warning("the broker or the result store cannot be reached: %r", error)
            self._unreachable_until = time.monotonic() + RETRY_AFTER
            raise BrokerUnreachable("the broker cannot be reached") from error


def _left(deadline: float) -> float:
    return max(0.0, deadline - time.monotonic())


def _late(census: Census, task: str, wait: Wait, timeout: float) -> Refused:
    """Return why there is no answer: nobody to give it, or not in time."""
    if not census.reached:
        return BrokerUnreachable("the broker has stopped answering")
    if census.cold([task]):
        return NoWorker(f"no worker with a warm model answers for {task}")
    missing, count = len(wait.missing), len(wait.results)
    return DeadlineExceeded(f"{missing} of {count} inputs had no answer within {timeout:g} s")
