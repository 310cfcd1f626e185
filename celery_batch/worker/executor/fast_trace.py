"""

The fast path of items that need nothing of Celery's tracer but a stored result.

Rule 1: an item is plain if nobody can tell whether it went through the tracer: no
        callbacks, chain or chord, no hooks that somebody wrote, no receivers of signals.
Rule 2: only successes are plain.  Errors, retries and whatever else is no value, and
        values that cannot be encoded, go through the tracer with what came of them.
Rule 3: what is stored, logged and reported of a plain item is what the tracer would.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from celery import signals, states
from celery._state import _task_stack
from celery.app import autoretry, trace
from celery.app.task import Context
from celery.loaders.base import BaseLoader
from celery.utils.saferepr import saferepr
from kombu.serialization import registry
from kombu.utils import json
from kombu.utils.encoding import safe_repr

from celery_batch.decoding import decode_json
from celery_batch.protocol import REPLY_HEADER, ROWS
from celery_batch.task import BatchTask
from celery_batch.worker.dispatch.outcome import Settled
from celery_batch.worker.dispatch.payload import Delivery
from celery_batch.worker.redis.result_store import ResultBuffer, named_channel

__all__ = ["FastTrace", "PlainItem"]

_RECEIVERS = (signals.task_prerun, signals.task_postrun, signals.task_success)

_HOOKS = ("before_start", "on_success", "after_return")

#: Where Celery's own `__call__` comes from; workers replace it by another of Celery's.
_CALLS = ("celery.app.task", "celery.app.trace")

#: What Celery sends beside the arguments.
_EMBEDDED = {"callbacks", "errbacks", "chain", "chord"}

_JSON = "application/json"

_encode_json = json.JSONEncoder().encode


@dataclass(slots=True)
class PlainItem:
    """
    An item that goes the short way.

    Args:
        request: Celery's request fields.
        args: Its arguments as they were sent.
        kwargs: Those given by name.
        row: Its values of all the parameters.
    """

    request: dict[str, Any]
    args: Any
    kwargs: dict[str, Any]
    row: tuple[Any, ...]


def is_plain(task: Any) -> bool:
    """
    Say whether a task's successes leave nothing to the tracer but their results.

    Args:
        task: A batch task.
    """
    if any(signal.receivers for signal in _RECEIVERS) or not _is_celery_s(task):
        return False
    loader = type(task.app.loader)
    return (
        not task.track_started
        and not any(trace.task_has_custom(task, hook) for hook in _HOOKS)
        and type(task).__call__.__module__ in _CALLS
        and type(task)._call_rows is BatchTask._call_rows
        and loader.on_task_init is BaseLoader.on_task_init
        and loader.on_process_cleanup is BaseLoader.on_process_cleanup
    )


def _is_celery_s(task: Any) -> bool:
    """Say whether tracer and `run` are what they were made, and wrapped by nobody."""
    tracer = getattr(task, "__trace__", None)  # None until the first has gone through it
    if getattr(tracer, "__globals__", None) is not vars(trace):
        return False
    run = task.run
    if getattr(run, "__globals__", None) is vars(autoretry):
        run = task._orig_run  # noqa: SLF001 (what is retried is an error, and no plain item)
    return getattr(run, "__func__", None) is BatchTask._run_item  # noqa: SLF001


class FastTrace:
    """
    Takes the plain items of one batch from their messages to their results.

    Args:
        task: Of whom `is_plain` is true.
        buffer: Where the results are kept.
        accept: Content types that may be decoded.
        shows: Whether the text of each result is shown to somebody.
    """

    def __init__(self, task: Any, buffer: ResultBuffer, accept: Any, *, shows: bool = True) -> None:
        self._task = task
        self._buffer = buffer
        app = task.app
        late = app.conf.task_acks_late or task.acks_late
        self._finds_former = late and app.conf.worker_deduplicate_successful_tasks
        self._extends = app.conf.find_value_for_key("extended", "result")
        known = registry._decoders.get(_JSON) is json.loads  # noqa: SLF001
        self._reads_json = known and _JSON in accept
        self._accept = accept
        kinds = [parameter.kind for parameter in task._batch_signature.parameters.values()]
        simple = all(kind is kind.POSITIONAL_OR_KEYWORD for kind in kinds)
        self._width = len(kinds) if simple else -1
        self._encode = self._encoder()
        self._shows = shows
        self._logs = trace.logger.isEnabledFor(logging.INFO)
        self._began = time.monotonic()
        self._date_done: str | None = None

    def admit(self, delivery: Delivery) -> PlainItem | None:
        """
        Read an item's message.

        Args:
            delivery: The item's.

        Returns:
            The item, or None if it is to go through its tracer, for whatever reason:
            the tracer finds that out, too.
        """
        request = delivery.request
        try:
            args, kwargs, embed = self._read(delivery)
            if not self._is_plain(request, embed) or not isinstance(kwargs, dict):
                return None
            if len(args) == self._width and not kwargs:
                row = tuple(args)
            else:
                bound = self._task._batch_signature.bind(*args, **kwargs)
                bound.apply_defaults()
                row = tuple(bound.arguments.values())
        except Exception:  # noqa: BLE001 (the tracer meets with it as well)
            return None
        return PlainItem(request, args, kwargs, row)

    def settle(self, item: PlainItem, value: Any, waited: float) -> Settled | None:
        """
        Store, log and report an item's success.

        Args:
            item: As it was admitted.
            value: What the model returned for it.
            waited: Seconds of its run that it had to wait.

        Returns:
            What Celery's tracer would return; None if it has to tell of an error.
        """
        task, request = self._task, item.request
        ignored = request.get("ignore_result")
        if not (task.ignore_result if ignored is None else ignored):
            try:
                self._store(item, value)
            except Exception:  # noqa: BLE001 (the tracer meets with it as well)
                return None
        shown = saferepr(value, task.resultrepr_maxsize) if self._shows else None
        runtime = time.monotonic() - self._began - waited
        if self._logs:
            self._log(item, shown, runtime)
        return 0, shown, runtime

    def _log(self, item: PlainItem, shown: str | None, runtime: float) -> None:
        task, request = self._task, item.request
        # A formatter or a filter may ask which task it is about.
        about = Context(request, args=item.args, kwargs=item.kwargs, called_directly=False)
        _task_stack.push(task)
        task.request_stack.push(about)
        try:
            context = {
                "id": request["id"],
                "name": request.get("shadow") or task.name,
                "return_value": shown,
                "runtime": runtime,
                "args": request.get("argsrepr") or safe_repr(item.args),
                "kwargs": request.get("kwargsrepr") or safe_repr(item.kwargs),
            }
            trace.info(trace.LOG_SUCCESS, context)
        finally:
            task.request_stack.pop()
            _task_stack.pop()

    def _read(self, delivery: Delivery) -> tuple[Any, dict[str, Any], dict[str, Any]]:
        if self._reads_json and delivery.content_type == _JSON:
            body = delivery.body
            return delivery.checked(decode_json(body.decode() if isinstance(body, bytes) else body))
        return delivery.decode(self._accept)

    def _is_plain(self, request: dict[str, Any], embed: dict[str, Any]) -> bool:
        info = request.get("delivery_info") or {}
        return not (
            embed.get("callbacks")
            or embed.get("chain")
            or embed.get("chord")
            or request.get("callbacks")
            or request.get("chain")
            or request.get("chord")
            or request.get("stamps")
            or request.get("headers")
            or request.get(ROWS) is not None
            or (self._finds_former and info.get("redelivered"))
            or not embed.keys() <= _EMBEDDED
        )

    def _store(self, item: PlainItem, value: Any) -> None:
        request, backend = item.request, self._task.backend
        if self._date_done is None:  # one for all: they are stored together
            self._date_done = self._task.app.now().isoformat()
        meta = {
            "status": states.SUCCESS,
            "result": backend.prepare_value(value),
            "traceback": None,
            "children": [],
            "date_done": self._date_done,
        }
        if request.get("group"):
            meta["group_id"] = request["group"]
        if request.get("parent_id"):
            meta["parent_id"] = request["parent_id"]
        if self._extends:
            meta.update(self._extended(item))
        meta["task_id"] = request["id"]
        self._buffer.keep_meta(meta, named_channel(request.get(REPLY_HEADER)), self._encode)

    def _extended(self, item: PlainItem) -> dict[str, Any]:
        request = item.request
        return {
            "name": request.get("task"),
            "args": item.args,
            "kwargs": item.kwargs,
            "worker": request.get("hostname"),
            "retries": request.get("retries", 0),
            "queue": (request.get("delivery_info") or {}).get("routing_key"),
        }

    def _encoder(self) -> Callable[[Any], Any]:
        backend = self._task.backend
        if backend.encoder is json.dumps and not backend.compression:
            return _encode_json  # the same, made once
        return backend.encode  # type: ignore[no-any-return]
