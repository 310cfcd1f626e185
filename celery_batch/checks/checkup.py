"""All checks, in the order in which they are reported."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TypeAlias

from celery_batch.checks import (
    broker_checks,
    machine_checks,
    results_checks,
    tasks_checks,
    workers_checks,
)
from celery_batch.checks.facts import Facts
from celery_batch.checks.finding import Finding

__all__ = ["CHECKS", "checkup"]

Check: TypeAlias = Callable[[Facts], Iterator[Finding]]

#: Each check by its id, in the order in which they run.  Scripts know the ids: they never change.
CHECKS: Mapping[str, Check] = {
    "settings": tasks_checks.settings,
    "tasks": tasks_checks.tasks,
    "batch-policy": tasks_checks.policies,
    "item-cost": tasks_checks.costs,
    "fast-paths": tasks_checks.fast_paths,
    "eager-calls": tasks_checks.eager,
    "prefetch": tasks_checks.prefetch,
    "time-limits": tasks_checks.limits,
    "late-acks": tasks_checks.acks,
    "rate-limits": tasks_checks.rates,
    "pool": machine_checks.pool,
    "process-replacement": machine_checks.replacing,
    "gpu": machine_checks.gpu,
    "devices": machine_checks.devices,
    "broker": broker_checks.broker,
    "redis-eviction": broker_checks.eviction,
    "redis-persistence": broker_checks.persistence,
    "visibility-timeout": broker_checks.visibility,
    "priorities": broker_checks.priorities,
    "delivery-limit": broker_checks.deliveries,
    "publisher-confirms": broker_checks.confirms,
    "transport-options": broker_checks.options,
    "broker-clock": broker_checks.clock,
    "result-backend": results_checks.results,
    "result-expiry": results_checks.expiry,
    "cache": results_checks.caches,
    "serializers": results_checks.serializers,
    "payload-store": results_checks.payloads,
    "serving": workers_checks.serving,
    "unrouted-queues": workers_checks.unrouted,
    "worker-pool": workers_checks.pools,
    "worker-devices": workers_checks.sharing,
    "worker-prefetch": workers_checks.holding,
    "worker-versions": workers_checks.alike,
    "batch-size": workers_checks.filling,
    "batch-cost": workers_checks.budgets,
    "batch-duration": workers_checks.slowness,
    "latency-target": workers_checks.shedding,
    "paused-tasks": workers_checks.halted,
    "worker-health": workers_checks.health,
}


def checkup(facts: Facts) -> Iterator[tuple[str, Finding]]:
    """Yield what each check finds, with the check's id."""
    for check_id, check in CHECKS.items():
        for finding in check(facts):
            yield check_id, finding
