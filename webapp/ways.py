"""How routes send and wait, whether a request has a thread of its own or shares an event loop."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Protocol

from celery import Celery, Task

from celery_batch.client.listener import listener_for
from celery_batch.client.revokes import revoke_soon
from celery_batch.client.round_trip import Limits

__all__ = ["Way", "begin_to_listen", "revoke"]


class Way(Protocol):
    """
    What routes do with the servers behind them; awaited, whether it blocks or not.

    Args:
        holds_thread: Whether a request has a thread, or a greenlet, for itself until it ends.
    """

    holds_thread: bool

    async def send(
        self, task: Task, values: Sequence[Any], options: Mapping[str, Any], deadline: float
    ) -> list[Any]:
        """
        Send one call for each value, in one write, and return their results in order.

        Args:
            task: A batch task.
            values: The only argument of each call.
            options: As for `apply_async`.
            deadline: When to give up, by the monotonic clock; a thread notices it between
                two tries only.

        Raises:
            TimeoutError: The broker takes too long.
            QueueFull: Too many wait already; none was sent.
            OperationalError: It cannot be reached.
            ConnectionError: The results would not be heard of.
        """

    async def ask(
        self,
        task: Task,
        value: Any,
        options: dict[str, Any],
        limits: Limits,
        told: Callable[[], object],
    ) -> Any:
        """
        Send one call, and return its result; with its answer, where that saves a wake-up.

        Cancelled, it does not run.

        Args:
            task: A batch task.
            value: The only argument of the call.
            options: As for `apply_async`.
            limits: When to give up sending, as for `send`, and when to wait no longer.
            told: Called when it is sent.

        Raises:
            Exception: As of `send`.
        """

    async def until(self, results: Sequence[Any], deadline: float) -> bool:
        """
        Wait for results; say whether all of them have come.

        Args:
            results: Of `send`.
            deadline: Until when, by the monotonic clock.

        Raises:
            ClientGone: Nobody waits for the answer any more.
        """

    async def done(self, future: Future[Any], deadline: float) -> Any:
        """
        Return what a future comes to that others wait for, too.

        Args:
            future: One that runs, so that giving up here cancels it for nobody.
            deadline: Until when, by the monotonic clock.

        Raises:
            TimeoutError: It is not done by then.
            Exception: What it has failed with.
        """

    async def call(self, function: Callable[..., Any], *args: Any) -> Any:
        """
        Call a function that may block, and return what it returns.

        Args:
            function: The function.
            args: Its arguments.
        """

    async def next_of(self, states: Any) -> str | None:
        """
        Return the next state of a task; None when there will be no more.

        Args:
            states: Of a `BatchResult`, with a timeout.

        Raises:
            TimeoutError: None has come in that time; ask again.
        """

    async def rest(self, seconds: float) -> None:
        """
        Do nothing for a while.

        Args:
            seconds: For how long.
        """


def revoke(result: Any) -> None:
    """
    Have a call not run that nobody waits for any more.

    Args:
        result: Its result.
    """
    revoke_soon(result.app, [result.id])


def begin_to_listen(app: Celery) -> None:
    """
    Begin to hear of results, before anything is sent.

    Else each would be waited for in Celery's own way, which takes long to find out that
    Redis is away, and would do so for each.
    """
    if listener_for(app) is None:
        raise ConnectionError("the result store does not let this process listen")
