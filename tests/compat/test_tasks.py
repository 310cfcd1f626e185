"""How tasks are made, and how groups send theirs, where we replace Celery's own way."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from celery import Celery, group
from celery.local import PromiseProxy

from celery_batch import BatchTask
from celery_batch.compat.tasks import evaluate_tasks_once, send_groups_with


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


def same(x: list[Any]) -> list[Any]:
    """Return the items."""
    return x


@pytest.fixture
def quick_switches() -> Iterator[None]:
    """Have threads take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("quick_switches")
def test_threads_that_use_a_task_first_get_the_same_one():
    """Calls of a web server's threads may be the first: Celery has an AttributeError for some."""

    def used(app: Celery, number: int) -> set[int]:
        """Define a task, and use it in many threads at once; return the tasks that they got."""
        task = app.task(base=BatchTask, name=f"first.{number}")(same)
        start, found = threading.Barrier(8), [0] * 8

        def use(thread: int) -> None:
            start.wait()
            assert task.name
            found[thread] = id(task._get_current_object())

        threads = [threading.Thread(target=use, args=(n,)) for n in range(len(found))]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        return {*found}

    app = Celery("first", set_as_current=False)
    found = [used(app, number) for number in range(20)]

    assert [{id(app.tasks[f"first.{number}"])} for number in range(20)] == found


def test_a_task_is_used_that_a_blocked_thread_makes(monkeypatch: pytest.MonkeyPatch):
    """A thread does not wait for ever for one that may wait for it."""
    monkeypatch.setattr("celery_batch.compat.tasks._LONGEST_WAIT", 0.01)
    app = Celery("blocked", set_as_current=False)
    is_making, may_go_on = threading.Event(), threading.Event()

    class Slow(BatchTask):
        """A task that takes long to make."""

        abstract = True

        @classmethod
        def on_bound(cls, app: Celery) -> None:
            """Take until the test says so."""
            super().on_bound(app)
            is_making.set()
            may_go_on.wait(30)

    slow = app.task(base=Slow, name="slow")(same)
    other = app.task(base=BatchTask, name="other")(same)
    thread = threading.Thread(target=lambda: slow.name)
    thread.start()
    is_making.wait(30)
    name = other.name
    may_go_on.set()
    thread.join()

    assert "other" == name


def test_tasks_are_made_as_celery_does_where_it_has_another_way(monkeypatch: pytest.MonkeyPatch):
    """What is not there is not replaced, and what is ours not again."""
    ours = PromiseProxy.__evaluate__
    evaluate_tasks_once()
    again = PromiseProxy.__evaluate__
    monkeypatch.delattr(PromiseProxy, "__evaluate__")
    evaluate_tasks_once()

    assert ours is again
    assert not hasattr(PromiseProxy, "__evaluate__")
