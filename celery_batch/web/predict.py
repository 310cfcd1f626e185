"""
Calls of a batch task for one web request: sent together, waited for with one deadline.

`predict` is for a view that has a thread, or a greenlet, for itself; `apredict` is for a
coroutine.
"""

from __future__ import annotations

import asyncio
import logging
import math
import socket
import time
from collections.abc import Coroutine, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from typing import Any, Literal
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary

from celery import states
from celery.backends.base import DisabledBackend
from celery.exceptions import TimeoutError as CeleryTimeoutError
from celery.local import maybe_evaluate
from celery.result import EagerResult, assert_will_not_block
from kombu.exceptions import EncodeError, OperationalError
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

from celery_batch.call_options import check_options
from celery_batch.client.backpressure import BrokerUnreachable
from celery_batch.client.publish.aio import apply_and_wait, apply_async
from celery_batch.client.publish.publisher import Publisher
from celery_batch.client.publish.send_many import PartlySent
from celery_batch.client.results.futures import as_completed
from celery_batch.client.results.listener import (
    is_cut_off,
    is_listening,
    listener_for,
    wait_for_listener,
)
from celery_batch.client.results.waiting import (
    block_until_ended,
    wait_until_ended,
    warn_if_loop_blocks,
)
from celery_batch.client.revoke import revoke_soon
from celery_batch.client_methods import ClientMethods
from celery_batch.compat.deadline import waiting_until
from celery_batch.compat.older_celery import is_lost_backend
from celery_batch.compat.results import shown_url
from celery_batch.errors import (
    BatchError,
    ConfigurationError,
    DeadlineExceeded,
    InvalidRow,
    QueueFull,
)
from celery_batch.formatting import with_article
from celery_batch.item_lists import is_list
from celery_batch.payloads.store import StoreError
from celery_batch.serialization.encode_errors import explained_items
from celery_batch.web.errors import LOGIN_REFUSED, BackendUnreachable, TaskFailed, task_error

__all__ = ["apredict", "predict"]

logger = logging.getLogger(__name__)

OnTimeout = Literal["revoke", "leave"]

#: What `predict` takes besides the options of calls.
_OWN = ("timeout", "on_timeout", "expires", "return_exceptions")

#: Of these, or of what has caused them, those that say that there is no connection.
_DISCONNECTED = (
    RedisConnectionError,
    RedisTimeoutError,
    ConnectionError,
    TimeoutError,
    socket.gaierror,
    *LOGIN_REFUSED,
)

#: What Celery, kombu and redis-py raise where a server is away.
_UNREACHABLE = (OperationalError, RedisError, *_DISCONNECTED)

#: Most seconds of a time-out; a date must be able to hold it.
_LONGEST = 1e9

#: Seconds after a lost connection in which no request tries to connect again; and seconds without
#: such a loss after which the next one is logged.
_PAUSE, _QUIET = 1.0, 30.0

#: A call that expires so many seconds before its time has done so by another clock.
_CLOCKS_DIFFER = 0.1

#: When each app's broker may be tried again, by the monotonic clock.
_away_until: WeakKeyDictionary[Any, float] = WeakKeyDictionary()


