"""

Keeps Python's garbage collector from scanning long-lived objects again.

A worker has a few hundred thousand objects that stay for ever, and some dozens for each
message that go by themselves when it is answered.  By its own measure the collector
looks at the ones after every few messages, and at the others every few thousand: a fifth
of what a message costs.
"""

from __future__ import annotations

import gc
import os
import threading

__all__ = ["collect_seldom", "keep_what_is_there", "unfreeze_all"]

#: New objects after which the collector looks at them, where messages are handled: about
#: as many as all the messages that a worker holds have.
_MANY = 20_000

#: Python's own measures, which somebody may have changed for reasons of theirs.
_PYTHONS = ((700, 10, 10), (2000, 10, 10), (2000, 10, 0))

_before: tuple[int, int, int] | None = None


def keep_what_is_there() -> None:
    """Have the collector never look again at what this process has now."""
    if _is_ours():
        gc.collect()
        gc.freeze()


def unfreeze_all() -> None:
    """Collect what nobody has any more, also of what was to be kept; on whatever thread."""
    kept = gc.get_freeze_count()
    gc.unfreeze()
    gc.collect()
    if kept:
        gc.freeze()


def collect_seldom() -> None:
    """
    Have the collector look less often, in this process and in none that it forks.

    Not where a model runs: what it leaves behind may be large, and on a device.
    """
    global _before  # noqa: PLW0603 (the collector is the process' own, too)
    measures = gc.get_threshold()
    if measures in _PYTHONS and _is_ours():
        _before = measures
        gc.set_threshold(_MANY, *measures[1:])


def _is_ours() -> bool:
    return threading.current_thread() is threading.main_thread()


def _look_often() -> None:
    if _before is not None:
        gc.set_threshold(*_before)


os.register_at_fork(after_in_child=_look_often)
