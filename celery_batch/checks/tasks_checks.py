"""Checks of options and settings of tasks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from celery_batch.checks.facts import PREFORK, Facts
from celery_batch.checks.finding import Finding, ok, problem, warning
from celery_batch.compat.fast_paths import PathState, states_in_words
from celery_batch.config import (
    milliseconds_warnings,
    policy_of,
    prefetch_warnings,
    steps_of,
    unread_settings,
    usual_messages,
)
from celery_batch.runtime.signature import key_names


def settings(facts: Facts) -> Iterator[Finding]:
    """What celery_batch itself refuses, and settings that are not read."""
    unread = unread_settings(facts.app)
    for key, name in unread.items():
        yield warning(f"{key} is not read as a setting.", f"Write {name}.")
    if facts.trouble:
        yield problem(facts.trouble, "Correct it: no worker starts like this.")
    elif not unread:
        yield ok("Every batch_* setting and task option is known and makes sense.")


def tasks(facts: Facts) -> Iterator[Finding]:
    """Whether the app has batch tasks, and whether others were meant to be some."""
    for text in facts.misplaced:
        yield _split(text)
    if facts.tasks:
        yield ok(f"Batch tasks: {', '.join(task.name for task in facts.tasks)}.")
    elif not facts.trouble:
        yield problem(
            "This app has no batch task.",
            "Decorate one with @app.task(base=BatchTask), and name its module in the app's"
            " include, or behind -A.",
        )


def _split(text: str) -> Finding:
    """Return a warning as workers log it."""
    says, fix = text.split("; ")
    return warning(f"{says}.", f"{fix[:1].upper()}{fix[1:]}.")


def policies(facts: Facts) -> Iterator[Finding]:
    """Waits in milliseconds or above the target, and tasks that are not batched."""
    for task in facts.tasks:
        policy = policy_of(task)
        for text in milliseconds_warnings(task.name, policy) if task.traces_items else ():
            yield _split(text)
        target = policy.target_latency
        if target is not None and target < policy.max_wait:
            yield warning(
                f"{task.name}: target_latency={target:g} is below max_wait={policy.max_wait:g},"
                " so that no request can wait for so long.",
                "Lower max_wait to a part of target_latency, or raise target_latency.",
            )
        if policy.max_batch_size == 1:
            yield ok(f"{task.name} has max_batch_size=1: it is not batched.")


def costs(facts: Facts) -> Iterator[Finding]:
    """Items that cost more than a batch or a length may, and costs that are all the same."""
    for task in facts.tasks:
        batch, item = task.max_batch_cost, task.max_item_cost
        if batch and item and item > batch:
            yield warning(
                f"{task.name}: an item may cost {item:g} (max_item_cost), and a batch {batch:g}"
                " (max_batch_cost): an item that costs more than a batch runs alone.",
                f"Raise max_batch_cost, or lower max_item_cost to {batch:g}.",
            )
        lengths = steps_of(task, "batch_lengths") if task.padded else ()
        shortest, longest = min(lengths, default=None), max(lengths, default=None)
        if shortest and batch and 2 * shortest > batch:
            yield warning(
                f"{task.name}: two rows cost at least {2 * shortest}, padded to the smallest of"
                f" batch_lengths, and a batch {batch:g} (max_batch_cost): each has one row.",
                "Raise max_batch_cost, or add a smaller length.",
            )
        if longest and item and item > longest:
            yield warning(
                f"{task.name}: an item may cost {item:g} (max_item_cost), and the largest of"
                f" batch_lengths is {longest}: a longer item is padded to none of them.",
                f"Lower max_item_cost to {longest}, or add a larger length.",
            )
        cost, keys = (_own_or_model_s(task, option) for option in ("cost", "batch_by"))
        if (batch or item) and isinstance(cost, str) and cost in key_names(keys):
            yield warning(
                f"{task.name}: cost and batch_by both name {cost}: all items of a batch have the"
                " same cost.",
                "Name the parameter whose length differs in cost, or give a function.",
            )


def _own_or_model_s(task: Any, option: str) -> Any:
    own = getattr(task, option)
    return getattr(task.model, option, None) if own is None else own


#: How reasons begin for which a fast path is off as it should be, or of which other checks speak.
_AS_MEANT = ("this worker may have", "the pool is", "results are in", "the broker is")

#: Reasons of those who watch tasks, in a worker's words and of a setting; and what that costs.
_EVENTS = ("task events are on", "worker_send_task_events is on")
_PRICE = "Flower needs them; they cost three messages for each item."


def fast_paths(facts: Facts) -> Iterator[Finding]:
    """What is done by Celery's own, slower code."""
    if facts.fast_paths:
        yield _paths("Fast paths by the settings here", facts.fast_paths)
    by_states: dict[tuple[PathState, ...], list[str]] = {}
    for worker in facts.workers or ():
        by_states.setdefault(worker.fast_paths, []).append(worker.name)
    for states, names in by_states.items():
        if states:
            yield _paths(f"Fast paths of {', '.join(names)}", states)


