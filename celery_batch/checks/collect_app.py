"""Collects facts of an app: its batch tasks and settings."""

from __future__ import annotations

import sysconfig
import traceback
from datetime import timedelta
from typing import Any

from celery.concurrency import ALIASES

from celery_batch.checks.facts import Conf, Task
from celery_batch.config import Settings, policy_of
from celery_batch.errors import ConfigurationError
from celery_batch.task import BatchTask
from celery_batch.worker.scheduling.routing import queue_of

__all__ = ["conf_of", "tasks_of", "trouble_of"]

#: What pools are called, by the names of their classes.
_POOLS = {path.replace(":", "."): name for name, path in reversed(ALIASES.items()) if path}


def trouble_of(app: Any) -> tuple[str, ...]:
    """
    Import the app's tasks and return what celery_batch refuses in them.

    Args:
        app: The Celery app.
    """
    try:
        app.loader.import_default_modules()
        app.finalize()
        Settings.of(app)
    except ConfigurationError as error:
        return (str(error) if str(error).endswith("?") else f"{error}.",)
    except ImportError as error:
        return (f"The app's tasks cannot be imported: {error}.",)
    except (Exception, SystemExit) as error:  # noqa: BLE001 (whatever a module does when imported)
        return (f"The app's tasks cannot be imported: {_told(error)}.",)
    return ()


def _told(error: BaseException) -> str:
    """Return what went wrong in a module of the app, and where."""
    words = f"{type(error).__name__}: {error}"
    library = sysconfig.get_paths()["stdlib"]
    places = [
        f"{frame.filename}, line {frame.lineno}"
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith((library, "<frozen"))
    ]
    if isinstance(error, SyntaxError) or not places:
        return words  # which names the place
    return f"{words} ({places[-1]})"


def tasks_of(app: Any) -> tuple[Task, ...]:
    """
    Return the app's batch tasks.

    Args:
        app: The Celery app, its tasks imported.
    """
    known = [task for _, task in sorted(app.tasks.items()) if isinstance(task, BatchTask)]
    return tuple(_task(app, task) for task in known)


def _task(app: Any, task: Any) -> Task:
    policy, queue = policy_of(task), queue_of(app, task)
    return Task(
        name=task.name,
        queue=queue,
        max_batch_size=policy.max_batch_size,
        max_wait=policy.max_wait,
        linger=policy.linger,
        acks_late=bool(task.acks_late),
        ignores_results=bool(task.ignore_result),
        serializer=task.serializer,
        time_limit=task.time_limit,
        soft_time_limit=task.soft_time_limit,
        rate_limit=task.rate_limit and str(task.rate_limit),
        priority=task.priority or 0,
        priorities=_has_priorities(app, queue),
        is_quorum=_arguments(app, queue).get("x-queue-type") == "quorum",
    )


def _arguments(app: Any, name: str) -> dict[str, Any]:
    return getattr(app.amqp.queues.get(name), "queue_arguments", None) or {}


def _has_priorities(app: Any, name: str) -> bool:
    queue, arguments = app.amqp.queues.get(name), _arguments(app, name)
    declared = getattr(queue, "max_priority", None) or arguments.get("x-max-priority")
    return bool(declared or app.conf.task_queue_max_priority)


def conf_of(app: Any) -> Conf:
    """
    Return the app's settings that a check asks for.

    Args:
        app: The Celery app.
    """
    conf = app.conf
    expires = conf.result_expires
    return Conf(
        pool=_POOLS.get(str(conf.worker_pool).replace(":", "."), str(conf.worker_pool)),
        concurrency=conf.worker_concurrency,
        prefetch_multiplier=conf.worker_prefetch_multiplier,
        eta_task_limit=conf.worker_eta_task_limit,
        disable_prefetch=bool(conf.worker_disable_prefetch),
        always_eager=bool(conf.task_always_eager),
        accept_content=tuple(conf.accept_content),
        result_serializer=conf.result_serializer,
        result_accept_content=conf.result_accept_content and tuple(conf.result_accept_content),
        result_expires=expires.total_seconds() if isinstance(expires, timedelta) else expires,
        max_tasks_per_child=conf.worker_max_tasks_per_child,
        max_memory_per_child=conf.worker_max_memory_per_child,
        bulk=bool(conf.get("batch_bulk", True)),
        devices=_devices(app),
        transport_options=dict(conf.broker_transport_options or {}),
    )


def _devices(app: Any) -> tuple[str, ...] | None:
    try:
        return Settings.of(app).devices
    except ConfigurationError:
        return None
