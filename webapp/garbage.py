"""
What Python's garbage collector need not look at again and again in a web server.

All that was imported stays, and what a request leaves goes by itself as a rule; by its
own measure the collector looks at the ones after every few hundred of the others, which
costs more than all the rest of a request.
"""

from __future__ import annotations

import gc
import os

__all__ = ["look_seldom"]

#: New objects after which the collector looks at them: those of some hundred requests.
_MANY = 20_000

#: Python's own measures, which somebody may have changed for reasons of theirs.
_PYTHONS = ((700, 10, 10), (2000, 10, 10), (2000, 10, 0))


def look_seldom() -> None:
    """Have the collector leave alone what is there, and look less often at what comes."""
    measures = gc.get_threshold()
    if measures in _PYTHONS:
        gc.set_threshold(_MANY, *measures[1:])
        _leave_alone()
        # Where a server forks, its processes begin with what it had then.
        os.register_at_fork(after_in_child=_leave_alone)


def _leave_alone() -> None:
    gc.collect()
    gc.freeze()