def _paths(what: str, states: Sequence[PathState]) -> Finding:
    off = [state for state in states if state.reason and not state.reason.startswith(_AS_MEANT)]
    if not off:
        return ok(f"{what}: {states_in_words(states)}.")
    if all(state.reason in _EVENTS for state in off):
        return ok(f"{what}: {states_in_words(off)}. {_PRICE}")
    fix = (
        "Leave out what is named, unless you need it, and install releases that are tested:"
        " Celery's own code does the same, and takes longer."
    )
    return warning(f"{what}: {states_in_words(off)}.", fix)


def eager(facts: Facts) -> Iterator[Finding]:
    """Calls that run in the calling process."""
    if facts.conf.task_always_eager:
        yield problem(
            "task_always_eager is on: calls run in the calling process, one by one.",
            "Leave the setting to tests.",
        )


def prefetch(facts: Facts) -> Iterator[Finding]:
    """How many messages a worker may hold, which limits the size of batches."""
    if not facts.tasks:
        return
    held = sum(usual_messages(task, policy_of(task)) for task in facts.tasks)
    most = f"Each pool process may hold {held} messages, as many as its batches can use."
    yield from list(_held_back(facts, held)) or [ok(most)]
    yield from _held_too(facts)


def _held_too(facts: Facts) -> Iterator[Finding]:
    """Name ordinary tasks in queues of batch tasks, and how many of them a worker holds."""
    names = facts.ordinary
    if not names:
        return
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    shared = f"Ordinary tasks share a queue with batch tasks ({', '.join(names[:_NAMED])}{more})"
    if facts.bulk and facts.broker.kind == "redis":
        yield ok(f"{shared}: {_most_ordinary(facts.conf)}")
        return
    yield ok(
        f"{shared}: a worker holds as many of their messages, unless they have a queue and a worker"
        " of their own (task_routes, -Q)."
    )


def _most_ordinary(conf: Any) -> str:
    """Say how many ordinary tasks a worker holds where messages are read in bulk on Redis."""
    if conf.get("worker_disable_prefetch"):
        most = "only those of them that run or wait for a rate limit"
    elif conf.worker_prefetch_multiplier == 0:
        return (
            "a worker holds any number of them, because worker_prefetch_multiplier is 0, unless"
            " they have a queue and a worker of their own (task_routes, -Q)."
        )
    else:
        most = "as many of them as worker_prefetch_multiplier allows"
    return (
        f"a worker holds {most}, and batch tasks behind more of them in the queue wait, unless"
        " these have a queue of their own (task_routes)."
    )


#: How many tasks a finding names.
_NAMED = 3


def _held_back(facts: Facts, held: int) -> Iterator[Finding]:
    conf = facts.conf
    processes = 1 if facts.pool == "solo" else conf.worker_concurrency or facts.machine.cpus
    messages = held * processes
    for text in prefetch_warnings(facts.app, conf.worker_prefetch_multiplier, messages):
        yield _split(text)
    if conf.get("worker_disable_prefetch") and facts.broker.kind == "redis":
        yield warning(
            "worker_disable_prefetch is set: each pool process holds two batches of each task"
            " instead of three.",
            "Leave the setting out; on Redis a batch task never takes more than it can use.",
        )


def limits(facts: Facts) -> Iterator[Finding]:
    """Time limits: they are for a whole batch."""
    for task in facts.tasks:
        soft, hard = task.soft_time_limit, task.time_limit
        if soft and hard and soft >= hard:
            yield warning(
                f"{task.name} has soft_time_limit={soft:g}, which is not below"
                f" time_limit={hard:g}: the process is ended before the soft limit can strike.",
                "Make the soft limit some seconds shorter.",
            )
        if (soft or hard) and facts.pool not in PREFORK:
            yield warning(
                f"{task.name} has a time limit, which the {facts.pool} pool ignores.",
                "Use the prefork pool where limits are to count.",
            )
        elif soft or hard:
            limit, size = min(each for each in (soft, hard) if each), policy_of(task).max_batch_size
            yield ok(
                f"{task.name}: {limit:g} s are for a whole batch of up to {size},"
                f" {limit / size:.2g} s a row."
            )


def acks(facts: Facts) -> Iterator[Finding]:
    """Whether a killed worker loses messages."""
    # A task of celery-batches is acknowledged early unless its author says otherwise, as there.
    early = [task for task in facts.tasks if not task.acks_late and task.traces_items]
    for task in early:
        yield warning(
            f"{task.name} has acks_late=False: a worker that is killed loses the batch it runs.",
            "Leave the option out, if running an item twice on a bad day is better than never.",
        )
    if facts.tasks and all(task.acks_late for task in facts.tasks):
        yield ok("Messages are acknowledged after their results are stored.")


def rates(facts: Facts) -> Iterator[Finding]:
    """Celery's rate limits, which count requests."""
    for task in facts.tasks:
        if task.rate_limit:
            yield warning(
                f"{task.name} has rate_limit={task.rate_limit}, which counts requests, not"
                " batches.",
                "Multiply it by the batch size that you want, or leave it out.",
            )
