"""Checks the options of calls."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import cache
from inspect import signature
from typing import Any

from kombu.messaging import Producer

from celery_batch.config import did_you_mean

__all__ = ["check_options"]

#: What Celery's router and kombu read beside the parameters of `send_task` and `publish`.
_OF_MESSAGES = (
    *("queue", "exchange_type", "argsrepr", "kwargsrepr", "stamped_headers", "origin"),
    *("ignore_result", "message_id", "correlation_id", "user_id", "app_id", "type", "timestamp"),
)


def check_options(caller: str, app: Any, options: Mapping[str, Any], own: Collection[str]) -> None:
    """Raise TypeError for a name that is no option of a call, with the name that was meant."""
    stamps = options.get("stamped_headers") or ()
    kind: Any = type(app)
    known = {*_known(kind), *own, *stamps}
    for name in options:
        if name not in known:
            hint = did_you_mean(name, known)
            raise TypeError(f"{caller}() takes no option {name!r}{hint}")


@cache
def _known(app: Any) -> frozenset[str]:
    """Return the names of all options of a call, for a class of apps."""
    parameters = {*signature(app.send_task).parameters, *signature(Producer.publish).parameters}
    return frozenset({*_OF_MESSAGES, *parameters} - {"self", "options", "properties"})
