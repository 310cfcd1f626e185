"""What items cost, and which options of a task say so."""

from __future__ import annotations

import inspect

import billiard.common
import numpy as np
import pytest
from billiard.exceptions import SoftTimeLimitExceeded
from celery import Celery
from celery.exceptions import WorkerShutdown, WorkerTerminate

from celery_batch import BatchTask, Model
from celery_batch.config import LARGEST_BATCH
from celery_batch.errors import ConfigurationError, InvalidCost, ItemTooLarge
from celery_batch.items.functions import is_interrupt, item_cost_of
from celery_batch.runtime.item_cost import ItemCost


def translate(text, lang="en", *, hint=""):
    """Take two parameters and an option."""


def cost_of(cost, largest=None):
    """Return what computes the cost of `translate`'s items."""
    return ItemCost("shop.translate", inspect.signature(translate), cost, largest)


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [(["four"], {}), (["four", "de"], {}), ([], {"text": "four"}), (["four"], {"hint": "x"})],
)
def test_the_length_of_a_parameter_counts(args, kwargs):
    """However it is passed."""
    assert 4.0 == cost_of("text").of_call(args, kwargs)


def test_a_function_gets_what_an_item_gets():
    """Its arguments are those of the task, defaults included, by position or by name."""

    def cost(text, lang, *, hint):
        return len(text) + 10 * len(lang) + 100 * len(hint)

    assert 24.0 == cost_of(cost).of_call(["four"], {})
    assert 134.0 == cost_of(cost).of_call(["four", "deu"], {"hint": "x"})
    assert [24.0, 122.0] == cost_of(cost).of_rows([["four", "ab"], ["en", "fr"], ["", "x"]])


@pytest.mark.parametrize("value", [0, 7, 2.5, True, np.int64(3), np.float32(0.5)])
def test_any_number_from_zero_up_is_a_cost(value):
    """Numbers of numpy as well."""
    assert float(value) == cost_of(lambda *_, **__: value).of_call(["x"], {})


@pytest.mark.parametrize("value", [-1, float("nan"), float("inf"), None, "4", [4], 1j])
def test_anything_else_is_none(value):
    """The error says what the function returned."""
    with pytest.raises(InvalidCost, match=r"shop.translate: the cost of an item must be a number"):
        cost_of(lambda *_, **__: value).of_call(["x"], {})


def test_what_the_function_raises_is_the_error_of_its_row():
    """Other rows have their costs; a row that may not be so large has an error, too."""
    one, two, three = cost_of("text", largest=5).of_rows(
        [["four", None, "longer"], *[["", "", ""]] * 2]
    )

    assert 4.0 == one
    assert isinstance(two, InvalidCost)
    assert "the value of 'text', whose length is the cost, has no length: object of" in str(two)
    assert isinstance(three, ItemTooLarge)
    assert "this item costs 6, and at most 5 is allowed (max_item_cost)" in str(three)


def test_a_number_that_is_too_large_for_any_cost_is_none():
    """It is the item's error, not the worker's."""
    with pytest.raises(InvalidCost, match="OverflowError"):
        cost_of(lambda *_, **__: 10**400).of_call(["x"], {})


def test_a_time_limit_is_the_whole_batchs():
    """A soft time limit that strikes within the function is no error of the item."""

    def slow(*_: str, **__: str) -> int:
        raise SoftTimeLimitExceeded

    cost = ItemCost("t", inspect.signature(translate), slow, is_interrupt=is_interrupt)
    with pytest.raises(SoftTimeLimitExceeded):
        cost.of_rows([["x"], ["en"], [""]])


def raising(error):
    """Return a function that raises an error, whatever it is called with."""

    def function(*_, **__):
        raise error

    return function


@pytest.mark.parametrize(
    "error", [SystemExit(3), GeneratorExit("3"), type("Panic", (BaseException,), {})(3)]
)
def test_nothing_that_a_function_raises_ends_the_process(app, error):
    """Such as the panic of a tokenizer in Rust, or a library that calls ``sys.exit``."""
    task = Embed.as_task(app, name="embed", max_batch_cost=10, cost=raising(error))

    with pytest.raises(InvalidCost, match=rf"embed: its cost .* raised {type(error).__name__}: 3"):
        item_cost_of(task).of_call(["a"], {})


@pytest.mark.parametrize("error", [KeyboardInterrupt, WorkerShutdown, WorkerTerminate])
def test_a_worker_that_is_to_stop_stops_within_the_function(app, error):
    """The handlers of signals raise these in whatever runs."""
    task = Embed.as_task(app, name="embed", max_batch_cost=10, cost=raising(error()))

    with pytest.raises(error):
        item_cost_of(task).of_call(["a"], {})


def test_a_pool_process_that_is_terminated_stops_within_the_function(app, monkeypatch):
    """The handler of the signal raises what could be the function's own error."""
    monkeypatch.setattr(billiard.common, "_should_have_exited", [True])
    task = Embed.as_task(app, name="embed", max_batch_cost=10, cost=raising(SystemExit(-241)))

    with pytest.raises(SystemExit):
        item_cost_of(task).of_call(["a"], {})


def test_a_greenlet_that_is_killed_stops_within_the_function():
    """In a web process, and in a streamer's, which knows no Celery."""
    killed = type("GreenletExit", (BaseException,), {"__module__": "greenlet"})

    with pytest.raises(killed):
        cost_of(raising(killed())).of_call(["a"], {})
    with pytest.raises(KeyboardInterrupt):
        cost_of(raising(KeyboardInterrupt())).of_call(["a"], {})


def test_arguments_that_do_not_fit_are_an_error():
    """As for the function itself."""
    with pytest.raises(TypeError, match="missing a required argument: 'text'"):
        cost_of("text").of_call([], {"lang": "de"})