def predict(
    task: Any,
    items: Iterable[Any],
    *,
    timeout: float,
    on_timeout: OnTimeout = "revoke",
    expires: float | None = None,
    return_exceptions: bool = False,
    **options: Any,
) -> list[Any]:
    """
    Call a batch task once for each item, and return the outputs in order.

    The calls are sent in one write. If not all have ended by the deadline, or the wait is
    interrupted, those that still wait in a queue are revoked; so they are once a worker refuses
    one of several, unless ``return_exceptions`` asks for the outputs of the others.

    Args:
        task: The batch task.
        items: The only argument of each call.
        timeout: Seconds for all items together. The calls expire then, too.
        on_timeout: "revoke", or "leave" to let the calls finish after the deadline.
        expires: Seconds after which remaining calls expire; "leave" needs it, and it is
            at least ``timeout``.
        return_exceptions: Return an item's exception in the place of its output.
        options: As for `apply_async`, the same for all calls.

    Returns:
        One output for each item.

    Raises:
        DeadlineExceeded: Not all calls have ended in time; ``results`` has the result of each.
            It is empty if the deadline passed before the calls were sent.
        BrokerUnreachable: The broker does not accept the calls.
        BackendUnreachable: The result backend does not answer.
        InvalidRow: ``items`` is one value, such as a text or a mapping, and no list.
        QueueFull: ``max_queue`` leaves no room for all items; none was sent. Or a worker has
            refused one, because of ``shed``.
        ConfigurationError: Results of this task cannot be waited for, or an option is wrong.
        TypeError: There is no such option.
        Exception: Whatever the first failed item has failed with; it is a `TaskFailed`, too.
    """
    task, values, options, deadline = _checked(task, items, options, timeout, on_timeout, expires)
    if _runs_here(task, values):
        results = _eagerly(task, values, options)
    else:
        warn_if_loop_blocks("use `await apredict(...)` in place of `predict(...)`")
        with _naming_item(task, values, options), _sending(task.app, deadline):
            _listen(task.app, deadline)
            results = _send(task, values, options)
        with _waiting(task.app, results, timeout, on_timeout, may_fail=not return_exceptions):
            if _may_refuse(task, results) and not return_exceptions:
                with suppress(CeleryTimeoutError):
                    for result in _as_completed(results, deadline):
                        _check_refusal(results, result)
            else:
                all(block_until_ended(result, deadline) for result in results)
    until = deadline if expires is None else min(deadline, deadline - timeout + expires)
    return _outputs(task.name, results, until, return_exceptions=return_exceptions)


async def apredict(
    task: Any,
    items: Iterable[Any],
    *,
    timeout: float,  # noqa: ASYNC109 (it is sent with the calls, too)
    on_timeout: OnTimeout = "revoke",
    expires: float | None = None,
    return_exceptions: bool = False,
    **options: Any,
) -> list[Any]:
    """
    Call a batch task once for each item from a coroutine; see `predict`.

    Calls of requests that come at the same time share their writes, and the deadline bounds
    sending, too. If the coroutine is cancelled, the calls that still wait in a queue are revoked.
    """
    task, values, options, deadline = _checked(task, items, options, timeout, on_timeout, expires)
    if _runs_here(task, values):
        results = await asyncio.to_thread(_eagerly, task, values, options)
    else:
        with _naming_item(task, values, options), _sending(task.app, deadline):
            results = await _asend(task, values, options, deadline)
        with _waiting(task.app, results, timeout, on_timeout, may_fail=not return_exceptions):
            if _may_refuse(task, results) and not return_exceptions:
                with suppress(CeleryTimeoutError):
                    async for result in _as_completed(results, deadline):
                        _check_refusal(results, result)
            else:
                await _all_end(results, deadline)
        with _reading_results():
            await asyncio.gather(*(each.read_soon() for each in results if each.has_payload))
    until = deadline if expires is None else min(deadline, deadline - timeout + expires)
    return _outputs(task.name, results, until, return_exceptions=return_exceptions)


def _listed(items: Iterable[Any]) -> list[Any]:
    """Return items as a list; a body's field may be anything."""
    if not is_list(items):
        raise InvalidRow(f"items must be a list, got {with_article(type(items).__name__)}")
    return list(items)


def _positive(name: str, seconds: float) -> float:
    if not (
        isinstance(seconds, (int, float)) and math.isfinite(seconds) and 0 < seconds <= _LONGEST
    ):
        raise ConfigurationError(
            f"{name} must be a number of seconds above 0, at most {_LONGEST:g}, got {seconds!r}"
        )
    return seconds


