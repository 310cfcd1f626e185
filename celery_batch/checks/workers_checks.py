"""Checks of running workers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from celery_batch.batching.policy import BatchPolicy
from celery_batch.checks.facts import Facts, Worker
from celery_batch.checks.finding import Finding, ok, problem, warning
from celery_batch.cluster.state import grown, reports_of
from celery_batch.config import policy_of

#: Batches after which an average says something.
_ENOUGH = 5

#: Padded cost for each unit of cost, where rows do not differ in length.
_ALIKE = 1.001

#: The share of a time limit above which a batch is near it.
_NEAR = 0.5


def serving(facts: Facts) -> Iterator[Finding]:
    """Whether a worker serves each batch task."""
    if facts.unasked:
        yield problem(
            f"The workers could not be asked: {facts.unasked}",
            "Run the check as a user who may send remote control commands (page Security"
            " of the documentation), and see that worker_enable_remote_control is on.",
        )
    elif facts.workers:
        yield from _served(facts, facts.workers)
    elif facts.tasks and facts.workers is not None:
        yield warning(
            "No worker replies: calls wait in the broker.",
            f"Start one: celery -A APP worker --concurrency=1 -Q {_queues(facts)}",
        )


def _queues(facts: Facts) -> str:
    return ",".join(sorted({facts.queues[task.name] for task in facts.tasks}))


def _served(facts: Facts, workers: tuple[Worker, ...]) -> Iterator[Finding]:
    for worker in workers:
        if worker.error:
            yield problem(
                f"{worker.name} could not say what it serves: {worker.error}.",
                "Look into its log, and restart it with the version of celery_batch that runs"
                " here.",
            )
        yield from _without_batches(facts, worker)
    # Workers of another app may share the broker, before the first of this one starts.
    known = [worker.knows for worker in workers]
    is_started = None in known or any(each & facts.queues.keys() for each in known if each)
    waiting_for = [each.name for each in workers if not (each.has_answered or each.error)]
    for task in facts.tasks:
        queue = facts.queues[task.name]
        served = [worker.name for worker in workers if task.name in worker.tasks]
        if served:
            yield ok(f"{task.name} is served by {', '.join(served)}.")
        elif any(task.name in _run_elsewise(facts, worker) for worker in workers):
            pass  # which is said above
        elif all(worker.has_answered for worker in workers):
            waiting = facts.depths.get(queue)
            wait = "message waits" if waiting == 1 else "messages wait"
            depth = "" if waiting is None else f", where {waiting:,} {wait}"
            has_none_yet = not (is_started or waiting)
            yield (warning if has_none_yet else problem)(
                f"No worker that answers serves {task.name}: none reads queue {queue} for"
                f" it{depth}.",
                f"Start one that consumes it: celery -A APP worker -Q {queue}",
            )
        elif waiting_for:
            yield warning(
                f"No worker that has answered serves {task.name}, and {', '.join(waiting_for)} did"
                " not say in time what it serves.",
                "Check again: a worker on the solo pool reads no messages while a batch runs."
                " Its log says what else keeps it.",
            )
        yield from _discarding(task.name, queue, workers)


def _run_elsewise(facts: Facts, worker: Worker) -> list[str]:
    """Return the batch tasks that a worker without celery_batch gets and knows."""
    if worker.runs_batches or worker.error or not worker.queues or not worker.knows:
        return []
    return [
        name
        for name, queue in facts.queues.items()
        if queue in worker.queues and name in worker.knows
    ]


def _without_batches(facts: Facts, worker: Worker) -> Iterator[Finding]:
    """Name what a worker does that runs another version of the app, without celery_batch."""
    names = _run_elsewise(facts, worker)
    flushed = [name for name in names if name in worker.flushes]
    single = [name for name in names if name not in worker.flushes]
    for tasks, how in ((single, "one by one"), (flushed, "in batches of celery-batches")):
        if tasks:
            yield warning(
                f"{worker.name} runs no celery_batch: it runs {', '.join(tasks)} {how}.",
                "Once workers of this app serve the queue, stop it, or restart it with this app.",
            )


def _discarding(task: str, queue: str, workers: tuple[Worker, ...]) -> Iterator[Finding]:
    """Name workers that take a task's messages and cannot run them: Celery discards these."""
    for worker in workers:
        if worker.queues is None or worker.knows is None:
            continue
        if queue in worker.queues and task not in worker.knows:
            yield problem(
                f"{worker.name} consumes queue {queue} and does not know {task}: it"
                f" discards each message of it that it gets.",
                f"Restart it with an app that has the task, or give {task} a queue of its"
                f" own (task_routes).",
            )


