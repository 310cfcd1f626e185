"""An app on libraries of which a later release has changed private parts."""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any

from celery_batch import BatchTask
from tests.apps.small_app import small_app


def change(target: str) -> None:
    """
    Change a library as a later release may.

    Args:
        target: A method of a class, which gets one more parameter, and works as before; or a
            module, which gets a version that nothing was tested with.
    """
    module, _, names = target.partition(":")
    found = import_module(module)
    if not names:
        found.__version__ = "99.0.0"
        return
    kind, name = names.split(".")
    own = getattr(getattr(found, kind), name)

    def changed(self: Any, *args: Any, more: Any = None, **options: Any) -> Any:  # noqa: ARG001
        return own(self, *args, **options)

    setattr(getattr(found, kind), name, changed)


for each in os.environ.get("CHANGED", "").split():
    change(each)

app = small_app("changed_libraries")


@app.task(base=BatchTask, name="changed.double", max_batch_size=8)
def double(number: list[int]) -> list[int]:
    """Double."""
    return [each * 2 for each in number]


@app.task(name="changed.plain")
def plain(number: int) -> int:
    """Return it, as an ordinary task."""
    return number
