"""The options of a backfill's calls, by name: one that is misspelt would be swallowed."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from inspect import signature
from typing import Any

__all__ = ["check_options"]

#: What `backfill` takes itself.
_OWN = ("window", "in_order")

#: What Celery and kombu read that `send_task` does not name.
_PASSED_ON = (
    *("queue", "exchange", "exchange_type", "routing_key", "priority", "delivery_mode"),
    *("serializer", "compression", "content_type", "content_encoding", "headers"),
    *("stamped_headers", "argsrepr", "kwargsrepr", "ignore_result", "origin", "expiration"),
    *("retry", "retry_policy", "declare", "mandatory", "immediate", "timeout", "confirm_timeout"),
    *("message_id", "correlation_id", "user_id", "app_id", "type", "timestamp"),
)

#: What `send_task` names that is not the same for all calls of a backfill.
_OF_EACH = ("name", "args", "kwargs", "task_id", "result_cls")


def check_options(app: Any, options: Iterable[str]) -> None:
    """
    Do nothing if all of these are options of a call.

    Args:
        app: The Celery app.
        options: Their names.

    Raises:
        TypeError: One is none, with the one that was meant; or each call has its own.
    """
    known = {*_OWN, *_PASSED_ON, *signature(app.send_task).parameters}
    for name in options:
        if name in _OF_EACH:
            raise TypeError(f"backfill() takes no option {name!r}: each call has its own")
        if name not in known:
            near = get_close_matches(name, sorted(known), n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise TypeError(f"backfill() takes no option {name!r}{hint}")
