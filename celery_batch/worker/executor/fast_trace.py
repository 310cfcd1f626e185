"""
The fast path of items that need nothing of Celery's tracer but a stored result.

Rule 1: an item takes it if that makes no observable difference: no callbacks, chain or
        chord, no hooks of the user, no receivers of signals.
Rule 2: only successes take it.  Errors, retries and values that cannot be encoded go
        through the tracer.
Rule 3: it stores, logs and reports what the tracer would.
"""

from __future__ import annotations

import logging
import time
from typing import Any, NamedTuple

from celery import signals, states
from celery.app import trace
from celery.app.task import Context
from celery.loaders.base import BaseLoader
from celery.utils.saferepr import saferepr
from kombu.utils import json
from kombu.utils.encoding import safe_repr

from celery_batch.compat.celery import current_task, original_run
from celery_batch.compat.kombu import decodes_json
from celery_batch.compat.older_celery import compression_of
from celery_batch.protocol import READS_PAYLOADS, REPLY_HEADER, ROWS
from celery_batch.serialization.arrays import describe
from celery_batch.serialization.decoding import decode_body
from celery_batch.serialization.typed_json import encode_result
from celery_batch.task import BatchTask
from celery_batch.worker.dispatch.follow_up import ItemEnd
from celery_batch.worker.dispatch.payload import Delivery
from celery_batch.worker.redis.result_backend import BulkResultWriter, named_channel

__all__ = ["FastItem", "FastTrace", "can_trace_fast", "has_own_call", "ignores_result"]

_RECEIVERS = (signals.task_prerun, signals.task_postrun, signals.task_success)

_HOOKS = ("before_start", "on_success", "after_return")

#: The modules of Celery's own `__call__`; workers replace the task's by the tracer's.
_CALLS = ("celery.app.task", "celery.app.trace")

#: What Celery embeds beside the arguments.
_EMBEDDED = {"callbacks", "errbacks", "chain", "chord"}

_JSON = "application/json"


class FastItem(NamedTuple):
    """An item that takes the fast path."""

    request: dict[str, Any]
    args: Any
    kwargs: dict[str, Any]
    row: tuple[Any, ...]


def ignores_result(task: Any, request: dict[str, Any]) -> bool:
    """Return whether a request's result is not stored."""
    ignored = request.get("ignore_result")
    return bool(task.ignore_result if ignored is None else ignored)


def has_own_call(task: Any) -> bool:
    """Return whether a task's class calls the task in a way of its own."""
    return type(task).__call__.__module__ not in _CALLS


def can_trace_fast(task: Any) -> bool:
    """Return whether the tracer would do nothing with a task's successes but store them."""
    run = getattr(original_run(task), "__func__", None)
    if any(signal.receivers for signal in _RECEIVERS) or run is not BatchTask._run_item:
        return False
    loader = type(task.app.loader)
    return (
        not task.track_started
        and not any(trace.task_has_custom(task, hook) for hook in _HOOKS)
        and not has_own_call(task)
        and type(task)._call_rows is BatchTask._call_rows
        and loader.on_task_init is BaseLoader.on_task_init
        and loader.on_process_cleanup is BaseLoader.on_process_cleanup
    )


