"""Checks of running workers."""

from __future__ import annotations

from collections.abc import Iterator

from celery_batch.checks.facts import Facts, Task, Worker
from celery_batch.checks.finding import Finding, ok, problem, warning

__all__ = [
    "alike",
    "filling",
    "halted",
    "health",
    "holding",
    "pools",
    "serving",
    "sharing",
    "slowness",
    "unrouted",
]

#: Batches after which an average says something.
_ENOUGH = 5

#: The share of a time limit above which a batch is near it.
_NEAR = 0.5


def serving(facts: Facts) -> Iterator[Finding]:
    """Whether somebody is there for each batch task."""
    if facts.workers is None:
        if facts.unasked:
            yield problem(
                f"The workers could not be asked: {facts.unasked}",
                "Run the check as a user who may send remote control commands (docs/security.md:"
                " the worker's rules), and see that worker_enable_remote_control is on.",
            )
        return
    if not facts.workers:
        if facts.tasks:
            yield warning(
                "No worker answers: what is sent now waits.",
                "Start one: celery -A APP worker --concurrency=1",
            )
        return
    yield from _troubled(facts.workers)
    silent = [worker.name for worker in facts.workers if not (worker.has_told or worker.error)]
    for task in facts.tasks:
        served = [worker.name for worker in facts.workers if task.name in worker.task_stats]
        if served:
            yield ok(f"{task.name} is served by {', '.join(served)}.")
        elif all(worker.has_told for worker in facts.workers):
            waiting = facts.depths.get(task.queue)
            depth = "" if waiting is None else f", where {waiting:,} messages wait"
            yield problem(
                f"No worker that answers serves {task.name}: none reads queue {task.queue} for"
                f" it{depth}.",
                f"Start one that consumes it: celery -A APP worker -Q {task.queue}",
            )
        elif silent:
            yield warning(
                f"Nobody who has answered serves {task.name}, and {', '.join(silent)} did not say"
                " in time what it serves.",
                "Check again: a worker on the solo pool reads no messages while a batch runs."
                " Its log says what else keeps it.",
            )
        yield from _discarding(task, facts.workers)


def _troubled(workers: tuple[Worker, ...]) -> Iterator[Finding]:
    """Name who answers with an error."""
    for worker in workers:
        if worker.error:
            yield problem(
                f"{worker.name} could not say what it serves: {worker.error}.",
                "Look into its log, and restart it with the version of celery_batch that runs"
                " here.",
            )


def _discarding(task: Task, workers: tuple[Worker, ...]) -> Iterator[Finding]:
    """Name who takes a task's messages and cannot run them: Celery throws such away."""
    for worker in workers:
        if worker.queues is None or worker.knows is None:
            continue
        if task.queue in worker.queues and task.name not in worker.knows:
            yield problem(
                f"{worker.name} consumes queue {task.queue} and does not know {task.name}: it"
                f" discards each message of it that it gets.",
                f"Restart it with an app that has the task, or give {task.name} a queue of its"
                f" own (task_routes).",
            )


def unrouted(facts: Facts) -> Iterator[Finding]:
    """Whether workers get batch tasks, or wait for them, that are not routed to their queues."""
    names = {task.name for task in facts.tasks}
    fix = "Route the task to the worker's queue (task_routes), and restart the worker."
    for worker in facts.workers or ():
        late = [name for name, stats in worker.task_stats.items() if not stats.routed]
        queues = sorted((worker.queues or frozenset()) - (facts.routed or frozenset()))
        if late:
            yield warning(
                f"{worker.name} was sent {', '.join(late)} by the name of a queue that no route"
                " names for it: a model is not loaded there until its first request.",
                fix,
            )
        elif facts.routed is not None and queues and names & (worker.knows or frozenset()):
            yield warning(
                f"{worker.name} consumes {', '.join(queues)}, to which no task is routed: a batch"
                " task that is sent there by the queue's name finds no model loaded.",
                fix,
            )


def pools(facts: Facts) -> Iterator[Finding]:
    """On which pools they run, whatever the settings say."""
    for worker in facts.workers or ():
        name = worker.pool.rpartition(".")[2] or worker.pool
        if worker.task_stats and any(kind in worker.pool for kind in ("gevent", "eventlet")):
            yield problem(
                f"{worker.name} runs on the {name} pool, where a model blocks the worker.",
                "Start it without --pool.",
            )
        if worker.task_stats and worker.max_tasks_per_child:
            yield warning(
                f"{worker.name} replaces a process after {worker.max_tasks_per_child} batches,"
                " and loads its model again.",
                "Start it without --max-tasks-per-child.",
            )


