"""Uses of Celery's private parts."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from queue import SimpleQueue
from types import FrameType
from typing import Any
from weakref import ref

from celery._state import pop_current_task, push_current_task
from celery.app import autoretry, trace
from celery.backends.base import Backend
from celery.utils.saferepr import saferepr
from celery.utils.timer2 import Timer
from celery.worker import request as celery_request
from celery.worker.consumer import Consumer
from celery.worker.consumer.tasks import Tasks
from celery.worker.pidbox import Pidbox
from celery.worker.state import task_ready
from kombu.exceptions import OperationalError
from kombu.utils.json import dumps
from redis.exceptions import ResponseError

from celery_batch.serialization.arrays import describe

__all__ = [
    "RateLimits",
    "allow_delayed_replies",
    "check_before_processing",
    "close_django_connections",
    "context_of",
    "current_task",
    "defer_signals",
    "does_debug",
    "drop_limited",
    "encode_results_with",
    "escape_results_with",
    "fire_on_time",
    "has_full_prefetch",
    "has_global_qos",
    "is_contested",
    "is_waiting",
    "note_pool_result",
    "on_eta",
    "original_run",
    "reconnect_soon",
    "release_starter",
    "result_reprs",
]

logger = logging.getLogger(__name__)


@contextmanager
def current_task(task: Any, request: Any) -> Iterator[None]:
    """Make a task and its request the current ones of this thread, as Celery's tracer does."""
    push_current_task(task)
    task.request_stack.push(request)
    try:
        yield
    finally:
        task.request_stack.pop()
        pop_current_task()


class RateLimits:
    """The consumer's own code for rate limits, for an object that stands for a consumer."""

    _limit_task = Consumer._limit_task
    _limit_post_eta = Consumer._limit_post_eta
    _schedule_bucket_request = Consumer._schedule_bucket_request
    _move_to_pool = Consumer._limit_move_to_pool

    #: Whether another worker has taken a request that has waited here.
    was_taken_over: Callable[[Any], bool]

    def _limit_move_to_pool(self, request: Any) -> None:
        if self.was_taken_over(request):
            task_ready(request)
        else:
            self._move_to_pool(request)


def check_before_processing(controller: Any, was_taken_over: Callable[[Any], bool]) -> None:
    """Have a worker run no ordinary task that another has taken while it waited for a process."""
    # Those of other pools, and of prefork without `worker_pool_putlocks`, do not wait in Celery.
    process = getattr(controller, "_process_task", None)
    release = getattr(controller, "_quick_release", None)
    if process is None or release is None:  # private
        return
    to_release, is_releasing = 0, False

    def process_unless_taken_over(request: Any) -> None:
        nonlocal to_release, is_releasing
        if not (isinstance(request, celery_request.Request) and was_taken_over(request)):
            process(request)
            return
        task_ready(request)
        to_release += 1
        if is_releasing:  # the next ones are processed within `release`: calls must not nest
            return
        is_releasing = True
        try:
            while to_release:
                to_release -= 1
                release()
        finally:
            is_releasing = False

    controller._process_task = process_unless_taken_over


def drop_limited(consumer: Any, tags: Container[str]) -> None:
    """Drop requests with these delivery tags that wait for their rate: they would use it up."""
    for bucket in filter(None, consumer.task_buckets.values()):
        waiting, bucket.contents = bucket.contents, deque()
        for request, tokens in waiting:
            if request.message.delivery_tag in tags:
                task_ready(request)
            else:
                bucket.contents.append((request, tokens))


def on_eta(consumer: Any, note: Callable[[Any], object]) -> None:
    """Have a function get each ordinary task's request when its ETA has come, before it is run."""

    def noted(apply: Callable[..., Any], request: Any, *args: Any) -> Any:
        note(request)
        return apply(request, *args)

    for name in ("apply_eta_task", "_limit_post_eta"):  # private; `RateLimits` has it, too
        setattr(consumer, name, partial(noted, getattr(consumer, name)))


def does_debug() -> bool:
    """Return whether Celery's requests log a line when a pool process has accepted them."""
    return bool(celery_request._does_debug)


def is_contested(controller: Any) -> bool:
    """Return whether a task of a worker waits for a free pool process."""
    return bool(controller.semaphore._waiting)


def context_of(request: Any) -> Any:
    """Return a worker's request as a task sees it, and as result backends take it."""
    return request._context


def note_pool_result(requests: Iterable[Any], result: Any) -> None:
    """Have a pool's result be what the `cancel` of some requests looks at to stop them."""
    found = ref(result)
    for request in requests:
        request._apply_result = found


def has_full_prefetch(consumer: Any) -> bool:
    """Return whether acknowledgements no longer widen the prefetch, as after a lost connection."""
    return bool(getattr(consumer, "_maximum_prefetch_restored", False))


