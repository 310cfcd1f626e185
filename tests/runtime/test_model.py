"""The class `Model`, before a user overrides its methods."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from celery import Celery, _state

from celery_batch import BatchTask, ConfigurationError, Model


class Shouting(Model):
    """Says it louder."""

    def predict(self, batch: list[Any]) -> list[Any]:
        """Shout."""
        return [item.upper() for item in batch]


@pytest.fixture
def app(monkeypatch: pytest.MonkeyPatch) -> Celery:
    """An app of the test's own, which the tasks of other tests do not join."""
    monkeypatch.setattr(_state, "_on_app_finalizers", set())
    return Celery("shop", set_as_current=False)


def test_only_predict_has_to_be_written():
    """A model that needs no loading, warming or unloading need not say so."""
    model = Shouting()

    assert model.load("cpu") is None
    assert [] == list(model.examples())
    assert model.unload() is None


def test_forgotten_predict_is_told_by_name():
    """The error names the class and what it lacks."""

    class Silent(Model):
        pass

    with pytest.raises(NotImplementedError, match=r"Silent must define predict\(batch\)"):
        Silent().predict([1])


def test_model_becomes_an_ordinary_task(app: Celery):
    """The task carries its name, its model, its options and the model's own words."""
    Shouting.as_task(app, name="shop.shout", max_batch_size=4, max_wait=0.5, rate_limit="9/s")
    task = app.tasks["shop.shout"]

    assert isinstance(task, BatchTask)
    assert ("shop.shout", Shouting) == (task.name, task.model)
    assert (4, 0.5, "9/s") == (task.max_batch_size, task.max_wait, task.rate_limit)
    assert ("Says it louder.", __name__) == (task.__doc__, task.__module__)


def test_task_without_a_name_is_called_as_its_class(app: Celery):
    """Celery names a task after its function and module; here the class stands for it."""
    task = Shouting.as_task(app, max_batch_size=4)

    assert f"{__name__}.Shouting" == task.name
    assert Shouting is app.tasks[task.name].model


def test_a_second_task_of_a_model_needs_a_name_of_its_own(app: Celery):
    """Celery would return the first task, without the second's options: an error says so."""
    Shouting.as_task(app, max_batch_size=4)
    Shouting.as_task(app, max_batch_size=4)  # as when a module is imported again
    with pytest.raises(ConfigurationError, match=r"made a task of this name.*give this one a name"):
        Shouting.as_task(app, max_batch_size=64)
    large = Shouting.as_task(app, name="shop.large", max_batch_size=64)

    assert 64 == large.max_batch_size


def test_a_module_may_be_imported_again(app: Celery):
    """As one that is run as a script, and imported by the app: each makes the same task."""
    made = []
    for module in ("__main__", "shop.models"):
        error = type("Missing", (Exception,), {"__module__": module})
        model = type("Counting", (Shouting,), {"__module__": module})
        options = {"cost": lambda _: 1, "max_batch_cost": 9, "throws": (error,)}
        made.append(model.as_task(app, name="shop.count", **options))

    assert 2 == len(made)  # Celery warns of it, where a task is used


def test_two_models_cannot_have_one_name(app: Celery):
    """The task of the second model would run the first."""

    class Whispering(Shouting):
        pass

    Shouting.as_task(app, name="shop.say")
    with pytest.raises(ConfigurationError, match=r"Shouting\.as_task has made a task of this name"):
        Whispering.as_task(app, name="shop.say")


def test_pydantic_is_refused_whether_installed_or_not(app: Celery):
    """The error does not suggest an installation that would not help."""
    with pytest.raises(ConfigurationError, match=r"^shop.shout: pydantic=True .*; leave it out"):
        Shouting.as_task(app, name="shop.shout", pydantic=True)


def test_a_model_cannot_be_bound(app: Celery):
    """The task would be the first column of a batch, and each call fail."""
    with pytest.raises(ConfigurationError, match=r"^shop\.shout: bind=True is for functions"):
        Shouting.as_task(app, name="shop.shout", bind=True)


def test_called_directly_the_model_is_loaded_here(app: Celery, monkeypatch: pytest.MonkeyPatch):
    """Without a worker the first call loads the model, and a batch of one goes through it."""
    monkeypatch.setattr("celery_batch.runtime.registry._instances", {})
    monkeypatch.setattr("celery_batch.runtime.registry._device", "cpu")
    task = Shouting.as_task(app, name="shop.shout")

    assert "HELLO" == task("hello")
    assert "HELLO" == task.apply(("hello",)).get()
    assert "HELLO" == task.apply(kwargs={"item": "hello"}).get()


def test_writing_a_model_needs_no_celery(in_python: Callable[..., str]):
    """The module of a model can be imported, and the model used, without Celery."""
    loaded = in_python(
        "import sys; from celery_batch import Model; Model().load('cpu');"
        "print([name for name in ('celery', 'kombu', 'torch') if name in sys.modules])"
    )

    assert "[]" == loaded


class Joining(Model):
    """Takes several values with each request."""

    def predict(self, left, right="!", *, sep="-"):
        """Join them."""
        return [f"{a}{s}{b}" for a, b, s in zip(left, right, sep, strict=True)]


def test_a_task_takes_the_parameters_of_its_model(app: Celery):
    """Positions, names, defaults and the check of arguments are the method's."""
    task = Joining.as_task(app, name="shop.join")

    assert ["left", "right", "sep"] == list(task._batch_signature.parameters)
    assert ["a-!", "a+b"] == [task("a"), task("a", right="b", sep="+")]
    with pytest.raises(TypeError, match="takes from 1 to 2 positional arguments"):
        task.delay("a", "b", "c")


def test_a_model_of_any_number_of_parameters_is_refused(app: Celery):
    """A parameter has to have a name."""

    class Any(Model):
        def predict(self, *columns):
            return columns

    with pytest.raises(ConfigurationError, match=r"shop\.any: \*columns cannot become a list"):
        Any.as_task(app, name="shop.any").bind(app)
