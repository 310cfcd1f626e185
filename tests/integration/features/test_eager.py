"""Eager mode: no worker, no broker, batches of one, the same outcomes."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import numpy as np
import pytest
from celery import Celery, chain, chord, group, shared_task
from celery.exceptions import Ignore, Retry
from kombu.exceptions import EncodeError
from PIL import Image
from pydantic import BaseModel

from celery_batch import BatchTask, ConfigurationError


@dataclass
class Box:
    """An output that is no JSON, of Python's own kinds."""

    size: int


class Person(BaseModel):
    """The same, of Pydantic's."""

    name: str


class Colour(Enum):
    """The same, of a few values."""

    RED = 1


@pytest.fixture
def app() -> Celery:
    """An app whose tasks run where they are called."""
    app = Celery("eager", broker="memory://", backend="cache+memory://", set_as_current=False)
    app.conf.task_always_eager = True
    return app


@pytest.fixture
def double(app: Celery):
    """A batch task that doubles numbers, and fails at what is not one."""

    @app.task(base=BatchTask, name="eager.double")
    def double(x):
        return [2 * n if isinstance(n, int) else ValueError(f"not a number: {n}") for n in x]

    return double


def test_delay_apply_and_a_direct_call_give_the_same(double):
    """Every way to call the task without a worker runs a batch of one."""
    assert 42 == double(21)
    assert 42 == double.apply((21,)).get()
    assert 42 == double.delay(21).get()
    assert "SUCCESS" == double.apply_async((21,)).state


def test_errors_are_the_items_own(app: Celery, double):
    """An error is stored in the eager result, or raised at once where the app wants so."""
    failed = double.delay("x")
    app.conf.task_eager_propagates = True

    assert "FAILURE" == failed.state
    with pytest.raises(ValueError, match="not a number: x"):
        failed.get()
    with pytest.raises(ValueError, match="not a number: y"):
        double.delay("y")


def test_canvases_run_in_place(app: Celery, double):
    """Chains, groups and chords of batch tasks evaluate eagerly."""

    @app.task(base=BatchTask, name="eager.total")
    def total(numbers):
        return [sum(each) for each in numbers]

    assert 8 == chain(double.s(1), double.s(), double.s()).delay().get()
    assert [0, 2, 4] == group(double.s(n) for n in range(3)).delay().get()
    assert 6 == chord([double.s(n) for n in range(3)])(total.s()).get()


def test_retries_happen_at_once(app: Celery):
    """Eagerly, a returned error that ``autoretry_for`` names is tried again in place."""
    tries = []

    @app.task(base=BatchTask, name="eager.flaky", autoretry_for=(OSError,), default_retry_delay=0)
    def flaky(x):
        tries.append(x)
        return [OSError("not yet")] if len(tries) < 3 else x

    assert 7 == flaky.delay(7).get()
    assert [[7]] * 3 == tries


def test_self_retry_and_ignore_work(app: Celery):
    """``self.retry`` and a returned ``Ignore`` mean what they mean in a worker."""
    tries = []

    @app.task(base=BatchTask, bind=True, name="eager.again", default_retry_delay=0)
    def again(self, x):
        tries.append(x)
        if x == ["ignore"]:
            return [Ignore()]
        if x == ["item"] and len(tries) < 2:
            return [Retry("later", when=0)]
        if len(tries) < 2:
            raise self.retry(countdown=0)
        return x

    assert "batch" == again.delay("batch").get()
    assert [["batch"]] * 2 == tries
    tries.clear()
    assert "item" == again.delay("item").get()
    assert "IGNORED" == again.delay("ignore").state


@pytest.mark.parametrize("new", [{"args": (1,)}, {"kwargs": {"x": 1}}])
def test_self_retry_with_new_arguments_is_refused(app: Celery, new: dict):
    """A batch is retried with each item's own arguments; others would be everybody's."""

    @app.task(base=BatchTask, bind=True, name="eager.anew")
    def anew(self, x):
        raise self.retry(**new) if x else AssertionError

    with pytest.raises(ConfigurationError, match="each item's own arguments"):
        anew.delay(1).get()


def test_replace_in_a_batch_function_is_refused_eagerly_too(app: Celery, double):
    """The same clear error as in a worker."""

    @app.task(base=BatchTask, bind=True, name="eager.replaces")
    def replaces(self, x):
        return self.replace(double.s(x))

    with pytest.raises(ConfigurationError, match="link the next task"):
        replaces.delay(1).get()


