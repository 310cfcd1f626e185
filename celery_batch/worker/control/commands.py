"""
Remote control commands that inspect or change a running worker.

A shell passes words, ``batch_config workers.infill max_wait=0.02``; programs pass arguments by
name, ``broadcast("batch_config", {"task": "workers.infill", "max_wait": 0.02})``.

Each ``celery`` command imports this module for the commands' names: so it imports no more of a
worker than a command that runs in one needs.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from functools import wraps
from typing import TYPE_CHECKING, Any

from celery.worker.control import Panel, control_command, inspect_command
from celery.worker.state import revoked
from kombu.utils.functional import maybe_list

from celery_batch.errors import BatchError, ConfigurationError
from celery_batch.protocol import QUIETLY

if TYPE_CHECKING:
    from celery_batch.worker.consumer_context import ConsumerContext
    from celery_batch.worker.control.runtime_config import RuntimeConfig

__all__ = [
    "batch_config",
    "batch_drain",
    "batch_pause",
    "batch_reload",
    "batch_resume",
    "batch_trace",
]

logger = logging.getLogger(__name__)

_CONSTANTS = {
    "none": None,
    **dict.fromkeys(("true", "on", "yes"), True),
    **dict.fromkeys(("false", "off", "no"), False),
}

_Reply = dict[str, Any] | Future[dict[str, Any]]
_Command = Callable[..., _Reply]


def _control_command(signature: str) -> Callable[[_Command], _Command]:
    """Add a function of the runtime configuration to Celery's control commands."""

    def add(command: _Command) -> _Command:
        control_command(variadic="words", signature=signature)(_replies(command))
        return command

    return add


def _replies_errors(command: _Command) -> _Command:
    """Reply with an error as Celery's own commands do."""

    @wraps(command)
    def reply(state: Any, **arguments: Any) -> _Reply:
        try:
            return command(state, **arguments)
        except BatchError as error:
            logger.warning("Refused: %s", error)
            return {"error": str(error)}

    return reply


def _replies(command: _Command) -> _Command:
    """Reply as Celery's own commands do: with the new state, or with the error."""

    @wraps(command)
    @_replies_errors
    def reply(state: Any, **arguments: Any) -> _Reply:
        values = [f"{name}={value}" for name, value in arguments.items() if name != "words"]
        words = [*arguments.get("words", ()), *values]
        logger.info("Remote control: %s", " ".join([command.__name__, *map(str, words)]))
        found = command(_context(state).runtime_config, **arguments)
        return found if isinstance(found, Future) else {"ok": found}

    return reply


def _context(state: Any) -> ConsumerContext:
    from celery_batch.worker.consumer_context import ConsumerContext  # noqa: PLC0415 (a worker's)

    return ConsumerContext.of(state.consumer)


@inspect_command()  # type: ignore[untyped-decorator]
@_replies_errors
def batch_status(state: Any, **_: Any) -> dict[str, Any]:
    """Batch tasks served here, whether their models are warm, and how their batches formed."""
    from celery_batch.worker.metrics.snapshot import task_reports  # noqa: PLC0415 (a worker's)

    reports = task_reports(_context(state))
    return {name: report for name, report in reports.items() if report["served"]}


@inspect_command()  # type: ignore[untyped-decorator]
@_replies_errors
def batch_stats(state: Any, **_: Any) -> dict[str, Any]:
    """Statistics of this worker's batches: sizes, waits, model times, outcomes."""
    from celery_batch.worker.metrics.snapshot import stats_of  # noqa: PLC0415 (a worker's)

    return stats_of(state.consumer)


@_control_command(
    "<task> [default] [max_batch_size=ROWS] [max_wait=SECONDS] [linger=SECONDS]"
    " [low_priority_share=SHARE] [device_share=WEIGHT] [max_batch_cost=COST] [sort_window=BATCHES]"
    " [target_latency=SECONDS] [shed=true|false] [dedupe=true|false] [cache_ttl=SECONDS]"
)
def batch_config(
    runtime_config: RuntimeConfig, words: Sequence[str] = (), task: str = "", **values: Any
) -> dict[str, Any]:
    """Show or change when a task's batches leave; "default" restores the task's own options."""
    usage = "batch_config <task> max_batch_size=32 max_wait=0.02"
    default = runtime_config.DEFAULT
    name, values = _one_task(words, task, values, usage, flags={default})
    if values.pop(default, False):
        values = {**dict.fromkeys(runtime_config.options(name), default), **values}
    return runtime_config.configure(name, values)


