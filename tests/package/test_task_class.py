"""`base=BatchTask` in apps whose tasks have a class of their own."""

from __future__ import annotations

from contextlib import contextmanager
from typing import Any
from weakref import WeakSet

import pytest
from celery import Celery, Task, _state, shared_task
from celery.contrib.django.task import DjangoTask

from celery_batch import BatchTask, Model
from tests.services.making import double, make, refusal

#: How many contexts are open.
contexts: list[str] = []


@contextmanager
def app_context():
    """Open a context, as a Flask site does."""
    contexts.append("open")
    try:
        yield
    finally:
        contexts.pop()


class FlaskTask(Task):
    """Runs each task in the site's context; from Flask's documentation."""

    tenant = "nobody"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the task."""
        with app_context():
            return self.run(*args, **kwargs)


class Traced(BatchTask):
    """A base class of the user's for some batch tasks."""

    max_batch_size = 7


class ByHand(FlaskTask, BatchTask):
    """A class of both, as one had to write it."""


def opened(x):
    """Say how many contexts are open."""
    return [len(contexts)] * len(x)


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Celery gives shared tasks to every app there will be: there are none but the test's."""
    monkeypatch.setattr(_state, "_on_app_finalizers", set())
    monkeypatch.setattr(_state, "_apps", WeakSet())


def app_of(task_cls: Any = None) -> Celery:
    """Return an app with this task class."""
    return Celery("shop", set_as_current=False, task_cls=task_cls)


@pytest.mark.parametrize("base", [BatchTask, Traced, ByHand])
def test_the_apps_class_is_kept(base: Any):
    """A batch task is called within what the app's own class sets up."""
    task = make(app_of(FlaskTask), opened, base=base)

    assert 1 == task(0)
    assert isinstance(task, FlaskTask)
    assert isinstance(task, base)


def test_shared_tasks_keep_the_class_of_each_app():
    """A shared task has Flask's class in Flask's app, and none of it in another."""

    @shared_task(base=BatchTask, name="shared")
    def shared(x: list[Any]) -> list[Any]:
        return opened(x)

    site, plain = app_of(FlaskTask), app_of()

    assert [1, 0] == [app.tasks["shared"](0) for app in (site, plain)]
    assert not isinstance(plain.tasks["shared"], FlaskTask)


def test_a_class_assigned_to_the_app_is_kept():
    """Flask's older pattern assigns `app.Task`; that class is kept, too."""
    app = app_of()

    class ContextTask(app.Task):  # type: ignore[name-defined, misc]
        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            with app_context():
                return self.run(*args, **kwargs)

    app.Task = ContextTask
    task = make(app, opened)

    assert 1 == task(0)


def test_a_task_of_a_model_keeps_it():
    """`Model.as_task` makes its task in the same way."""

    class Opened(Model):
        def predict(self, batch: list[Any]) -> list[Any]:
            return opened(batch)

    assert 1 == Opened.as_task(app_of(FlaskTask), name="opened")(0)


def test_django_sends_on_commit():
    """Celery gives Django's apps a class by its name."""
    task = make(app_of("celery.contrib.django.task:DjangoTask"), double)

    assert isinstance(task, DjangoTask)
    assert callable(task.delay_on_commit)


def test_what_makes_it_a_batch_task_stays():
    """Strategy, request class and late acknowledgement are those of batch tasks."""
    task = make(app_of(FlaskTask), double, max_batch_size=3)

    assert BatchTask.Strategy == task.Strategy
    assert BatchTask.Request == task.Request
    assert task.acks_late
    assert 3 == task.max_batch_size


def test_attributes_of_the_apps_class_may_be_set():
    """An attribute that the app's class declares is no misspelt option."""
    task = make(app_of(FlaskTask), double, tenant="somebody")

    assert "somebody" == task.tenant


def test_an_app_without_a_class_of_its_own_changes_nothing():
    """Where the app's tasks are Celery's, a batch task derives from its base alone."""
    assert (BatchTask,) == make(app_of(), double).__class__.__bases__


def test_a_request_class_of_the_apps_is_refused():
    """A class that replaces what makes a batch task is named, and the way out."""

    class OwnRequest(Task):
        """Has it."""

        Request = "celery.worker.request:Request"

    said = refusal(lambda: make(app_of(OwnRequest)))

    assert "OwnRequest has a Request of its own" in said
    assert "Request = BatchTask.Request" in said


def test_classes_that_cannot_be_combined_are_refused():
    """Two classes that Python cannot put in a row are both named."""

    class Mixin:
        """Comes last in one and first in the other."""

    class AppTask(Mixin, Task):
        """The app's."""

    class Base(BatchTask, Mixin):
        """The task's."""

    said = refusal(lambda: make(app_of(AppTask), base=Base))

    assert "AppTask and " in said
    assert "Base cannot be combined" in said
    assert "give base= a class that derives from both" in said
