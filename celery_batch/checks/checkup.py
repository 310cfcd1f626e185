"""All checks, in the order in which they are reported."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeAlias

from celery_batch.checks import (
    broker_checks,
    machine_checks,
    results_checks,
    tasks_checks,
    workers_checks,
)
from celery_batch.checks.facts import Facts
from celery_batch.checks.finding import Finding, Level

__all__ = ["CHECKS", "checkup", "worst"]

Check: TypeAlias = Callable[[Facts], Iterator[Finding]]

#: The name of a check is that of its function.
CHECKS: tuple[Check, ...] = (
    tasks_checks.settings,
    tasks_checks.tasks,
    tasks_checks.policies,
    tasks_checks.eager,
    tasks_checks.prefetch,
    tasks_checks.limits,
    tasks_checks.acks,
    tasks_checks.rates,
    machine_checks.pool,
    machine_checks.replacing,
    machine_checks.gpu,
    machine_checks.devices,
    broker_checks.broker,
    broker_checks.eviction,
    broker_checks.persistence,
    broker_checks.visibility,
    broker_checks.priorities,
    broker_checks.confirms,
    broker_checks.options,
    broker_checks.clock,
    results_checks.results,
    results_checks.expiry,
    results_checks.serializers,
    workers_checks.serving,
    workers_checks.unrouted,
    workers_checks.pools,
    workers_checks.sharing,
    workers_checks.holding,
    workers_checks.alike,
    workers_checks.filling,
    workers_checks.slowness,
    workers_checks.halted,
    workers_checks.health,
)


def checkup(facts: Facts) -> Iterator[tuple[str, Finding]]:
    """Yield the name of each check with what it has found."""
    for check in CHECKS:
        for finding in check(facts):
            yield check.__name__, finding


def worst(findings: Iterable[Finding]) -> Level:
    """Return the worst level among some findings; *ok* if there are none."""
    order = list(Level)
    return max((finding.level for finding in findings), key=order.index, default=Level.OK)
