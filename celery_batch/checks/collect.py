"""Collects the facts of a checkup from the app, its servers, this machine and workers."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

from celery_batch.checks.collect_app import conf_of, tasks_of, trouble_of
from celery_batch.checks.collect_machine import this_machine
from celery_batch.checks.collect_servers import broker_of, depths_of, results_of, why
from celery_batch.checks.collect_workers import workers_of
from celery_batch.checks.facts import Facts, Task, Worker
from celery_batch.worker.scheduling.routing import routed_queues

__all__ = ["gather"]


def gather(app: Any) -> Facts:
    """
    Return what is known; takes some seconds.

    Args:
        app: The Celery app.
    """
    trouble = trouble_of(app)
    tasks = () if trouble else tasks_of(app)
    conf, broker = conf_of(app), broker_of(app)
    workers, unasked = (None, "") if broker.error else _workers(app, tasks)
    return Facts(
        trouble=trouble,
        tasks=tasks,
        routed=None if trouble else frozenset(routed_queues(app)),
        conf=conf,
        broker=broker,
        results=results_of(app),
        machine=this_machine(wants_gpu=any(name.startswith("cuda") for name in conf.devices or ())),
        workers=workers,
        unasked=unasked,
        depths={} if broker.error else depths_of(app, {task.queue for task in tasks}),
        version=version("celery-batch"),
    )


def _workers(app: Any, tasks: tuple[Task, ...]) -> tuple[tuple[Worker, ...] | None, str]:
    """Return those that answer, and why they could not be asked."""
    try:
        return workers_of(app, {task.name for task in tasks}), ""
    except Exception as error:  # noqa: BLE001 (whatever a transport raises)
        return None, why(error)
