"""A Celery worker in this process, as a streamer runs one."""

from __future__ import annotations

import logging
import os
import signal
import threading
from functools import partial
from typing import Any, NoReturn

from celery import Celery, signals
from celery.apps.worker import Worker
from celery.utils.nodenames import gethostname

from celery_batch.errors import LoadFailed
from celery_batch.streamer import posts
from celery_batch.streamer.leash import end_with_parent
from celery_batch.worker.loading import load_failed

__all__ = ["serve"]

#: They say two lines for each item, which is too much for a service.
_TALKATIVE = ("celery.app.trace", "celery.worker.strategy")


def serve(app: Celery, queue: str, *, pool: str) -> NoReturn:
    """
    Serve a queue until a signal or a remote command ends this process.

    Args:
        app: The Celery app; it becomes the process's current one.
        queue: The queue's name.
        pool: The pool's name.

    Raises:
        SystemExit: The worker has ended, or could not start.
    """
    worker = _Worker(
        app=app,
        hostname=f"{queue}-{os.getpid()}@{gethostname()}",
        pool_cls=pool,
        concurrency=1,
        queues=[queue],
        loglevel=_quieten(),
        quiet=True,
        without_mingle=True,
        without_gossip=True,
    )
    _leash_children()
    _tell_keeper()
    worker.start()
    raise SystemExit(worker.exitcode or 0)


class _Worker(Worker):  # type: ignore[misc]
    """Celery's, but for SIGHUP: it would run the program anew that has started us."""

    def install_platform_tweaks(self, worker: Any) -> None:
        super().install_platform_tweaks(worker)
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGHUP, signal.getsignal(signal.SIGTERM))


def _quieten() -> int:
    """Return the level to log at: the program's own, or INFO without a line for each item."""
    root = logging.getLogger()
    if root.handlers:
        return root.getEffectiveLevel()
    for name in _TALKATIVE:
        logger = logging.getLogger(name)
        if logger.level == logging.NOTSET:
            logger.setLevel(logging.WARNING)
    return logging.INFO


def _tell_keeper() -> None:
    """Have who keeps this process running hear whether it has its model."""
    signals.worker_ready.connect(lambda **_: posts.tell(posts.LOADED), weak=False)
    load_failed.connect(lambda error, **_: _tell_trouble(error), weak=False)


def _tell_trouble(error: str) -> None:
    # A pool process reports a whole traceback, which stands in the log; its last words will do.
    posts.tell(posts.UNLOADED, error.rpartition(f"{LoadFailed.__name__}: ")[2].strip())


def _leash_children() -> None:
    """Have the pool's processes end with this one, from their first moment on."""
    worker = os.getpid()
    os.register_at_fork(after_in_child=partial(_leash, worker))
    # Once more, for one whose parent died between its first two moments.
    signals.worker_process_init.connect(lambda **_: end_with_parent(worker), weak=False)


def _leash(worker: int) -> None:
    if os.getppid() == worker:  # what a model forks is its own affair
        end_with_parent(worker)
