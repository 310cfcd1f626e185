"""Ends a process when its parent ends, killed or not."""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import signal
import threading
from multiprocessing import connection
from typing import Any

from celery_batch.processes.reaper import PR_SET_PDEATHSIG

__all__ = ["end_with_manager", "end_with_parent"]


def end_with_parent(parent: int) -> None:
    """Have this process killed when its parent ends."""
    # When the thread ends that started us, which should be the parent's main thread.
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before the call above
        os.kill(os.getpid(), signal.SIGKILL)


def end_with_manager() -> None:
    """Have this process, which `multiprocessing` started, killed when its parent ends."""
    manager = multiprocessing.parent_process()
    if manager is None:
        return
    # A signal works while a model holds the interpreter's lock.
    end_with_parent(os.getppid())  # a fork server, where there is one, ends with the manager
    watch = threading.Thread(
        target=_end_after, args=(manager,), name="celery_batch parent", daemon=True
    )
    watch.start()


def _end_after(manager: Any) -> None:
    # A forked copy of the manager holds its end of the pipe open, so look at itself, too.
    ends: list[Any] = [manager.sentinel]
    with contextlib.suppress(OSError):
        ends.append(os.pidfd_open(manager.pid))
    connection.wait(ends)
    os.kill(os.getpid(), signal.SIGKILL)
