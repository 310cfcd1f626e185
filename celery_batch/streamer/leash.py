"""Processes that end when the process that wanted them ends, killed or not."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import sys
import threading
from multiprocessing import connection

__all__ = ["end_with_manager", "end_with_parent"]

#: Linux' prctl option "signal me when my parent ends".
_PR_SET_PDEATHSIG = 1


def end_with_parent(parent: int) -> None:
    """
    Have this process killed when its parent ends; on Linux, which alone can do it.

    Linux means the thread that started us, so that should be the parent's main thread.

    Args:
        parent: The parent's process id, as the parent itself knows it.
    """
    if sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before we could ask
        os.kill(os.getpid(), signal.SIGKILL)


def end_with_manager() -> None:
    """
    Have this process, which `multiprocessing` started, killed when its starter ends.

    By two ways: a thread that any system has, and a signal that needs no thread, for a
    model that keeps Python's lock to itself.
    """
    manager = multiprocessing.parent_process()
    if manager is None:
        return
    if manager.pid == os.getppid():  # a fork server stands between us and the manager
        end_with_parent(os.getppid())
    watch = threading.Thread(target=_end_after, args=(manager.sentinel,), daemon=True)
    watch.start()


def _end_after(sentinel: int) -> None:
    connection.wait([sentinel])
    os.kill(os.getpid(), signal.SIGKILL)