def _expiry(timeout: float, on_timeout: str, expires: float | None) -> dict[str, datetime]:
    """Return when calls expire: a time, as it may take a while until they can be sent."""
    if on_timeout not in ("revoke", "leave"):
        raise ConfigurationError(f'on_timeout must be "revoke" or "leave", got {on_timeout!r}')
    if expires is None:
        if on_timeout == "leave":
            raise ConfigurationError('on_timeout="leave" needs expires: seconds until calls expire')
        expires = timeout
    if on_timeout == "leave" and expires < timeout:
        raise ConfigurationError(
            f"expires must be at least timeout, {timeout:g} s, got {expires!r}"
        )
    return {"expires": datetime.now(UTC) + timedelta(seconds=_positive("expires", expires))}


def _checked(
    task: Any,
    items: Iterable[Any],
    options: dict[str, Any],
    timeout: float,
    on_timeout: str,
    expires: float | None,
) -> tuple[Any, list[Any], dict[str, Any], float]:
    """Return the task, the items, the options and the deadline of calls that can be waited for."""
    task, values = maybe_evaluate(task), _listed(items)
    deadline = time.monotonic() + _positive("timeout", timeout)
    if not isinstance(task, ClientMethods):
        raise ConfigurationError(f"{task!r} is no batch task: give it base=BatchTask")
    if options:
        check_options("predict", task.app, options, _OWN)
    options |= _expiry(timeout, on_timeout, expires)
    if options.get("ignore_result", task.ignore_result):
        raise ConfigurationError(
            f"{task.name} ignores its results, so none can be waited for: give it"
            " ignore_result=False, also where the app's setting task_ignore_result is on"
        )
    if "task_id" in options and len(values) > 1:
        raise ConfigurationError(f"{task.name}: {len(values)} calls cannot have one task_id")
    is_eager = Publisher.of(task.app).is_eager()
    if isinstance(task.backend, DisabledBackend) and not is_eager:
        raise ConfigurationError(f"{task.name} has no result backend: set result_backend")
    return task, values, options, deadline


def _runs_here(task: Any, items: Sequence[Any]) -> bool:
    """Return whether nothing is sent: for no items, or with ``task_always_eager``."""
    return not items or Publisher.of(task.app).is_eager()


def _eagerly(task: Any, items: Sequence[Any], options: dict[str, Any]) -> list[Any]:
    return [task.apply_async((item,), **options, throw=False) for item in items]


@contextmanager
def _waiting(
    app: Any, results: Sequence[Any], timeout: float, on_timeout: str, *, may_fail: bool
) -> Iterator[None]:
    """Raise DeadlineExceeded unless all calls end; revoke the others, also when interrupted."""
    try:
        with _reading_results():
            yield
    except BaseException:
        _revoke_unfinished(app, results)
        raise
    missing = sum(not _has_ended(each) for each in results)
    if missing:
        ended = [n for n, each in enumerate(results) if _has_ended(each)]
        refused = [n for n in ended if may_fail and isinstance(results[n].result, QueueFull)]
        if on_timeout == "revoke" or refused:
            _revoke_unfinished(app, results)
        _raise_refusal(results, refused)
        words = f"{missing} of {len(results)} items had no answer within {timeout:g} s."
        raise DeadlineExceeded(words, results=results)


@contextmanager
def _sending(app: Any, deadline: float) -> Iterator[None]:
    """Give up at the deadline, and raise BrokerUnreachable if sending fails."""
    assert_will_not_block()
    began = time.monotonic()
    if began < _away_until.get(app, 0.0):
        raise BrokerUnreachable("The broker could not be reached a moment ago.")
    try:
        with waiting_until(deadline):
            yield
    except BackendUnreachable:
        raise
    except (PartlySent, *_UNREACHABLE, OSError) as error:
        cause: BaseException = error
        if isinstance(error, PartlySent):
            _revoke_unfinished(app, error.sent)
            cause = error.__cause__ or error
        # Py-amqp raises OSError itself for a closed connection.
        if not (isinstance(cause, _UNREACHABLE) or type(cause) is OSError):
            raise cause from None  # a call that could not be encoded, say
        gave_up = isinstance(error, TimeoutError)  # by our own limit
        if deadline - began < _PAUSE and (gave_up or _has_timed_out(cause, deadline)):
            raise DeadlineExceeded("The timeout passed before the calls were sent.") from error
        if not gave_up and _is_disconnected(cause):
            _note_away(app, cause)
        if isinstance(error, BrokerUnreachable):
            raise
        reason = str(error) or "it has not answered in time"
        raise BrokerUnreachable(f"The broker has not accepted the calls: {reason}") from error


