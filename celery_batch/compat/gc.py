"""

Keeps Python's garbage collector from scanning long-lived objects again.

A worker has a few hundred thousand objects that stay for ever, and some dozens for each
message that reference counting frees when it is answered.  With Python's thresholds the
collector scans the latter every few messages and the former every few thousand: a fifth
of the cost of a message.
"""

from __future__ import annotations

import gc
import os
import threading

__all__ = ["collect_all", "collect_less_often", "freeze_existing"]

#: New objects after which the collector scans them, where messages are handled: about as
#: many as all prefetched messages have.
_MANY = 20_000

#: Python's defaults; other thresholds were set by the user, and stay.
_DEFAULTS = ((700, 10, 10), (2000, 10, 10), (2000, 10, 0))

_before: tuple[int, int, int] | None = None


def freeze_existing() -> None:
    """Exclude all objects that this process has now from collection."""
    if _is_main_thread():
        gc.collect()
        gc.freeze()


def collect_all() -> None:
    """Collect garbage among the excluded objects, too; callable from any thread."""
    kept = gc.get_freeze_count()
    gc.unfreeze()
    gc.collect()
    if kept:
        gc.freeze()


def collect_less_often() -> None:
    """Collect less often here, and not in forks, which run models: their garbage may be large."""
    global _before  # noqa: PLW0603 (one collector a process)
    thresholds = gc.get_threshold()
    if thresholds in _DEFAULTS and _is_main_thread():
        _before = thresholds
        gc.set_threshold(_MANY, *thresholds[1:])


def _is_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def _restore_thresholds() -> None:
    if _before is not None:
        gc.set_threshold(*_before)


os.register_at_fork(after_in_child=_restore_thresholds)
