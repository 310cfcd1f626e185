"""
A call that a spawned process makes before it imports the main module.

`multiprocessing` has no hook for one.  But it sends the process's name before all else, and
pickled: so the name is a string that is unpickled by a call.  In this way the environment of a
process is set in the process itself; this process' own, which all its threads share, stays.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from operator import itemgetter, methodcaller
from pathlib import Path
from typing import Any, Self

__all__ = ["HookedName", "set_environment"]

#: The folder, or archive, from which this package is imported.
_FOLDER = str(Path(__file__).parents[2])


class HookedName(str):
    """A process's name, and a call made as it is unpickled: before the main module and after."""

    __slots__ = ("call",)
    call: Callable[[], object]

    def __new__(cls, name: str, call: Callable[[], object]) -> Self:  # noqa: D102 (as the class says)
        made = super().__new__(cls, name)
        made.call = call
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        # The name comes before our sys.path does, so the process may not find this package yet.
        # What is unpickled until it can is of the standard library alone.
        path = _Call(getattr, _Call(import_module, "sys"), "path")
        append = _Call(methodcaller("append", _FOLDER), path)
        return itemgetter(1), ((append, _Call(_unpickled, str(self), self.call)),)


class _Call:
    """A call that is made where it is unpickled."""

    def __init__(self, function: Callable[..., object], *args: Any) -> None:
        self._function = function
        self._args = args

    def __reduce__(self) -> tuple[Any, ...]:
        return self._function, self._args


def _unpickled(name: str, call: Callable[[], object]) -> str:
    sys.path.pop()  # what was appended for this import
    call()
    return name


def set_environment(env: Mapping[str, str]) -> None:
    """Set these variables in this process."""
    os.environ.update(env)
