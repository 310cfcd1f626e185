"""Checks the names of calls' options."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from difflib import get_close_matches
from functools import cache
from inspect import signature
from typing import Any

from kombu.messaging import Producer

from celery_batch.config import did_you_mean

__all__ = ["check_options", "warn_of_misspelt"]

logger = logging.getLogger(__name__)

#: What Celery's router and kombu read beside the parameters of `send_task` and `publish`.
_OF_MESSAGES = (
    "queue",
    "exchange_type",
    "argsrepr",
    "kwargsrepr",
    "stamped_headers",
    "origin",
    "ignore_result",
    "message_id",
    "correlation_id",
    "user_id",
    "app_id",
    "type",
    "timestamp",
)

#: How alike names have to be for one to be a misspelt other, of 1.
_ALIKE = 0.75


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


def warn_of_misspelt(task: Any, options: Mapping[str, Any]) -> None:
    """Warn of what is no option of a call, but one of the task, or almost another's name."""
    kind: Any = type(task.app)
    stamps = options.get("stamped_headers") or ()
    for name in options.keys() - _known(kind) - {*stamps}:
        _warn_once(task.name, name, kind, is_of_task=hasattr(task, name))


@cache
def _warn_once(task_name: str, name: str, app: Any, *, is_of_task: bool) -> None:
    near = get_close_matches(name, _known(app), n=1, cutoff=_ALIKE)
    if is_of_task or near:
        hint = "it is an option of the task" if is_of_task else f"did you mean {near[0]}?"
        text = "%s: a call has no option %r, which nothing reads; %s"
        logger.warning(text, task_name, name, hint)