def original_run(task: Any) -> Any:
    """Return a task's `run` beneath autoretry; None if its tracer is not Celery's own."""
    tracer = getattr(task, "__trace__", None)  # None until the first request was traced
    if getattr(tracer, "__globals__", None) is not vars(trace):
        return None
    is_retried = getattr(task.run, "__globals__", None) is vars(autoretry)
    return task._orig_run if is_retried else task.run


def close_django_connections(app: Any) -> None:
    """Close the connections that Django has opened on this thread, as Celery does after a task."""
    for fixup in getattr(app, "_fixups", ()):  # Celery keeps them nowhere else
        django = getattr(fixup, "_worker_fixup", None)
        if django is not None:
            django.close_database()
            django.close_cache()


class _ResultReprs(threading.local):
    """Whether Celery's tracers make the repr of results on this thread."""

    wanted = True


_result_reprs = _ResultReprs()


@contextmanager
def result_reprs(*, wanted: bool) -> Iterator[None]:
    """Have tracers of this thread skip unwanted reprs: 0.1 ms for a few hundred numbers."""
    before, _result_reprs.wanted = _result_reprs.wanted, wanted
    try:
        yield
    finally:
        _result_reprs.wanted = before


def _saferepr(value: Any, *args: Any, **options: Any) -> str | None:
    return saferepr(describe(value), *args, **options) if _result_reprs.wanted else None


if getattr(trace, "saferepr", None) is saferepr:  # else every result gets its repr
    trace.saferepr = _saferepr


#: What `fire_on_time` needs of Celery's timer thread.
_TIMER = ("_next_entry", "not_empty", "schedule")


def fire_on_time(timer: Any) -> None:
    """Have Celery's timer thread wake for an earlier entry: it sleeps for a second at a time."""
    if not isinstance(timer, Timer) or "_next_entry" in vars(timer):
        return
    missing = [name for name in _TIMER if not hasattr(timer, name)]
    if not missing and not hasattr(timer.schedule, "_queue"):
        missing = ["_queue"]
    if missing:
        logger.warning("this Celery's timer has no %s: an eta may be late", ", ".join(missing))
        return
    next_entry = timer._next_entry

    def next_entry_or_wait() -> None:
        delay = next_entry()
        if not delay:
            return
        with timer.not_empty:  # each new entry notifies it
            queue = timer.schedule._queue
            if queue:  # an entry may have come since
                delay = min(delay, queue[0].eta - time.monotonic())
            if timer.on_tick:
                timer.on_tick(delay)
            timer.not_empty.wait(max(delay, 0.0))

    timer._next_entry = next_entry_or_wait


def release_starter(worker: Any) -> None:
    """Have `celery.contrib.testing` wait no longer for the start of a worker that cannot start."""
    started = getattr(worker, "_on_started", None)
    if isinstance(started, threading.Event):
        started.set()


def encode_results_with(backend: Any, encode: Callable[[Any], str]) -> None:
    """Have a backend that stores Celery's JSON use `encode`, and its own for what that cannot."""
    is_celerys = type(backend)._encode is Backend._encode
    if is_celerys and backend.encoder is dumps and "_encode" not in vars(backend):
        own = backend._encode

        def encoded(data: Any) -> Any:
            try:
                return backend.content_type, backend.content_encoding, encode(data)
            except Exception:  # noqa: BLE001 (Celery meets it as well)
                return own(data)

        backend._encode = encoded


def escape_results_with(backend: Any, escape: Callable[[Any], Any]) -> None:
    """Have a backend that sends results in JSON messages, as RPC's, send what `escape` returns."""
    own = getattr(backend, "_to_result", None)
    if own is None or backend.serializer != "json" or "_to_result" in vars(backend):
        return

    def escaped(*args: Any, **options: Any) -> Any:
        meta = own(*args, **options)
        try:
            return escape(meta)
        except RecursionError:  # which the encoder says
            return meta

    backend._to_result = escaped


def has_global_qos(consumer: Any) -> bool:
    """Return whether the prefetch of a Celery consumer is its channel's, as RabbitMQ's once was."""
    if hasattr(consumer, "qos_global"):
        return bool(consumer.qos_global)
    # Before 5.7 only the step that starts to consume knows it.
    steps = (step for step in consumer.steps if isinstance(step, Tasks))
    return any(step.qos_global(consumer) for step in steps)


def allow_delayed_replies(consumer: Any) -> None:
    """Let remote control commands return futures, whose results are the replies."""
    for step in consumer.steps:
        box = getattr(step, "box", None)
        if isinstance(box, Pidbox) and "reply" not in vars(box.node):
            box.node.reply = partial(_reply, box.node.reply)


