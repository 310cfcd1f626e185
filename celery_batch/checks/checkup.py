"""All checks, in the order in which they are reported."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from inspect import isfunction
from typing import TypeAlias

from celery_batch.checks import (
    broker_checks,
    machine_checks,
    payloads_checks,
    results_checks,
    tasks_checks,
    workers_checks,
)
from celery_batch.checks.facts import Facts
from celery_batch.checks.finding import Finding

__all__ = ["CHECKS", "checkup"]

Check: TypeAlias = Callable[[Facts], Iterator[Finding]]

#: The public functions of the modules of checks, in the order in which they are defined.
CHECKS: tuple[Check, ...] = tuple(
    check
    for module in (
        tasks_checks,
        machine_checks,
        broker_checks,
        results_checks,
        payloads_checks,
        workers_checks,
    )
    for name, check in vars(module).items()
    if isfunction(check) and check.__module__ == module.__name__ and not name.startswith("_")
)


def checkup(facts: Facts) -> Iterator[tuple[str, Finding]]:
    """Yield what each check finds, with the name of its function."""
    for check in CHECKS:
        for finding in check(facts):
            yield check.__name__, finding
