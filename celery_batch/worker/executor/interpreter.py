"""

Shares the interpreter between the model's thread and the pipeline's.

Rule 1: whoever computes lets others go on after a moment: a model that comes back to Python
        is not to wait for a clerk.
Rule 2: from the last thing that is told to a clerk until the next model is called, the main
        thread keeps the interpreter.  The device waits for the little that is left to do,
        and a clerk who takes the interpreter meanwhile keeps it for longer than that.
Rule 3: nothing that blocks lies between; it would hand the interpreter to a clerk, who
        then kept it.
"""

from __future__ import annotations

import sys

__all__ = ["divide", "keep", "share"]

#: Seconds after which a thread that computes lets the other one go on.  With Python's
#: 5 ms a model would stand still for that long whenever it comes back to Python.
_SHARED = 0.0001

#: The same on the way to the next model, which takes a tenth of this.
_KEPT = 0.002

#: As it is shared here; None in a process without clerks.
_shared: float | None = None


def divide() -> None:
    """Share the interpreter with clerks from now on, by turns no longer than it was set to."""
    global _shared  # noqa: PLW0603 (one interpreter a process)
    _shared = min(sys.getswitchinterval(), _SHARED)
    share()


def keep() -> None:
    """Keep the interpreter until it is shared again; on the main thread."""
    if _shared is not None:
        sys.setswitchinterval(_KEPT)


def share() -> None:
    """Let others have their turns."""
    if _shared is not None:
        sys.setswitchinterval(_shared)
