"""

Remote control commands that change a running worker.

From a shell they are words, ``batch_config workers.infill max_wait=0.02``; programs give
them names, ``broadcast("batch_config", {"task": "workers.infill", "max_wait": 0.02})``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

from celery.worker.control import control_command

from celery_batch.config import OPTIONS
from celery_batch.errors import BatchError, ConfigurationError
from celery_batch.worker.consumer_context import ConsumerContext
from celery_batch.worker.control.delayed_replies import DelayedReply, let_wait
from celery_batch.worker.control.runtime_config import DEFAULT

__all__ = ["register"]

logger = logging.getLogger(__name__)

_Order = Callable[..., dict[str, Any] | DelayedReply]


def register() -> None:
    """Teach the orders to this worker, or to this command line."""
    control_command(
        variadic="words",
        signature=(
            "<task> [default] [max_batch_size=ROWS] [max_wait=SECONDS] [linger=SECONDS]"
            " [low_priority_share=SHARE]"
        ),
    )(_answered(batch_config))
    control_command(variadic="words", signature="<task> [task2 [... [taskN]]]")(
        _answered(batch_pause)
    )
    control_command(variadic="words", signature="[task1 [... [taskN]]]")(_answered(batch_resume))
    control_command()(_answered(batch_drain))
    control_command(signature="<task> [in_place] [wait=SECONDS]", variadic="words")(
        _answered(batch_reload)
    )


def _answered(order: _Order) -> _Order:
    """Answer as Celery's own commands do: with what is so now, or with what was wrong."""

    @wraps(order)
    def answer(state: Any, **arguments: Any) -> dict[str, Any] | DelayedReply:
        words = [*arguments.get("words", ()), *_pairs(arguments)]
        logger.info("Order: %s", " ".join([order.__name__, *map(str, words)]))
        try:
            found = order(ConsumerContext.of(state.consumer).runtime_config, **arguments)
        except BatchError as error:
            logger.warning("Refused: %s", error)
            return {"error": str(error)}
        if not isinstance(found, DelayedReply):
            return {"ok": found}
        return found if let_wait(state.consumer) else found.so_far()

    return answer


def batch_config(
    runtime_config: Any, words: Sequence[str] = (), task: str = "", **values: Any
) -> dict[str, Any]:
    """Show or change when a task's batches leave; "default" puts back what the task says."""
    usage = "batch_config <task> max_batch_size=32 max_wait=0.02"
    names, named = _understood(words, task)
    name = _only_task(names, {DEFAULT}, usage)
    defaults = dict.fromkeys(OPTIONS, DEFAULT) if DEFAULT in names[1:] else {}
    reply: dict[str, Any] = runtime_config.configure(name, {**defaults, **named, **values})
    return reply


def batch_pause(runtime_config: Any, words: Sequence[str] = (), task: str = "") -> dict[str, Any]:
    """Take no more of these tasks; what waits of them goes back to the broker."""
    names = _only_names(words, task, "batch_pause <task>")
    if not names:
        raise ConfigurationError("no task is named; batch_drain has the worker take nothing more")
    reply: dict[str, Any] = runtime_config.pause(names)
    return reply


def batch_resume(runtime_config: Any, words: Sequence[str] = (), task: str = "") -> dict[str, Any]:
    """Take these tasks again; without a name everything, also after batch_drain."""
    names = _only_names(words, task, "batch_resume [task]")
    reply: dict[str, Any] = runtime_config.resume(names)
    return reply


def batch_drain(runtime_config: Any) -> dict[str, Any]:
    """Give back what waits, take nothing more from any queue, and stay up."""
    reply: dict[str, Any] = runtime_config.drain()
    return reply


def batch_reload(
    runtime_config: Any, words: Sequence[str] = (), task: str = "", **how: Any
) -> DelayedReply:
    """Load a task's model anew without losing a request; in_place where memory holds one only."""
    usage = "batch_reload <task> [in_place] [wait=SECONDS]"
    names, named = _understood(words, task)
    name = _only_task(names, {"in_place"}, usage)
    options = {**dict.fromkeys(names[1:], True), **named, **how}
    for option in options:
        if option not in {"in_place", "wait"}:
            raise _not_understood(option, usage)
    later: DelayedReply = runtime_config.reload(name, **options)
    return later


def _pairs(arguments: dict[str, Any]) -> list[str]:
    return [f"{name}={value}" for name, value in arguments.items() if name != "words"]


def _understood(words: Sequence[str], task: str) -> tuple[list[str], dict[str, Any]]:
    """Return the words that are names, the task's first, and those that are values, by name."""
    names = [*([task] if task else []), *(word for word in words if "=" not in word)]
    pairs = (word.partition("=") for word in words if "=" in word)
    return names, {name: _value(value) for name, _, value in pairs}


def _only_names(words: Sequence[str], task: str, usage: str) -> list[str]:
    names, named = _understood(words, task)
    for name in named:
        raise _not_understood(f"{name}=", usage)
    return names


def _only_task(names: list[str], others: set[str], usage: str) -> str:
    if not names:
        raise ConfigurationError(f"no task is named; write: {usage}")
    for name in names[1:]:
        if name not in others:
            raise _not_understood(name, usage)
    return names[0]


def _not_understood(word: str, usage: str) -> ConfigurationError:
    return ConfigurationError(f"{word}: not understood; write: {usage}")


def _value(text: str) -> Any:
    """Return what a word stands for: a number, None, or itself."""
    if text.lower() == "none":
        return None
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
