"""Whether anybody is there who could answer: asked over the control bus."""

from __future__ import annotations

import logging
from typing import Any

from celery_batch.fleet.bus import impatient_connection

__all__ = ["queue_of", "reach", "unserved"]

log = logging.getLogger(__name__)

#: Seconds for which workers are listened to.
_LISTEN = 2.0


def queue_of(task: Any, options: dict[str, Any]) -> str:
    """
    Return the name of the queue where a task's messages go.

    Args:
        task: The batch task.
        options: Celery's, for each call.
    """
    options = {**task._get_exec_options(), **options}  # noqa: SLF001
    return str(task.app.amqp.router.route(options, task.name)["queue"].name)


def unserved(task: Any, options: dict[str, Any]) -> str:
    """
    Return in words that no worker reads the queue of a task.

    Args:
        task: The batch task.
        options: Celery's, for each call.

    Returns:
        "" if one does, or if nobody can be asked.
    """
    app, queue = task.app, queue_of(task, options)
    try:
        reach(task)  # else the question would wait for the broker
        told = app.control.inspect(timeout=_LISTEN).active_queues() or {}
        read = {each["name"] for queues in told.values() for each in queues}
    except Exception as error:  # noqa: BLE001 (whatever a transport raises)
        log.debug("Could not ask who is there: %r", error)
        return ""
    if queue in read:
        return ""
    usual = queue == app.conf.task_default_queue
    start = f"celery -A {app.main or 'APP'} worker" + ("" if usual else f" -Q {queue}")
    others = f" (workers read {', '.join(sorted(read))})" if read else ""
    return (
        f"No worker answers for {task.name}: none reads its queue {queue!r}{others};"
        f" start one with {start}"
    )


def reach(task: Any) -> None:
    """
    Do nothing if broker and result backend can be reached.

    Args:
        task: The batch task.

    Raises:
        Exception: Whatever a transport raises when one cannot.
    """
    if task.app.conf.task_always_eager:
        return
    with impatient_connection(task.app) as connection:
        connection.ensure_connection(max_retries=1, interval_start=0, interval_max=0)
    ping = getattr(getattr(task.backend, "client", None), "ping", None)
    if ping is not None:
        ping()
