"""
Has Celery's result backends read and forget what is stored beside results, in any process.

Nothing of Celery is imported here: kombu loads our serializers before Celery is whole.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial, wraps
from importlib import import_module
from itertools import dropwhile
from operator import is_not
from typing import Any

from celery_batch.protocol import PAYLOADS

__all__ = ["as_stored", "register_stored_results"]

#: The module of the class of all result backends; and the one of backends with stored results, for
#: a process that imports the first before all else, in which kombu then loads our serializers.
_BASE, _REDIS = "celery.backends.base", "celery.backends.redis"


class _Reading(threading.local):
    """Whether this thread reads and forgets what is stored beside a result, too."""

    is_whole = True


_reading = _Reading()


@contextmanager
def as_stored() -> Iterator[None]:
    """Read and forget on this thread no more than what is stored: only that is of interest."""
    former, _reading.is_whole = _reading.is_whole, False
    try:
        yield
    finally:
        _reading.is_whole = former


def register_stored_results() -> None:
    """Change the class of all result backends, now or once it is imported."""
    if not _change_backends():
        sys.meta_path.insert(0, _Finder())


def _change_backends() -> bool:
    """Change the class, unless that is done; return whether it is imported."""
    kind: Any = getattr(sys.modules.get(_BASE), "Backend", None)  # none while it is being imported
    if kind is None or getattr(kind.meta_from_decoded, "is_ours", False):
        return kind is not None
    own_read, own_forget = kind.meta_from_decoded, kind.forget

    @wraps(own_read)
    def meta_from_decoded(self: Any, meta: Any) -> Any:
        found = own_read(self, meta)
        if _reading.is_whole and isinstance(found, dict) and PAYLOADS in found:
            return import_module("celery_batch.payloads.results").restored(self, found)
        return found

    @wraps(own_forget)
    def forget(self: Any, task_id: str) -> Any:
        if _reading.is_whole and _REDIS in sys.modules:  # only its results have anything beside
            import_module("celery_batch.payloads.results").release(self, task_id)
        return own_forget(self, task_id)

    meta_from_decoded.is_ours = True  # type: ignore[attr-defined]
    kind.meta_from_decoded, kind.forget = meta_from_decoded, forget
    return True


class _Finder:
    """Finds the modules of backends as the finders after it do, to know when they are imported."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name not in (_BASE, _REDIS):
            return None
        for finder in list(dropwhile(partial(is_not, self), sys.meta_path))[1:]:
            find = getattr(finder, "find_spec", None)
            spec = find and find(name, path, target)
            if spec is not None:
                if hasattr(spec.loader, "exec_module"):
                    spec.loader = _Loader(spec.loader)
                return spec
        return None


class _Loader:
    """Loads a module as its own loader does, which it is left to then."""

    def __init__(self, own: Any) -> None:
        self._own = own

    def __getattr__(self, name: str) -> Any:
        return getattr(self._own, name)

    def exec_module(self, module: Any) -> None:
        module.__loader__ = module.__spec__.loader = self._own
        self._own.exec_module(module)
        _change_backends()