def _has_timed_out(cause: BaseException, deadline: float) -> bool:
    """Return whether a connection or a read has ended at the deadline, not earlier by a setting."""
    timed_out = isinstance(cause.__cause__ or cause, (RedisTimeoutError, TimeoutError))
    return timed_out and time.monotonic() >= deadline


def _note_away(app: Any, error: object) -> None:
    """Have calls fail at once for a moment; log the first of those failures."""
    now = time.monotonic()
    if now - _away_until.get(app, -math.inf) > _QUIET:
        broker, backend = app.connection_for_write().as_uri(), shown_url(app.backend)
        logger.warning("Calls fail: %s (broker %s, result backend %s)", error, broker, backend)
    _away_until[app] = now + _PAUSE


@contextmanager
def _naming_item(task: Any, items: Sequence[Any], options: dict[str, Any]) -> Iterator[None]:
    """Have the error of an item that cannot be encoded name it."""
    try:
        yield
    except EncodeError as error:
        serializer = options.get("serializer") or task.serializer
        raise explained_items(error, task.name, serializer, items) from error


@contextmanager
def _reading_results() -> Iterator[None]:
    """Raise BackendUnreachable where the result backend cannot be read."""
    try:
        yield
    except (RedisConnectionError, RedisTimeoutError) as error:
        raise BackendUnreachable(str(error)) from error
    except RuntimeError as error:
        if not is_lost_backend(error):
            raise
        raise BackendUnreachable(str(error)) from error


def _is_disconnected(error: BaseException | None) -> bool:
    """Return whether an error, or one that has caused it, says that there is no connection."""
    for _ in range(5):
        if isinstance(error, StoreError):  # the broker was not asked
            return False
        if error is None or isinstance(error, _DISCONNECTED) or type(error) is OSError:
            return error is not None
        error = error.__cause__ or error.__context__
    return False


def _listen(app: Any, deadline: float) -> None:
    """Begin to hear of results: else each is waited for in Celery's way, with its long retries."""
    if not is_listening(app):
        listener_for(app, max(deadline - time.monotonic(), 0.0))
        _check_received(app)
    if time.monotonic() >= deadline:
        raise TimeoutError("the result backend has not answered in time")


def _check_received(app: Any) -> None:
    if is_cut_off(app):
        _note_away(app, "the result backend does not answer")
        if _is_broker_too(app):
            raise BrokerUnreachable("The broker, which is the result backend, does not answer.")
        raise BackendUnreachable("The result backend does not answer.")


def _is_broker_too(app: Any) -> bool:
    """Return whether the broker and the result backend are one server."""
    with app.connection_for_write() as connection:  # which is not opened
        broker, backend = urlsplit(connection.as_uri()), urlsplit(app.backend.as_uri())
    if not broker.hostname:  # a socket
        return bool(broker.path == backend.path)
    return bool((broker.hostname, broker.port) == (backend.hostname, backend.port))


def _send(task: Any, items: Sequence[Any], options: dict[str, Any]) -> list[Any]:
    if len(items) == 1:
        return [task.apply_async((items[0],), **options)]
    return task.apply_many((((item,), None) for item in items), **options)  # type: ignore[no-any-return]


