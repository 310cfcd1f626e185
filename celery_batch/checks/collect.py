"""Collects what the checks need from the app, its servers, this machine and workers."""

from __future__ import annotations

import sysconfig
import traceback
from importlib.metadata import version
from typing import Any

from celery.concurrency import ALIASES

from celery_batch.checks.collect_machine import this_machine
from celery_batch.checks.collect_payloads import payloads_of
from celery_batch.checks.collect_servers import broker_of, cache_of, depths_of, results_of, why
from celery_batch.checks.collect_workers import workers_of
from celery_batch.checks.facts import Facts, Worker
from celery_batch.compat.fast_paths import FastPaths, PathState
from celery_batch.config import FAST_PATHS, Settings
from celery_batch.errors import ConfigurationError
from celery_batch.items.shapes import check_padding_cost
from celery_batch.worker.scheduling.routing import batch_tasks, queue_of, routed_queues

__all__ = ["collect", "devices_of", "pool_of", "trouble_of"]

#: The names of pools by the paths of their classes.
_POOLS = {path.replace(":", "."): name for name, path in reversed(ALIASES.items()) if path}


def collect(app: Any) -> Facts:
    """Return what is known of an app; takes some seconds."""
    trouble = trouble_of(app)
    tasks = [] if trouble else batch_tasks(app)
    queues = {task.name: queue_of(app, task) for task in tasks}
    devices, broker = devices_of(app), broker_of(app)
    workers: tuple[Worker, ...] | None = None
    unasked = ""
    if not broker.error:
        try:
            workers = workers_of(app, set(queues))
        except Exception as error:  # noqa: BLE001 (whatever a transport raises)
            unasked = why(error)
    return Facts(
        app=app,
        trouble=trouble,
        tasks=tuple(tasks),
        queues=queues,
        routed=None if trouble else frozenset(routed_queues(app)),
        pool=pool_of(app),
        devices=devices,
        broker=broker,
        results=results_of(app),
        cache=cache_of(app, [task.name for task in tasks if task.cache_ttl is not None]),
        payloads=payloads_of(app) if tasks else None,
        machine=this_machine(wants_gpu=any(name.startswith("cuda") for name in devices or ())),
        workers=workers,
        unasked=unasked,
        depths={} if broker.error else depths_of(app, set(queues.values())),
        version=version("celery-batch"),
        fast_paths=fast_paths_of(app),
    )


def fast_paths_of(app: Any) -> tuple[PathState, ...]:
    """Return the state of each fast path; nothing if the setting is wrong."""
    try:
        return tuple(map(FastPaths.of(app).state, FAST_PATHS))
    except ConfigurationError:
        return ()  # `trouble` says it


def trouble_of(app: Any) -> str:
    """Import the app's tasks and return what celery_batch refuses in them."""
    try:
        app.loader.import_default_modules()
        app.finalize()
        Settings.of(app)
        for task in batch_tasks(app):
            check_padding_cost(task)
    except ConfigurationError as error:
        return str(error) if str(error).endswith("?") else f"{error}."
    except ImportError as error:
        return f"The app's tasks cannot be imported: {error}."
    except (Exception, SystemExit) as error:  # noqa: BLE001 (whatever a module does when imported)
        return f"The app's tasks cannot be imported: {_with_place(error)}."
    return ""


def _with_place(error: BaseException) -> str:
    """Return an error of one of the app's modules, and where it was raised."""
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


def pool_of(app: Any) -> str:
    """Return Celery's name of the pool that the settings choose, or the path of its class."""
    pool = str(app.conf.worker_pool)
    return str(_POOLS.get(pool.replace(":", "."), pool))


def devices_of(app: Any) -> tuple[str, ...] | None:
    """Return the setting ``batch_devices``; None if it is not set, or wrong."""
    try:
        return Settings.of(app).devices
    except ConfigurationError:
        return None
