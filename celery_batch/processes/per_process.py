"""What an app has once in each process."""

from __future__ import annotations

import os
from typing import Any, Self

__all__ = ["PerProcess"]


class PerProcess:
    """An object that an app has once in each process; a fork makes its own."""

    def __init__(self, app: Any) -> None:
        self.pid = os.getpid()
        self._app = app

    @classmethod
    def of(cls, app: Any) -> Self:
        """Return the app's object in this process."""
        objects = app.__dict__.setdefault("batch_objects", {})
        key = cls, os.getpid()
        found: Self | None = objects.get(key)
        # One for all threads, and one that a fork has from its parent is kept: what its end
        # would close belongs to the parent.
        return objects.setdefault(key, cls(app)) if found is None else found

    def drop(self) -> None:
        """Have the app make another one when it is needed again."""
        self._app.__dict__["batch_objects"].pop((type(self), self.pid), None)
