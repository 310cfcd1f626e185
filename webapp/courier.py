"""The way of the inputs to the workers, and of the outcomes back."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from celery import Celery, Task
from kombu.exceptions import OperationalError
from redis.exceptions import RedisError

from celery_batch.client.publisher import Publisher
from celery_batch.client.revokes import revoke_soon
from celery_batch.client.round_trip import Limits
from celery_batch.errors import QueueFull
from webapp import request_id
from webapp.deadlines import Deadline
from webapp.errors import (
    RETRY_AFTER,
    BrokerUnreachable,
    ClientGone,
    DeadlineExceeded,
    Overloaded,
    TooLarge,
)
from webapp.inputs import Question
from webapp.lateness import listens, why_late
from webapp.meters import Meters
from webapp.outcomes import Outcome, outcome_of
from webapp.readiness import Prober
from webapp.routes import Visit
from webapp.settings import Settings
from webapp.sharing import SLACK, Sharing, key_of
from webapp.trip import Trip
from webapp.ways import Way

__all__ = ["Courier", "Unfinished"]

log = logging.getLogger(__name__)

#: What Celery, kombu and redis-py raise when a server is away; RuntimeError is what
#: Celery's result consumer makes of having tried in vain to connect again.
_UNREACHABLE = (OperationalError, RedisError, RuntimeError, OSError)

#: Seconds in which any broker that is well takes a message.
_SLOW = 1.0


class Unfinished(Exception):
    """
    The time is over, and the tasks go on.

    Args:
        ids: Theirs.
    """

    def __init__(self, ids: list[str]) -> None:
        super().__init__(f"{len(ids)} tasks go on")
        self.ids = ids


class Courier:
    """
    Sends inputs as tasks, one each, and waits for all of them with one deadline.

    Args:
        app: A Celery app made ready by `webapp.settings.prepare`.
        prober: Asked, when an answer is late, whether anybody is there to give it.
        settings: How long tasks live on for which nobody waits.
        meters: Told what is sent.
    """

    def __init__(self, app: Celery, prober: Prober, settings: Settings, meters: Meters) -> None:
        self._app = app
        self._meters = meters
        self._prober = prober
        self._task_timeout = settings.task_timeout
        self._sharing = Sharing(settings)
        self._unreachable_until = 0.0

    async def outcomes(
        self, visit: Visit, task: Task, question: Question, time_given: Deadline
    ) -> list[Outcome]:
        """
        Return what became of each input, in order.

        If that is cancelled, because its client has gone, the tasks are revoked.

        Args:
            visit: For whom.
            task: Called once for each input.
            question: Its arguments, and whether their batches are of interest.
            time_given: What has not reached the model by then never will, unless it is to
                live on.

        Raises:
            Refused: The broker cannot be reached, or not every task ended in time.
            Unfinished: They did not, and live on.
        """
        self._check_room(task, len(question.inputs))
        if self._sharing and not time_given.lives_on:
            return await self._shared(visit, task, question, time_given)
        lives_on, within = time_given.lives_on, time_given.within
        # Tasks that live on have to be sent, however little time their client has.
        deadline = visit.since + (max(within, _SLOW) if lives_on else within)
        expires = self._task_timeout if lives_on else within
        way, inputs, options = visit.way, question.inputs, {"expires": expires}
        if len(inputs) == 1 and not isinstance(inputs[0], bytes):
            limits = Limits(deadline, visit.since + within - listens(within))
            results = [await self._ask(way, task, inputs[0], options, limits)]
        else:
            results = await self.send(way, task, inputs, options, deadline)
        try:
            await self._come(visit, task, results, time_given)
        except (asyncio.CancelledError, ClientGone):
            self.revoke([result.id for result in results])
            raise
        return [outcome_of(result, explain=question.explain) for result in results]

    def _check_room(self, task: Task, count: int) -> None:
        most = Publisher.of(self._app).room().limit(task)
        if most is not None and count > most:  # to come again would never help
            raise TooLarge(f"{count} inputs are more than the {most} that may wait: send fewer")

    async def _shared(
        self, visit: Visit, task: Task, question: Question, time_given: Deadline
    ) -> list[Outcome]:
        """Send what is not on its way already, or known."""
        way, inputs, deadline = visit.way, question.inputs, visit.since + time_given.within
        keys = [key_of(task.name, value) for value in inputs]
        trip = Trip(self._sharing, keys, deadline)

        async def send(indices: list[int]) -> list[Any]:
            options = {"expires": time_given.within + SLACK}
            return await self.send(way, task, [inputs[each] for each in indices], options, deadline)

        try:
            with self.refusing_when_unreachable():
                await trip.send(way, send)
            await self._come(visit, task, trip.results, time_given)
            return trip.outcomes(partial(outcome_of, explain=question.explain), Outcome)
        finally:
            self.revoke(trip.leave())

    async def _come(
        self, visit: Visit, task: Task, results: Sequence[Any], time_given: Deadline
    ) -> None:
        """
        Return when all results have come.

        Raises:
            Refused: They have not in time, or the client has gone.
            Unfinished: They have not, and live on.
        """
        if all(result.reply.value for result in results):
            return
        way, within = visit.way, time_given.within
        deadline = visit.since + within
        # Workers need a moment to be heard: time to ask them before it is too late.
        if await way.until(results, deadline - listens(within)):
            return
        probe = self._prober.start()
        if await way.until(results, deadline):
            return
        if time_given.lives_on:
            raise Unfinished([result.id for result in results])
        raise why_late(probe, self._prober.remembered(), task.name, results, within)

    async def _ask(
        self,
        way: Way,
        task: Task,
        value: Any,
        options: Mapping[str, Any],
        limits: Limits,
    ) -> Any:
        """Send one task, and return its result, which may have its answer already."""
        told = partial(self._meters.sent, task.name, 1)
        with self.refusing_when_unreachable():
            return await way.ask(task, value, _named(options), limits, told)

    async def send(
        self,
        way: Way,
        task: Task,
        inputs: Sequence[Any],
        options: Mapping[str, Any],
        deadline: float,
    ) -> list[Any]:
        """
        Send one task for each input, and return their results in order.

        They bear the name of their request as the header ``request_id``.

        Args:
            way: How to send.
            task: Called once for each input.
            inputs: Its arguments.
            options: As for `apply_async`.
            deadline: When to give up, by the monotonic clock.

        Raises:
            Refused: The broker cannot be reached, or is too slow, or too many inputs wait.
        """
        options = _named(options)
        if inputs and isinstance(inputs[0], bytes):
            # Celery would show two kilobytes of it to whoever watches the task.
            options = {**options, "argsrepr": "(<bytes>,)"}
        with self.refusing_when_unreachable():
            results = await way.send(task, inputs, options, deadline)
        self._meters.sent(task.name, len(results))
        return results

    def revoke(self, ids: Sequence[str]) -> None:
        """
        Have tasks not run, if they do not yet; return at once, whether anybody hears it.

        Args:
            ids: Theirs.
        """
        revoke_soon(self._app, ids)

    def revoke_for_good(self, task_id: str) -> None:
        """
        Have a task not run, if it does not yet, and store that at once; this blocks.

        Args:
            task_id: Its id.

        Raises:
            Exception: The broker or the result store cannot be reached.
        """
        self._app.control.revoke(task_id)
        # A worker would store it when the message comes to it, which may take a while.  Should
        # the task run nevertheless, its result takes the place of this.
        self._app.backend.mark_as_revoked(task_id, "revoked")

    @contextmanager
    def refusing_when_unreachable(self) -> Iterator[None]:
        """Try to reach the servers; for a moment after a failure, do not even try."""
        began = time.monotonic()
        if began < self._unreachable_until:
            raise BrokerUnreachable("the broker could not be reached a moment ago")
        try:
            yield
        except QueueFull as error:
            raise Overloaded("too many inputs wait already", error.retry_after) from None
        except TimeoutError:
            if time.monotonic() - began < _SLOW:  # it is the client who is in a hurry
                raise DeadlineExceeded("the time was over before all inputs were sent") from None
            self._unreachable_until = time.monotonic() + RETRY_AFTER
            raise BrokerUnreachable("the broker is too slow to take the inputs") from None
        except _UNREACHABLE as error:
            what = type(error).__name__  # Redis' own repr has no message
            log.warning("the broker or the result store cannot be reached: %s: %s", what, error)
            self._unreachable_until = time.monotonic() + RETRY_AFTER
            raise BrokerUnreachable("the broker cannot be reached") from error


def _named(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of tasks with the name of the request that they are for."""
    name = {"request_id": request_id.current()}
    headers = options.get("headers")
    return {**options, "headers": {**headers, **name} if headers else name}