def test_a_shared_task_belongs_to_the_app_that_finalizes_it(app: Celery):
    """``shared_task`` takes our base class, and runs eagerly in the app that is current."""

    @shared_task(base=BatchTask, name="eager.shared")
    def shared(x):
        return [n + 1 for n in x]

    app.finalize()

    assert 2 == app.tasks["eager.shared"].delay(1).get()


def test_what_nobody_stores_need_not_be_encoded():
    """Without a result backend a worker drops what a task returns, whatever that is."""
    with Celery("eager", broker="memory://", set_as_current=False) as app:

        @app.task(base=BatchTask, name="eager.made")
        def made(x):
            return [object() for _ in x]

        assert "SUCCESS" == made.apply((1,)).state


@pytest.fixture
def scores(app: Celery):
    """A batch task that returns for each item an array in an object, and a tuple beside it."""

    @app.task(base=BatchTask, name="eager.scores")
    def scores(kind):
        made = {"array": np.array([{1}]), "list": [0.0, 0.0], "set": {1}, "range": range(3),
                "complex": 1j, "class": ValueError, "key": {(1, 2): 3},
                "dataclass": Box(1), "pydantic": Person(name="a"), "enum": Colour.RED,
                "image": Image.new("L", (1, 1))}  # fmt: skip
        return [{"scores": made[each], "pair": (1, 2)} for each in kind]

    return scores


def test_an_output_that_no_worker_could_store_fails(scores):
    """A test that runs in place sees the error that a worker would answer with."""
    result = scores.delay("array")

    assert "FAILURE" == result.state
    with pytest.raises(EncodeError, match=r"ndarray at \['scores'\].*use \.tolist\(\)"):
        result.get()
    with pytest.raises(EncodeError):
        scores.apply(("array",), throw=True)


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ("array", r"the output has a numpy\.ndarray at \['scores'\], which .* use \.tolist\(\)"),
        ("set", r"has a set at \['scores'\], which .* return a list of its values"),
        ("range", r"has a range at \['scores'\], which .* return a list of its values"),
        (
            "complex",
            r"has a complex at \['scores'\], which .* return numbers, texts, lists or dicts",
        ),
        ("dataclass", r"has a test_eager\.Box at .* return dataclasses\.asdict\(\) of it"),
        ("pydantic", r"has a test_eager\.Person at .* return its \.model_dump\(\)"),
        ("enum", r"has a test_eager\.Colour at .* return its \.value"),
        ("image", r"has a PIL\.Image at .* return numpy\.asarray\(\) of it"),
        ("class", r"has a type at .* return an instance, such as ValueError\('...'\)"),
        (
            "key",
            r"the result serializer 'json' cannot encode the output: keys must be .* not tuple",
        ),
    ],
)
def test_the_value_that_cannot_be_stored_is_named(scores, kind: str, says: str):
    """With its task, its place in the output, and what to return instead."""
    with pytest.raises(EncodeError, match=rf"^eager\.scores: .*{says}"):
        scores.delay(kind).get()


@pytest.mark.parametrize("way", ["delay", "apply"])
def test_the_models_own_encode_error_is_raised_as_it_is(app: Celery, scores, way: str):
    """With ``task_eager_propagates``; one of the call itself names the argument."""
    app.conf.task_always_eager = app.conf.task_eager_propagates = True

    @app.task(base=BatchTask, name="eager.own")
    def own(x):  # noqa: ARG001 (its name is in the error)
        raise EncodeError("of the model itself")

    call = own.delay if way == "delay" else lambda x: own.apply((x,))
    with pytest.raises(EncodeError, match=r"^of the model itself$"):
        call(1)
    with pytest.raises(EncodeError, match=r"^eager\.scores: the output has a set"):
        scores.delay("set")
    with pytest.raises(EncodeError, match=r"^eager\.own: the argument x is an object"):
        own.delay(object())


def test_an_output_that_can_be_stored_comes_back_as_it_is(scores):
    """The check encodes a copy: a tuple stays a tuple."""
    assert {"scores": [0.0, 0.0], "pair": (1, 2)} == scores.delay("list").get()


def test_an_output_that_nobody_stores_may_be_anything(app: Celery, scores):
    """With ``ignore_result``, or a serializer that takes arrays, there is nothing to refuse."""
    ignored = scores.apply(("array",), ignore_result=True)
    app.conf.result_serializer = "pickle"
    app.backend.serializer = "pickle"
    stored = scores.apply(("array",))

    assert ["SUCCESS", "SUCCESS"] == [ignored.state, stored.state]