class Embed(Model):
    """A model that says what its items cost."""

    def predict(self, batch):
        """Return lengths."""
        return [len(text) for text in batch]

    @staticmethod
    def cost(text):
        """Return the number of words."""
        return len(text.split())


@pytest.fixture
def app():
    """Return an app without a broker."""
    return Celery("costs", set_as_current=False)


def test_a_model_names_its_parameter_as_it_does_itself(app):
    """Though its task calls the only one "item"."""

    class Named(Model):
        cost = "text"

        def predict(self, text):
            """Return the texts."""
            return text

    task = Named.as_task(app, name="named", max_batch_cost=10)

    assert 4.0 == item_cost_of(task).of_call(["four"], {})


def test_a_model_says_what_its_items_cost(app):
    """Its static method is used unless the task has a function of its own."""
    embed = Embed.as_task(app, name="embed", max_batch_cost=10)
    other = Embed.as_task(app, name="other", max_batch_cost=10, cost=len)
    free = Embed.as_task(app, name="free")

    assert 3.0 == item_cost_of(embed).of_call(["a bc d"], {})
    assert 6.0 == item_cost_of(other).of_call(["a bc d"], {})
    assert item_cost_of(free) is None


def test_a_function_in_a_class_is_no_method(app):
    """A task may be a class, with the function in it."""

    class Task(BatchTask):
        name = "task"
        max_batch_cost = 10

        def run(self, text):
            return text

        @staticmethod
        def cost(text):
            return len(text)

    assert 2.0 == item_cost_of(app.register_task(Task())).of_call(["ab"], {})


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"max_batch_cost": 9}, r"late.max_batch_cost: needs cost, a function of an item's arg"),
        ({"max_item_cost": 9}, r"late.max_item_cost: needs cost, a function of an item's arg"),
        ({"cost": "text"}, r"late.cost: has no effect without max_batch_cost"),
        ({"cost": 5}, r"late.cost: must be a function of an item's arguments"),
        ({"cost": "tokens"}, r"late.cost: .* one of the parameters text, got 'tokens'"),
        ({"cost": "txt", "max_batch_cost": 9}, r"one of the parameters text, got 'txt'; did you"),
        ({"cost": 5, "max_batch_cost": 9}, r"late.cost: must be a function of an item's arguments"),
        (
            {"cost": "text", "max_item_cost": "9"},
            r"max_item_cost: must be a number above 0, got '9'",
        ),
        ({"cost": "text", "max_item_cost": 0}, r"max_item_cost: must be a number above 0, got 0"),
        ({"cost": "text", "max_batch_cost": -1}, r"late.max_batch_cost: must be a number above 0"),
        (
            {"cost": lambda text, lang: 1, "max_batch_cost": 9},  # noqa: ARG005 (it is not called)
            r"late.cost: .*\(text, lang\) must take what an item has \(text\): missing a required",
        ),
        (
            {"cost": lambda: 1, "max_batch_cost": 9},
            r"must take what an item has \(text\): too many",
        ),
        ({"sort_window": 4}, r"late.sort_window: has no effect without padded=True or batch_by"),
        ({"padded": True}, r"late.padded: has no effect without max_batch_cost"),
    ],
)
def test_wrong_options_are_refused_when_the_task_is_bound(app, options, words):
    """The error names the task, the option and the way out."""
    with pytest.raises(ConfigurationError, match=words):

        @app.task(base=BatchTask, name="late", lazy=False, **options)
        def late(text):
            """Do nothing."""


def test_rows_are_limited_far_above_where_cost_is(app):
    """The limit that counts is the cost, unless the task or its app says how many rows."""
    options = {"lazy": False, "cost": "item", "max_batch_cost": 9}
    wide = Embed.as_task(app, name="wide", **options)
    narrow = Embed.as_task(app, name="narrow", max_batch_size=8, **options)

    assert (LARGEST_BATCH, 8) == (
        wide._batch_runner.cost.limits.rows,
        narrow._batch_runner.cost.limits.rows,
    )


@pytest.mark.parametrize(
    "cost", [max, float, lambda *texts: len(texts), lambda text, more=1: text and more]
)
def test_functions_that_can_be_called_are_taken(app, cost):
    """Also those of which Python does not know the parameters."""
    task = Embed.as_task(app, name="embed", max_batch_cost=10, cost=cost)

    assert item_cost_of(task) is not None


def test_the_parameters_of_a_cost_function_are_checked(app):
    """It takes all that an item has, those with defaults and those by name as well."""

    def of_two(text, lang):
        return len(text + lang)

    with pytest.raises(ConfigurationError, match=r"two.cost: .*item has \(text, lang, hint\)"):
        app.task(base=BatchTask, name="two", max_batch_cost=9, cost=of_two, lazy=False)(translate)


def test_a_forgotten_static_method_is_named(app):
    """The function of a class would get no instance."""

    class Method(Embed):
        def cost(self, text):
            """Return the length."""
            return len(text)

    class OfClass(Embed):
        @classmethod
        def cost(cls, text):
            """Return the length."""
            return len(text)

    for model in (Method, OfClass):
        task = model.as_task(app, name=model.__name__, max_batch_cost=10)
        with pytest.raises(ConfigurationError, match=r"\.cost: .*; make it a static method$"):
            task.name  # noqa: B018 (the task is bound when it is used)


def test_a_window_without_padding_is_for_keys(app):
    """From so many batches' worth of requests are those of one key chosen."""

    @app.task(base=BatchTask, name="keys", batch_by="lang", sort_window=4, lazy=False)
    def keys(text, lang):  # noqa: ARG001
        return text

    assert 4 == keys.sort_window