def unrouted(facts: Facts) -> Iterator[Finding]:
    """Whether workers get batch tasks, or wait for them, that are not routed to their queues."""
    names = {task.name for task in facts.tasks if task.model is not None}
    fix = "Route the task to the worker's queue (task_routes), and restart the worker."
    for worker in facts.workers or ():
        reports = worker.tasks.items()
        late = [name for name, each in reports if name in names and not each.get("routed", True)]
        queues = sorted((worker.queues or frozenset()) - (facts.routed or frozenset()))
        if late:
            yield warning(
                f"{worker.name} received {', '.join(late)} from a queue to which it is not routed:"
                " a model is loaded with the first request, and not before.",
                fix,
            )
        elif not worker.runs_batches or facts.routed is None:
            continue
        elif queues and names & (worker.knows or frozenset()):
            yield warning(
                f"{worker.name} consumes {', '.join(queues)}, to which no task is routed: a model"
                " is loaded with the first request that is sent there, and not before.",
                fix,
            )


def pools(facts: Facts) -> Iterator[Finding]:
    """On which pools they run, whatever the settings say."""
    for worker in _serving(facts):
        module, per_child = worker.pool_module, worker.pool.get("max-tasks-per-child")
        if any(kind in module for kind in ("gevent", "eventlet")):
            yield problem(
                f"{worker.name} runs on the {module.rpartition('.')[2]} pool, where a batch blocks"
                " the worker.",
                "Start it without --pool.",
            )
        if per_child and isinstance(per_child, int):  # Celery writes "N/A" for none
            yield warning(
                f"{worker.name} replaces a process after {per_child} batches,"
                " and loads any model again.",
                "Start it without --max-tasks-per-child.",
            )


#: The share of results above which too many miss the latency target, which is for 99 of 100.
_LATE = 0.01


def _serving(facts: Facts) -> list[Worker]:
    return [worker for worker in facts.workers or () if worker.tasks]


def _reports(facts: Facts) -> Iterator[tuple[Worker, str, Mapping[str, Any]]]:
    """Yield what each worker reports of each batch task that it serves."""
    for worker in facts.workers or ():
        for name, report in worker.tasks.items():
            yield worker, name, report


def sharing(facts: Facts) -> Iterator[Finding]:
    """Whether pool processes share a GPU."""
    for worker in _serving(facts):
        devices = worker.batch_stats.get("devices") or ()
        gpus = [name for name in devices if name.startswith("cuda")]
        processes = worker.pool.get("max-concurrency") or 1
        if gpus and processes > len(gpus) and worker.pool_module.endswith("prefork"):
            yield warning(
                f"{worker.name} runs {processes} processes on {', '.join(gpus)}, each with"
                " its own copy of any model.",
                f"Start it with --concurrency={len(gpus)}.",
            )


def holding(facts: Facts) -> Iterator[Finding]:
    """Whether a worker may hold as many messages as fit into its batches."""
    for worker in facts.workers or ():
        most = sum(map(_usual_rows, worker.tasks.values()))
        wanted = most * (worker.pool.get("max-concurrency") or 1)
        prefetch = worker.stats.get("prefetch_count")
        if prefetch and prefetch < wanted:
            yield warning(
                f"{worker.name} may hold {prefetch} messages, fewer than the {wanted} rows"
                " that its batches have room for.",
                "Restart it: the prefetch is set at the start.",
            )


def _usual_rows(report: Mapping[str, Any]) -> int:
    cost = report.get("max_batch_cost")
    return BatchPolicy(report["max_batch_size"], max_batch_cost=cost).usual_rows


def alike(facts: Facts) -> Iterator[Finding]:
    """Whether all workers run the same versions and policies."""
    workers = _serving(facts)
    versions = {worker.name: str(worker.stats.get("celery_batch", "")) for worker in workers}
    if {*versions.values()} - {facts.version}:
        listed = ", ".join(f"{name} {found or '(unknown)'}" for name, found in versions.items())
        yield warning(
            f"Versions of celery_batch differ: {listed}; here it is {facts.version}.",
            "Update and restart the workers that are behind, one by one.",
        )
    for task in facts.tasks:
        yield from _alike(task, workers)


def _alike(task: Any, workers: list[Worker]) -> Iterator[Finding]:
    policy = policy_of(task)
    for worker in workers:
        report = worker.tasks.get(task.name)
        if report is None:
            continue
        size, wait = report["max_batch_size"], report["max_wait"]
        if (size, wait) == (policy.max_batch_size, policy.max_wait):
            continue
        says = (
            f"{worker.name} runs {task.name} with max_batch_size={size} and max_wait={wait:g};"
            f" the app says {policy.max_batch_size} and {policy.max_wait:g}"
        )
        if report.get("task_says"):
            yield ok(f"{says}: it was set by batch_config, until the worker is restarted.")
        else:
            yield warning(f"{says}.", "Restart it, so that it reads its settings anew.")