def alike(facts: Facts) -> Iterator[Finding]:
    """Whether all workers run the same versions and policies."""
    workers = tuple(worker for worker in facts.workers or () if worker.task_stats)
    versions = {worker.version for worker in workers} | {facts.version}
    if len(versions) > 1:
        told = ", ".join(f"{worker.name} {worker.version or '(unknown)'}" for worker in workers)
        yield warning(
            f"Versions of celery_batch differ: {told}; here it is {facts.version}.",
            "Update and restart the workers that are behind, one by one.",
        )
    for task in facts.tasks:
        yield from _alike(task, workers)


def _forks(worker: Worker) -> bool:
    return worker.pool.endswith("prefork")


def _alike(task: Task, workers: tuple[Worker, ...]) -> Iterator[Finding]:
    ours = (task.max_batch_size, task.max_wait)
    for worker in workers:
        stats = worker.task_stats.get(task.name)
        if stats is None or (stats.max_batch_size, stats.max_wait) == ours:
            continue
        says = (
            f"{worker.name} runs {task.name} with max_batch_size={stats.max_batch_size} and"
            f" max_wait={stats.max_wait:g}; the app says {ours[0]} and {ours[1]:g}"
        )
        if stats.steered:
            yield ok(f"{says}: it was told so by batch_config, until it is restarted.")
        else:
            yield warning(f"{says}.", "Restart it, so that it reads its settings anew.")


def filling(facts: Facts) -> Iterator[Finding]:
    """Whether batches stay small while many wait."""
    for task in facts.tasks:
        waiting = facts.depths.get(task.queue, 0)
        for worker in facts.workers or ():
            stats = worker.task_stats.get(task.name)
            if stats is None or stats.batches < _ENOUGH or waiting <= 2 * stats.max_batch_size:
                continue
            average = stats.rows / stats.batches
            if average < stats.max_batch_size / 2:
                yield warning(
                    f"{worker.name}: batches of {task.name} have {average:.1f} rows of"
                    f" {stats.max_batch_size} on average, while {waiting:,} messages wait.",
                    "Look at the warnings above: prefetch, limits and memory keep batches small;"
                    " celery batch top shows what they are over time.",
                )


def slowness(facts: Facts) -> Iterator[Finding]:
    """Whether batches come near the time limits of their tasks."""
    limits = {
        task.name: min(each for each in (task.soft_time_limit, task.time_limit) if each)
        for task in facts.tasks
        if task.soft_time_limit or task.time_limit
    }
    for worker in facts.workers or ():
        for name, stats in worker.task_stats.items():
            limit = limits.get(name)
            if limit is not None and stats.model is not None and stats.model > _NEAR * limit:
                yield warning(
                    f"{worker.name}: one in a hundred batches of {name} takes {stats.model:.2g} s"
                    f" or more, and the time limit, which is for the whole batch, is {limit:g} s.",
                    "Raise the limit, or lower max_batch_size.",
                )


def sharing(facts: Facts) -> Iterator[Finding]:
    """Whether pool processes share a GPU."""
    for worker in facts.workers or ():
        gpus = [name for name in worker.devices if name.startswith("cuda")]
        if worker.task_stats and gpus and (worker.processes or 1) > len(gpus) and _forks(worker):
            yield warning(
                f"{worker.name} runs {worker.processes} processes on {', '.join(gpus)}, each with"
                " its own copy of the models.",
                f"Start it with --concurrency={len(gpus)}.",
            )


def holding(facts: Facts) -> Iterator[Finding]:
    """Whether a worker may hold as many messages as fit into its batches."""
    for worker in facts.workers or ():
        most = sum(stats.max_batch_size for stats in worker.task_stats.values())
        wanted = most * (worker.processes or 1)
        if worker.prefetch and worker.prefetch < wanted:
            yield warning(
                f"{worker.name} may hold {worker.prefetch} messages, fewer than the {wanted} rows"
                " that its batches have room for.",
                "Restart it: the prefetch is set at the start.",
            )


def halted(facts: Facts) -> Iterator[Finding]:
    """Whether an operator has told workers not to run a task."""
    for worker in facts.workers or ():
        for name, stats in worker.task_stats.items():
            if stats.halted:
                yield warning(
                    f"{worker.name} was told not to run {name} for now.",
                    f"celery -A APP control batch_resume {name}",
                )


def health(facts: Facts) -> Iterator[Finding]:
    """Whether memory has run out, or processes have died."""
    for worker in facts.workers or ():
        for name, stats in worker.task_stats.items():
            if stats.safe_size is not None and stats.safe_size < stats.max_batch_size:
                yield warning(
                    f"{worker.name}: a batch of {name} ran out of memory; {stats.safe_size} rows"
                    f" fit, of {stats.max_batch_size}.",
                    f"Lower max_batch_size to {stats.safe_size}, or shorten inputs.",
                )
            if stats.losses:
                yield warning(
                    f"{worker.name}: a process of {name} has died {stats.losses} times.",
                    "Its log says how; batch_dead_letter_queue keeps the items at fault.",
                )
