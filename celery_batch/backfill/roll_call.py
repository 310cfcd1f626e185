"""Whether anybody is there who could answer."""

from __future__ import annotations

import logging
from typing import Any

from kombu.exceptions import OperationalError

from celery_batch.fleet.bus import impatient_connection

__all__ = ["queue_of", "reach", "unserved"]

log = logging.getLogger(__name__)


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
        if task.is_served(queue):
            return ""
    except OperationalError as error:
        log.debug("Could not ask who is there: %r", error)
        return ""
    usual = queue == app.conf.task_default_queue
    start = f"celery -A {app.main or 'APP'} worker" + ("" if usual else f" -Q {queue}")
    return (
        f"No worker answers for {task.name}: none reads its queue {queue!r}; start one with {start}"
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