@_control_command("<task> [seconds=SECONDS]")
def batch_trace(
    runtime_config: RuntimeConfig,
    words: Sequence[str] = (),
    task: str = "",
    seen: Mapping[str, int] | None = None,
    **how: Any,
) -> dict[str, Any]:
    """Return arrivals and costs of a task's requests; record what comes."""
    usage = "batch_trace <task> [seconds=SECONDS]"
    name, options = _one_task(words, task, how, usage, options={"seconds"})
    return runtime_config.trace(name, options.get("seconds", 60), seen)


@_control_command("<task> [task2 [... [taskN]]]")
def batch_pause(
    runtime_config: RuntimeConfig, words: Sequence[str] = (), task: str = ""
) -> dict[str, Any]:
    """Stop taking messages of these tasks; waiting requests go back to the broker."""
    names = _only_names(words, task, "batch_pause <task>")
    if not names:
        raise ConfigurationError("no task is named; batch_drain pauses all tasks")
    return runtime_config.pause(names)


@_control_command("[task1 [... [taskN]]]")
def batch_resume(
    runtime_config: RuntimeConfig, words: Sequence[str] = (), task: str = ""
) -> dict[str, Any]:
    """Take messages of these tasks again; of all without a name, also after batch_drain."""
    names = _only_names(words, task, "batch_resume [task]")
    return runtime_config.resume(names)


@control_command()  # type: ignore[untyped-decorator]
@_replies
def batch_drain(runtime_config: RuntimeConfig) -> dict[str, Any]:
    """Stop taking any messages, give back waiting requests, and stay up."""
    return runtime_config.drain()


@_control_command("<task> [in_place] [wait=SECONDS]")
def batch_reload(
    runtime_config: RuntimeConfig, words: Sequence[str] = (), task: str = "", **how: Any
) -> Future[dict[str, Any]]:
    """Reload a task's model without losing a request; in_place where memory holds only one."""
    usage = "batch_reload <task> [in_place] [wait=SECONDS]"
    flags, known = {"in_place"}, {"in_place", "wait"}
    name, options = _one_task(words, task, how, usage, flags=flags, options=known)
    return runtime_config.reload(name, **options)


def _parse(words: Sequence[str], task: str) -> tuple[list[str], dict[str, Any]]:
    """Return the words that are names, the task's first, and the values by name."""
    names = [*([task] if task else []), *(word for word in words if "=" not in word)]
    pairs = (word.partition("=") for word in words if "=" in word)
    return names, {name: _value(value) for name, _, value in pairs}


def _only_names(words: Sequence[str], task: str, usage: str) -> list[str]:
    names, named = _parse(words, task)
    for name in named:
        raise _not_understood(f"{name}=", usage)
    return names


def _one_task(
    words: Sequence[str],
    task: str,
    given: Mapping[str, Any],
    usage: str,
    *,
    flags: Collection[str] = (),  # words that are no values: True
    options: Collection[str] | None = None,  # None for any
) -> tuple[str, dict[str, Any]]:
    """Return the only task that is named, and all values by name."""
    names, named = _parse(words, task)
    if not names:
        raise ConfigurationError(f"no task is named; write: {usage}")
    values = {**dict.fromkeys(names[1:], True), **named, **given}
    unknown = [name for name in names[1:] if name not in flags]
    unknown += [name for name in values if options is not None and name not in options]
    for word in unknown:
        raise _not_understood(word, usage)
    return names[0], values


def _not_understood(word: str, usage: str) -> ConfigurationError:
    return ConfigurationError(f"{word}: not understood; write: {usage}")


def _value(text: str) -> Any:
    """Return a number, None, a truth value, or the text itself."""
    if text.lower() in _CONSTANTS:
        return _CONSTANTS[text.lower()]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _with_quiet_revoke(revoke: _Command) -> _Command:
    """Add to Celery's command an option that spares two round trips for each of many tasks."""

    @wraps(revoke)
    def quiet_revoke(state: Any, task_id: Any, *args: Any, **options: Any) -> _Reply:
        if not options.pop(QUIETLY, False):
            return revoke(state, task_id, *args, **options)
        task_ids = maybe_list(task_id) or []
        revoked.update(task_ids)
        return {"ok": f"{len(task_ids)} tasks flagged as revoked"}

    return quiet_revoke


Panel.data["revoke"] = _with_quiet_revoke(Panel.data["revoke"])
