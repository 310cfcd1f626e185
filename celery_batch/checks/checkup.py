"""All checks, in the order in which they are reported."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from inspect import isfunction
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

#: The public functions of the modules of checks, in the order in which they are defined.
CHECKS: tuple[Check, ...] = tuple(
    check
    for module in (tasks_checks, machine_checks, broker_checks, results_checks, workers_checks)
    for name, check in vars(module).items()
    if isfunction(check) and check.__module__ == module.__name__ and not name.startswith("_")
)


def checkup(facts: Facts) -> Iterator[tuple[str, Finding]]:
    """Yield what each check finds, with the name of its function."""
    for check in CHECKS:
        for finding in check(facts):
            yield check.__name__, finding


def worst(findings: Iterable[Finding]) -> Level:
    """Return the worst level among some findings; *ok* if there are none."""
    order = list(Level)
    return max((finding.level for finding in findings), key=order.index, default=Level.OK)