async def _asend(
    task: Any, items: Sequence[Any], options: dict[str, Any], deadline: float
) -> list[Any]:
    app = task.app
    if len(items) > 1 or not is_listening(app):
        async with asyncio.timeout(max(deadline - time.monotonic(), 0.0)):
            if not is_listening(app):
                await wait_for_listener(app)
                _check_received(app)
            if len(items) > 1 or not is_listening(app):
                limiter, count = Publisher.of(app).limiter(), len(items)
                await limiter.await_depth(task, options, count)
                with limiter.admit_items(task, options, count, count):
                    calls = [
                        apply_async(task, (item,), None, {**options}, on_abandoned=_abandon)
                        for item in items
                    ]
                    return await _gathered(calls)
    # It keeps the deadline itself, and wakes this coroutine once, with the answer.
    return [await apply_and_wait(task, (items[0],), options, deadline, _abandon)]


async def _gathered(calls: Sequence[Coroutine[Any, Any, Any]]) -> list[Any]:
    """Return the results of calls; where one could not be sent, revoke those that were."""
    sending = [asyncio.ensure_future(call) for call in calls]
    try:
        return await asyncio.gather(*sending)
    except BaseException:
        for each in sending:
            if not each.cancel() and not (each.cancelled() or each.exception()):
                _abandon(each.result())
        raise


def _may_refuse(task: Any, results: Sequence[Any]) -> bool:
    """Return whether workers may refuse some of several calls, with ``shed``."""
    return len(results) > 1 and getattr(task, "target_latency", None) is not None


def _as_completed(results: Sequence[Any], deadline: float) -> as_completed:
    return as_completed(results, max(deadline - time.monotonic(), 0.0))


def _check_refusal(results: Sequence[Any], ended: Any) -> None:
    if isinstance(ended.result, QueueFull):
        _raise_refusal(results, [results.index(ended)])


def _raise_refusal(results: Sequence[Any], refused: Sequence[int]) -> None:
    """Raise what a call was refused with, if one was: the others are of no use without it."""
    if refused:
        error = _error_of(results[refused[0]].result, states.FAILURE)
        if isinstance(error, TaskFailed):
            error.index = refused[0]
        raise error


async def _all_end(results: Sequence[Any], deadline: float) -> None:
    for result in results:
        if not (_has_ended(result) or await wait_until_ended(result, deadline)):
            break


def _outputs(
    task: str, results: Sequence[Any], until: float, *, return_exceptions: bool
) -> list[Any]:
    with _reading_results():
        found = [(result.result, result.state) for result in results]
    failed = [n for n, (_, state) in enumerate(found) if state != states.SUCCESS]
    refused = [n for n in failed if isinstance(found[n][0], QueueFull)]
    outputs: list[Any] = [value for value, _ in found]
    # A refusal comes first: it says when the whole request may succeed.
    for index in failed if return_exceptions else (refused or failed)[:1]:
        error = outputs[index] = _error_of(*found[index], until)
        if isinstance(error, TaskFailed):
            place = "" if len(found) == 1 else f", item {index}"
            if place:
                error.index = index
            if not isinstance(results[index], EagerResult):  # whose traceback the error has
                name = f"{task}[{results[index].id}]{place}"
                error.add_note(f"{name}; its traceback is in the worker's log")
        if not return_exceptions:
            if isinstance(error, DeadlineExceeded):
                error.results = list(results)
            raise error
    return outputs


def _error_of(value: Any, state: str, until: float = 0.0) -> BaseException:
    """Return what an item has failed with that may run until a time on the monotonic clock."""
    if state == states.REVOKED and str(value) == "expired":
        early = until - time.monotonic()
        if early > _CLOCKS_DIFFER:
            return DeadlineExceeded(
                f"A worker took the call as expired {early:.1f} s before its deadline: the clocks"
                f" of that host and of this one differ."
            )
        return DeadlineExceeded("No worker took the call in time.")
    return task_error(value if isinstance(value, Exception) else BatchError(f"{state}: {value}"))


def _has_ended(result: Any) -> bool:
    """Return whether an end is known, without asking the backend."""
    return bool(result.pending_result.value or result._meta)  # noqa: SLF001 (our own results)


def _abandon(result: Any) -> None:
    revoke_soon(result.app, [result.id])


def _revoke_unfinished(app: Any, results: Sequence[Any]) -> None:
    revoke_soon(app, [each.id for each in results if not _has_ended(each)])
