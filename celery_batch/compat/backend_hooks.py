"""
What Celery's result backends do besides as they read and forget results, in any process.

Nothing of Celery is imported here: kombu loads our serializers before Celery is whole.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial, wraps
from itertools import dropwhile
from operator import is_not
from typing import Any

__all__ = ["as_stored", "call_with_backends", "forget_with", "read_meta_with"]

#: The module of the class of all result backends; and the one of backends with stored results, for
#: a process that imports the first before all else, in which kombu then loads our serializers.
_BASE = "celery.backends.base"
_MODULES = frozenset((_BASE, "celery.backends.redis"))


class _Reading(threading.local):
    """Whether what is read or forgotten on this thread is passed on to the functions."""

    is_passed_on = True


_reading = _Reading()


@contextmanager
def as_stored() -> Iterator[None]:
    """Read and forget on this thread no more than what is stored: only that is of interest."""
    former, _reading.is_passed_on = _reading.is_passed_on, False
    try:
        yield
    finally:
        _reading.is_passed_on = former


def call_with_backends(callback: Callable[[Any], object]) -> None:
    """
    Call a function with the class of all result backends, now or once it is imported.

    Args:
        callback: May be called more than once; imports nothing, since an import is under way.
    """
    if not _call(callback):
        sys.meta_path.insert(0, _Finder(callback))


def _call(callback: Callable[[Any], object]) -> bool:
    kind = getattr(sys.modules.get(_BASE), "Backend", None)  # none while it is being imported
    if kind is not None:
        callback(kind)
    return kind is not None


class _Finder:
    """Finds the modules of backends as the finders after it do, to know when they are imported."""

    def __init__(self, callback: Callable[[Any], object]) -> None:
        self._callback = callback

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name not in _MODULES:
            return None
        for finder in list(dropwhile(partial(is_not, self), sys.meta_path))[1:]:
            find = getattr(finder, "find_spec", None)
            spec = find and find(name, path, target)
            if spec is not None:
                if hasattr(spec.loader, "exec_module"):
                    spec.loader = _Loader(spec.loader, self._callback)
                return spec
        return None


class _Loader:
    """Loads a module as its own loader does, which it is left to then."""

    def __init__(self, own: Any, callback: Callable[[Any], object]) -> None:
        self._own, self._callback = own, callback

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own, name)

    def exec_module(self, module: Any) -> None:
        module.__loader__ = module.__spec__.loader = self._own
        self._own.exec_module(module)
        _call(self._callback)


def read_meta_with(kind: Any, field: str, restore: Callable[[Any, Any], Any]) -> None:
    """
    Have all result backends of this process pass some of what they have read to a function.

    Args:
        kind: The class of all result backends.
        field: Which meta data: those with this field.
        restore: Given a backend and decoded meta data, returns what the backend is to return.
    """
    own = kind.meta_from_decoded
    if getattr(own, "is_ours", False):
        return

    @wraps(own)
    def meta_from_decoded(self: Any, meta: Any) -> Any:
        found = own(self, meta)
        is_wanted = _reading.is_passed_on and isinstance(found, dict) and field in found
        return restore(self, found) if is_wanted else found

    meta_from_decoded.is_ours = True  # type: ignore[attr-defined]
    kind.meta_from_decoded = meta_from_decoded


def forget_with(kind: Any, release: Callable[[Any, str], object]) -> None:
    """
    Have all result backends of this process call a function before they forget a result.

    Args:
        kind: The class of all result backends.
        release: Given a backend and a task's id.
    """
    own = kind.forget
    if getattr(own, "is_ours", False):
        return

    @wraps(own)
    def forget(self: Any, task_id: str) -> Any:
        if _reading.is_passed_on:
            release(self, task_id)
        return own(self, task_id)

    forget.is_ours = True  # type: ignore[attr-defined]
    kind.forget = forget
