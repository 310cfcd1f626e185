"""The keys of items, which options of a task say what they are, and what a function then gets."""

from __future__ import annotations

import inspect
import sys
from typing import Any

import pytest
from billiard.exceptions import SoftTimeLimitExceeded
from celery import Celery
from celery.exceptions import WorkerShutdown

from celery_batch import BatchTask, Model
from celery_batch.errors import ConfigurationError, InvalidChunk, InvalidKey
from celery_batch.items.functions import ItemKey
from celery_batch.runtime import registry


def translate(text, lang="en", *, hint=""):
    """Take two parameters and an option."""


def key_of(batch_by: Any) -> ItemKey:
    """Return what computes the keys of `translate`'s items."""
    return ItemKey("shop.translate", inspect.signature(translate), batch_by)


@pytest.fixture
def app() -> Celery:
    """An app whose tasks run in place."""
    app = Celery("shop", set_as_current=False)
    app.conf.task_always_eager = True
    return app


@pytest.mark.parametrize(
    ("args", "kwargs", "key"),
    [
        (["a"], {}, "en"),
        (["a", "de"], {}, "de"),
        (["a"], {"lang": None}, None),
        ([], {"lang": ("x", 1), "text": "a"}, ("x", 1)),
        (["a"], {"hint": "x"}, "en"),
    ],
)
def test_the_value_of_a_parameter_is_the_key(args, kwargs, key):
    """However it is passed."""
    assert key == key_of("lang").of_call(args, kwargs)


def test_several_parameters_are_one_key():
    """In the order in which they are named, each once."""
    assert ("x", "en") == key_of(("hint", "lang", "hint")).of_call(["a"], {"hint": "x"})


class Tensor:
    """A value that is hashable, and whose comparison is no truth value."""

    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("Boolean value of Tensor with more than one value is ambiguous")


def test_a_function_gets_what_an_item_gets():
    """Its arguments are those of the task, defaults included."""

    def key(text, lang, *, hint):
        return len(text), lang, hint

    assert (1, "en", "x") == key_of(key).of_call(["a"], {"hint": "x"})
    assert (1, "en", "") == key_of(key).of_rows([["a", "b"], ["en", "en"], ["", ""]])


@pytest.mark.parametrize(
    ("batch_by", "message"),
    [
        ("text", "shop.translate: text must be hashable to form batches by it: unhashable"),
        (("text", "lang"), "shop.translate: text and lang must be hashable"),
        (lambda text, *_, **__: text, "shop.translate: the key of an item must be hashable"),
        (lambda text, *_, **__: text[9], "batch_by function raised IndexError: list index"),
        (
            lambda *_, **__: Tensor(),
            "the key of an item must be hashable to form batches by it: Boo",
        ),
    ],
)
def test_an_item_may_have_no_key(batch_by, message):
    """Its error says what is wrong."""
    with pytest.raises(InvalidKey, match=message):
        key_of(batch_by).of_call([["a"]], {})


@pytest.mark.parametrize("interrupt", [SoftTimeLimitExceeded, WorkerShutdown, KeyboardInterrupt])
def test_an_interrupt_is_no_error_of_the_function(interrupt):
    """A time limit, or a worker that is to stop, strikes in whatever runs."""

    def late(*_, **__):
        raise interrupt

    with pytest.raises(interrupt):
        key_of(late).of_call(["a"], {})
    with pytest.raises(interrupt):
        key_of(lambda *_, **__: Exits(interrupt)).of_call(["a"], {})


class Exits:
    """A key whose hash raises an error."""

    def __init__(self, error: type[BaseException]) -> None:
        self.error = error

    def __hash__(self) -> int:
        raise self.error


def test_nothing_that_a_function_raises_ends_the_process():
    """The worker's main process computes keys, and the message would end the next one, too."""

    def leave(*_, **__):
        sys.exit(3)

    with pytest.raises(InvalidKey, match="its batch_by function raised SystemExit: 3"):
        key_of(leave).of_call(["a"], {})
    with pytest.raises(InvalidKey, match="the key of an item must be hashable"):
        key_of(lambda *_, **__: Exits(SystemExit)).of_call(["a"], {})


def test_rows_of_one_request_have_one_key():
    """Others are refused, with the first two keys that differ."""
    with pytest.raises(InvalidKey, match="row 1 has the key 1, and row 3 has 2; send a chunk"):
        key_of(lambda text, *_, **__: len(text)).of_rows([["a", "b", "cc"], "xyz", "xyz"])


class Method:
    """A class whose function is no static method."""

    def key(self, text, lang):
        """Return both."""
        return text, lang


