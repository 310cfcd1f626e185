"""How Celery's groups send their tasks, where that is replaced."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from celery import Celery, group

from celery_batch.compat.tasks import send_groups_with


def test_groups_send_with_another_function_once(monkeypatch: pytest.MonkeyPatch):
    """It gets what Celery's own method sends, and that method; a second function is not used."""

    def own(self: Any, tasks: Any, producer: Any = None, app: Any = None, *more: Any) -> Any:
        return [type(self), app, tasks, producer, *more]

    def send(app: Any, tasks: Any, producer: Any, apply: Any) -> Iterator[Any]:
        return apply(["first", app, *tasks], producer)  # type: ignore[no-any-return]

    monkeypatch.setattr(group, "_apply_tasks", own)
    for each in (send, print):
        send_groups_with(each)
    app = Celery("tasks", set_as_current=False)

    found = group(app=app)._apply_tasks(["task"], "producer", None, "more")
    assert [group, app, ["first", app, "task"], "producer", "more"] == found


def test_a_method_with_other_parameters_is_left(monkeypatch: pytest.MonkeyPatch):
    """Celery's groups then send as Celery has it."""

    def own(self: Any, producer: Any = None) -> Any:
        return self, producer

    monkeypatch.setattr(group, "_apply_tasks", own)
    send_groups_with(print)

    assert group._apply_tasks is own