def filling(facts: Facts) -> Iterator[Finding]:
    """Whether batches stay small while many wait."""
    for task in facts.tasks:
        waiting = facts.depths.get(facts.queues[task.name], 0)
        for worker in facts.workers or ():
            if (report := worker.tasks.get(task.name)) is None:
                continue
            before = reports_of(worker.earlier).get(task.name, report)
            lately = grown(before, report)
            if lately.batches < _ENOUGH or waiting <= 2 * _usual_rows(report):
                continue
            most, average = report["max_batch_size"], lately.rows / lately.batches
            use = f"have {average:.1f} rows of {most}"
            if cost := report.get("max_batch_cost"):
                average = (report["padded_cost"] - before.get("padded_cost", 0.0)) / lately.batches
                most, use = cost, f"cost {average:.0f} of {cost:g}"
            if average < most / 2:
                yield warning(
                    f"{worker.name}: batches of {task.name} {use} on average, while"
                    f" {waiting:,} messages wait.",
                    "Look at the warnings above: prefetch, limits and memory keep batches small;"
                    " celery batch top shows what they are over time.",
                )


def budgets(facts: Facts) -> Iterator[Finding]:
    """Whether limits in cost fit what items cost."""
    for worker, name, report in _reports(facts):
        if "max_batch_cost" in report:
            yield from _budget(worker.name, name, report)


def _budget(worker: str, name: str, report: Mapping[str, Any]) -> Iterator[Finding]:
    calls, rows, most = report["model_calls"], report["rows"], report["max_batch_cost"]
    failed, cost = (report.get("outcomes") or {}).get("failed", 0), report["cost"]
    if failed >= _ENOUGH and not calls:
        yield warning(
            f"{worker}: all {failed} requests of {name} failed before its model was called: they"
            " cost more than max_item_cost, or their cost cannot be computed.",
            "Their errors say which: raise max_item_cost, or correct the cost function.",
        )
    if calls < _ENOUGH:
        return
    if cost / rows > most / 2 and rows < 2 * calls:
        yield warning(
            f"{worker}: batches of {name} have {rows / calls:.1f} rows: one costs {cost / rows:.0f}"
            f" on average, and max_batch_cost is {most:g}.",
            "Raise max_batch_cost to what several rows cost.",
        )
    if report["padded"] and rows > 2 * calls and report["padded_cost"] < _ALIKE * cost:
        yield ok(
            f"{worker}: all rows of {name} cost the same, so padded and sort_window do nothing."
        )


def slowness(facts: Facts) -> Iterator[Finding]:
    """Whether batches come near the time limits of their tasks."""
    limits = {
        task.name: min(each for each in (task.soft_time_limit, task.time_limit) if each)
        for task in facts.tasks
        if task.soft_time_limit or task.time_limit
    }
    for worker, name, report in _reports(facts):
        limit, seconds = limits.get(name), (report.get("model") or {}).get("p99")
        if limit is not None and seconds is not None and seconds > _NEAR * limit:
            yield warning(
                f"{worker.name}: one in a hundred batches of {name} takes {seconds:.2g} s"
                f" or more, and the time limit, which is for the whole batch, is {limit:g} s.",
                "Raise the limit, or lower max_batch_size.",
            )


def shedding(facts: Facts) -> Iterator[Finding]:
    """Whether workers refuse requests that would be late, or answer some late."""
    for worker, name, report in _reports(facts):
        if (target := report.get("target_latency")) is None:
            continue
        lately = grown(reports_of(worker.earlier).get(name, report), report)
        refused, late = lately.targets["refused"], lately.late or 0.0
        results = lately.targets["in_time"] + lately.targets["late"]
        says = (
            f"{worker.name}: in the last seconds {refused} requests of {name} were refused, and"
            f" {late:.0%} of {results} results came later than {target:g} s."
        )
        if refused or (late > _LATE and results >= _ENOUGH):
            yield warning(says, "Add workers, send less, or raise target_latency.")
        else:
            yield ok(says)


def halted(facts: Facts) -> Iterator[Finding]:
    """Whether an operator has paused or drained a task."""
    for worker, name, report in _reports(facts):
        if report.get("paused") or report.get("drained"):
            yield warning(
                f"{worker.name} does not run {name} for now: it was paused or drained.",
                f"celery -A APP control batch_resume {name}",
            )


def health(facts: Facts) -> Iterator[Finding]:
    """Whether memory has run out, or processes have died."""
    for worker, name, report in _reports(facts):
        option = "max_batch_cost" if "max_batch_cost" in report else "max_batch_size"
        fits, size = report.get("safe_size"), report[option]
        if fits is not None and fits < size:
            unit = "rows" if option == "max_batch_size" else "in cost"
            yield warning(
                f"{worker.name}: a batch of {name} ran out of memory; {fits} {unit} fit,"
                f" of {size}.",
                f"Lower {option} to {fits}, or shorten inputs.",
            )
        if losses := report.get("worker_losses"):
            yield warning(
                f"{worker.name}: a process of {name} has died {losses} time{'s' * (losses != 1)}.",
                "Its log says how; batch_dead_letter_queue keeps the items at fault.",
            )