@pytest.mark.parametrize(
    ("batch_by", "message"),
    [
        ("langs", "one of|names of the parameters text, lang, got 'langs'; did you mean lang"),
        (5, "must be a function of an item's arguments, or names of parameters, got 5"),
        ((), "names of parameters, got ()"),
        (("lang", 5), "names of parameters"),
        (("lang", len), "; give one function, which may return a tuple$"),
        (("lang", "lang"), "names 'lang' twice"),
        (
            len,
            r"item has \(text, lang\): too many .*; it gets the values of all these parameters$",
        ),
        (Method.key, "missing a required argument: 'lang'; make it a static method$"),
        (("text", "lang"), "names all parameters, so that none is left with a list"),
    ],
)
def test_wrong_options_are_refused(app, batch_by, message):
    """When the app is finalised."""

    @app.task(base=BatchTask, name="shop.t", batch_by=batch_by)
    def task(text, lang):
        """Never runs."""

    with pytest.raises(ConfigurationError, match=rf"shop\.t\.batch_by: .*({message})"):
        app.finalize()


def test_the_function_gets_one_value(app):
    """In place of a list, in every way in which it can be called in this process."""

    @app.task(base=BatchTask, batch_by="lang")
    def say(text, lang="en"):
        return [f"{lang} {each}" for each in text]

    many = say.apply_many([(("a",), None), (("b", "de"), None)])
    assert "de a" == say.delay("a", "de").get()
    assert "en a" == say("a")
    assert ["de a", "de b"] == say.delay_rows(["a", "b"], "de").get()
    assert ["en a"] == say.delay_rows(["a"]).get()
    assert ["fr a"] == say.apply_rows(["a"], kwargs={"lang": "fr"}).get()
    assert ["fr a"] == say.rows_signature(["a"], kwargs={"lang": "fr"}).apply().get()
    assert ["de a", "de b"] == say.run_batch(["a", "b"], "de")
    assert ["en a", "de b"] == [each.get() for each in many]


def test_an_item_without_a_key_fails_in_place(app):
    """As in a worker."""

    @app.task(base=BatchTask, batch_by="lang")
    def say(text, lang):
        return [lang + each for each in text]

    with pytest.raises(InvalidKey):
        say.delay("a", ["de"]).get()


@pytest.mark.parametrize("wrong", [["de", "de"], {"de": 1}])
def test_a_chunk_takes_no_list_of_keys(app, wrong):
    """The error says what it takes."""

    @app.task(base=BatchTask, batch_by="lang")
    def say(text, lang):
        """Never runs."""

    with pytest.raises(InvalidChunk, match="lang: takes one hashable value for all rows"):
        say.delay_rows(["a", "b"], wrong)
    with pytest.raises(InvalidChunk, match="a chunk has from 1 to 1,000,000 rows, got 0"):
        say.apply_rows(kwargs={"lang": "de"})
    with pytest.raises(TypeError, match="too many"):
        say.delay_rows(["a"], "de", ["more"])


class Translator(Model):
    """Takes texts of one language."""

    batch_by = "lang"
    calls: list[tuple[list[str], str]]

    def load(self, _device):
        """Note what it is called with from now on."""
        self.calls = []

    def examples(self):
        """Return texts of two languages."""
        return [("a", "de"), ("b", "fr"), ("c", "de")]

    def predict(self, text, lang):
        """Return the texts."""
        self.calls.append((text, lang))
        return text


def test_a_model_is_warmed_up_with_one_key_at_a_time():
    """Its examples are grouped as items would be."""
    model = registry.warm(Translator, "Translator", "cpu")

    assert [(["a", "c"], "de"), (["b"], "fr")] == model.calls  # type: ignore[attr-defined]


def test_a_models_examples_are_grouped_by_its_function():
    """Those of one length, for a model that takes no others."""

    class Sized(Translator):
        batch_by = staticmethod(len)

        def examples(self):
            return ["a", "bb", "c"]

        def predict(self, text):
            self.calls.append((text, ""))
            return text

    model = registry.warm(Sized, "Sized", "cpu")

    assert [["a", "c"], ["bb"]] == [texts for texts, _ in model.calls]  # type: ignore[attr-defined]


def test_a_model_says_by_which_parameters(app):
    """Its task needs no option; another one is refused, since it changes what predict gets."""
    task = Translator.as_task(app, name="shop.translator")

    assert "a" == task.delay("a", "de").get()
    with pytest.raises(ConfigurationError, match=r"Translator\.predict gets one value of lang"):
        Translator.as_task(app, name="shop.other", batch_by="text")


def test_an_option_holds_for_the_model(app):
    """All of its tasks get one value, and its warm-up as well."""

    class Other(Translator):
        batch_by = None

    Other.as_task(app, name="shop.one", batch_by=("lang",))
    second = Other.as_task(app, name="shop.two")

    assert ("lang",) == second._key_names
    assert Other.batch_by is None  # the class is the user's
    assert 2 == len(registry.warm(Other, "Other", "cpu").calls)  # type: ignore[attr-defined]


def test_an_option_must_hold_for_earlier_tasks_of_the_model(app):
    """These give `predict` a list of each parameter; a class that says it is right for all."""

    class Other(Translator):
        batch_by = None

    Other.as_task(app, name="shop.one")

    with pytest.raises(ConfigurationError, match=r"predict gets lists in another task .* of lang;"):
        Other.as_task(app, name="shop.two", batch_by="lang")