class FastTrace:
    """Reads the requests of one batch that take the fast path, and stores their results."""

    def __init__(
        self, task: Any, writer: BulkResultWriter, accept: Any, *, shows_results: bool
    ) -> None:
        self._task = task
        self._writer = writer
        app = task.app
        acks_late = app.conf.task_acks_late or task.acks_late
        self._deduplicates = acks_late and app.conf.worker_deduplicate_successful_tasks
        self._extends = app.conf.find_value_for_key("extended", "result")
        self._reads_json = decodes_json() and _JSON in accept
        self._accept = accept
        kinds = [parameter.kind for parameter in task._batch_signature.parameters.values()]
        simple = all(kind is kind.POSITIONAL_OR_KEYWORD for kind in kinds)
        self._width = len(kinds) if simple else -1
        backend = task.backend
        is_plain_json = backend.encoder is json.dumps and not compression_of(backend)
        self._encode = encode_result if is_plain_json else backend.encode
        self._shows_results = shows_results
        self._logs = trace.logger.isEnabledFor(logging.INFO)
        self._began = time.monotonic()
        self._date_done: str | None = None

    def read(self, delivery: Delivery) -> FastItem | None:
        """Decode a request; None if it needs the tracer, which then handles the reason."""
        request = delivery.request
        try:
            args, kwargs, embed = self._decode(delivery)
            if self._needs_tracer(request, embed) or not isinstance(kwargs, dict):
                return None
            if len(args) == self._width and not kwargs:
                row = tuple(args)
            else:
                bound = self._task._batch_signature.bind(*args, **kwargs)
                bound.apply_defaults()
                row = tuple(bound.arguments.values())
        except Exception:  # noqa: BLE001 (the tracer raises it as well)
            return None
        return FastItem(request, args, kwargs, row)

    def store(self, item: FastItem, value: Any, waited: float) -> ItemEnd:
        """Store and log a success, and return what the tracer would; None if the item needs it."""
        task = self._task
        if not ignores_result(task, item.request):
            try:
                self._keep(item, value)
            except Exception:  # noqa: BLE001 (the tracer raises it as well)
                return None
        shown = saferepr(describe(value), task.resultrepr_maxsize) if self._shows_results else None
        runtime = time.monotonic() - self._began - waited
        if self._logs:
            self._log(item, shown, runtime)
        return 0, shown, runtime

    def _log(self, item: FastItem, shown: str | None, runtime: float) -> None:
        task, request = self._task, item.request
        # A formatter or a filter may use the current task.
        celery_request = Context(request, args=item.args, kwargs=item.kwargs, called_directly=False)
        with current_task(task, celery_request):
            context = {
                "id": request["id"],
                "name": request.get("shadow") or task.name,
                "return_value": shown,
                "runtime": runtime,
                "args": request.get("argsrepr") or safe_repr(describe(item.args)),
                "kwargs": request.get("kwargsrepr") or safe_repr(describe(item.kwargs)),
            }
            trace.info(trace.LOG_SUCCESS, context)

    def _decode(self, delivery: Delivery) -> tuple[Any, dict[str, Any], dict[str, Any]]:
        if self._reads_json and delivery.content_type == _JSON:
            body = delivery.body
            return delivery.checked(decode_body(body.decode() if isinstance(body, bytes) else body))
        return delivery.decode(self._accept)

    def _needs_tracer(self, request: dict[str, Any], embed: dict[str, Any]) -> bool:
        info = request.get("delivery_info") or {}
        return bool(
            embed.get("callbacks")
            or embed.get("chain")
            or embed.get("chord")
            or request.get("callbacks")
            or request.get("chain")
            or request.get("chord")
            or request.get("stamps")
            or request.get("headers")
            or request.get(ROWS) is not None
            or (self._deduplicates and info.get("redelivered"))
            or not embed.keys() <= _EMBEDDED
        )

    def _keep(self, item: FastItem, value: Any) -> None:
        request, backend = item.request, self._task.backend
        if self._date_done is None:  # one for all, which are stored together
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
        self._writer.add(
            meta,
            named_channel(request.get(REPLY_HEADER)),
            self._encode,
            reads_payloads=bool(request.get(READS_PAYLOADS)),
        )

    def _extended(self, item: FastItem) -> dict[str, Any]:
        request = item.request
        return {
            "name": request.get("task"),
            "args": item.args,
            "kwargs": item.kwargs,
            "worker": request.get("hostname"),
            "retries": request.get("retries", 0),
            "queue": (request.get("delivery_info") or {}).get("routing_key"),
        }
