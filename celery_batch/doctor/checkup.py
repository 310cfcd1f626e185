"""All checks, in the order in which they are told."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeAlias

from celery_batch.doctor import of_broker, of_machine, of_results, of_tasks, of_workers
from celery_batch.doctor.facts import Facts
from celery_batch.doctor.finding import Finding, Level

__all__ = ["CHECKS", "checkup", "worst"]

Check: TypeAlias = Callable[[Facts], Iterator[Finding]]

#: A check is called by its function's name.
CHECKS: tuple[Check, ...] = (
    of_tasks.settings,
    of_tasks.tasks,
    of_tasks.policies,
    of_tasks.eager,
    of_tasks.prefetch,
    of_tasks.limits,
    of_tasks.acks,
    of_tasks.rates,
    of_machine.pool,
    of_machine.replacing,
    of_machine.gpu,
    of_machine.devices,
    of_broker.broker,
    of_broker.eviction,
    of_broker.persistence,
    of_broker.visibility,
    of_broker.priorities,
    of_broker.confirms,
    of_broker.options,
    of_broker.clock,
    of_results.results,
    of_results.expiry,
    of_results.serializers,
    of_workers.serving,
    of_workers.unrouted,
    of_workers.pools,
    of_workers.sharing,
    of_workers.holding,
    of_workers.alike,
    of_workers.filling,
    of_workers.slowness,
    of_workers.halted,
    of_workers.health,
)


def checkup(facts: Facts) -> Iterator[tuple[str, Finding]]:
    """
    Yield what each check has found, beside its name.

    Args:
        facts: What is known.
    """
    for check in CHECKS:
        for finding in check(facts):
            yield check.__name__, finding


def worst(findings: Iterable[Finding]) -> Level:
    """Return the worst level among some findings; *ok* if there are none."""
    order = list(Level)
    return max((finding.level for finding in findings), key=order.index, default=Level.OK)