def _reply(send: Callable[..., Any], data: dict[str, Any], **options: Any) -> None:
    ((hostname, reply),) = data.items()
    if isinstance(reply, Future):
        reply.add_done_callback(lambda done: _send_later(send, {hostname: done.result()}, options))
        return
    try:
        send(data, **options)
    except OperationalError as error:
        if not isinstance(error.__cause__, ResponseError):
            raise
        # Redis is full: else Celery would log a traceback, and close a connection that works.
        logger.warning("Could not reply to a control command: %s", error)


def _send_later(send: Callable[..., Any], data: dict[str, Any], options: dict[str, Any]) -> None:
    try:
        send(data, **options)
    except Exception as error:  # noqa: BLE001 (the client and the broker may be gone)
        logger.warning("Could not reply %s: %s", data, error)


#: Seconds between two attempts to connect: at first, and at most.  Kombu's own pauses grow
#: by 2 s each time, up to 30, while callers wait.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 2.0

#: So many of our attempts take as long as one of kombu's, once its pauses have grown.
_ATTEMPTS_FOR_ONE = 15


def reconnect_soon(consumer: Any, prepare: Callable[[Any], object]) -> None:
    """Have a consumer try every two seconds to connect, and give up after the same time."""
    connect = consumer.ensure_connected

    def ensure_connected(connection: Any) -> Any:
        prepare(connection)
        connection.ensure_connection = partial(_connect_often, connection.ensure_connection)
        return connect(connection)

    consumer.ensure_connected = ensure_connected


def _connect_often(
    ensure: Callable[..., Any], errback: Any, max_retries: int | None = None, **options: Any
) -> Any:
    return ensure(
        errback,
        max_retries and max_retries * _ATTEMPTS_FOR_ONE,
        interval_start=_FIRST_PAUSE,
        interval_step=_FIRST_PAUSE,
        interval_max=_LONGEST_PAUSE,
        **options,
    )


#: Seconds until a deferred signal is sent again.
_RETRY_AFTER = 0.005

#: Seconds for which a signal is deferred at most.
_TIMEOUT = 1.0

#: Modules that wait, and the functions that call them: between these nothing is half done.
_WAITS = frozenset({"kombu.utils.eventio", "billiard.popen_fork", "billiard.process"})
_LOOPS = frozenset(
    {
        ("kombu.asynchronous.hub", "create_loop"),
        ("celery.concurrency.asynpool", "_flush_outqueue"),  # it sleeps between two reads
        ("billiard.pool", "join"),
    }
)

_NUMBERS = (signal.SIGINT, signal.SIGQUIT, signal.SIGTERM)

#: Celery's names for its handlers.
_WARM, _COLD = "worker_Warm", "worker_Cold"


def is_waiting(frame: FrameType | None) -> bool:
    """Return whether the thread of a frame only waits, for events or for its pool's end."""
    while frame is not None:
        module = frame.f_globals.get("__name__")
        if (module, frame.f_code.co_name) in _LOOPS:
            return True
        if module not in _WAITS:
            return False
        frame = frame.f_back
    return False


def defer_signals() -> None:
    """Wrap Celery's signal handlers of this worker, if it runs on the main thread."""
    if threading.current_thread() is threading.main_thread():
        _DeferredSignals().wrap_handlers()


class _DeferredSignals:
    """Defers a cold shutdown's first signal, by a second at most, until the main thread waits."""

    # Celery cancels what runs and waits for its pool inside the signal handler, on top of the main
    # thread's stack.  If that holds a lock that the end of a batch needs, or has read half of an
    # answer of a pool process, the worker never ends; nor does one whose answers are not counted.

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._deferred: SimpleQueue[int] = SimpleQueue()  # safe in a signal handler
        self._since: dict[int, float] = {}
        self._is_ending = False
        threading.Thread(target=self._send_again, name="batch-signals", daemon=True).start()

    def wrap_handlers(self) -> None:
        """Wrap those handlers that are Celery's, and not wrapped yet."""
        for number in _NUMBERS:
            handler = signal.getsignal(number)
            if callable(handler) and getattr(handler, "__name__", "") in (_WARM, _COLD):
                signal.signal(number, partial(self._on_signal, handler))

    def _on_signal(self, handler: Callable[..., Any], number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._pid:  # a pool process that has not got its own handlers yet
            handler(number, frame)
            return
        is_cold = getattr(handler, "__name__", "") == _COLD
        if is_cold and not self._is_ending and not self._may_handle(number, frame):
            self._deferred.put(number)
            return
        self._is_ending = self._is_ending or is_cold
        handler(number, frame)
        if not self._is_ending:  # it may have set a handler for the cold shutdown
            self.wrap_handlers()

    def _may_handle(self, number: int, frame: FrameType | None) -> bool:
        now = time.monotonic()
        return is_waiting(frame) or now - self._since.setdefault(number, now) > _TIMEOUT

    def _send_again(self) -> None:
        while True:
            number = self._deferred.get()
            time.sleep(_RETRY_AFTER)
            signal.pthread_kill(threading.main_thread().ident or 0, number)
