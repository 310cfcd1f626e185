"""What a model's `predict` takes, and rows made of its examples."""

from __future__ import annotations

from typing import Any

import pytest

from celery_batch import ConfigurationError, LoadFailed, Model
from celery_batch.runtime.registry import warm
from celery_batch.runtime.signature import call_with_columns, example_rows, signature_of


class One(Model):
    """Takes one list."""

    def predict(self, batch):
        """Return it."""
        return batch


class Several(Model):
    """Takes three, one with a default and one by name only."""

    def __init__(self, *examples: Any) -> None:
        self.given = examples
        self.seen: list[Any] = []

    def examples(self):
        """Return what this was made with."""
        return self.given

    def predict(self, text, lang="en", *, loud):
        """Remember what came."""
        self.seen.append((text, lang, loud))
        return list(zip(text, lang, loud, strict=True))


class Static(Model):
    """Has a `predict` without self."""

    @staticmethod
    def predict(text, lang):
        """Join."""
        return [a + b for a, b in zip(text, lang, strict=True)]


@pytest.mark.parametrize(
    ("model", "names"),
    [
        (One, ["batch"]),
        (Several, ["text", "lang", "loud"]),
        (Static, ["text", "lang"]),
        (Model, ["batch"]),
    ],
)
def test_parameters_are_those_of_the_method(model: type[Model], names: list[str]):
    """Neither self nor anything else is among them."""
    assert names == list(signature_of(model).parameters)


def test_examples_of_one_parameter_are_taken_as_they_are():
    """A tuple is an input like any other where there is one parameter."""
    assert [((1, 2),), ({"a": 1},)] == example_rows(One, [(1, 2), {"a": 1}])


def test_examples_of_several_parameters_are_rows():
    """A tuple has a value for each, a mapping names them, defaults are filled in."""
    examples = [{"text": "a", "loud": True}, {"text": "b", "lang": "de", "loud": False}]

    assert [("a", "en", True), ("b", "de", False)] == example_rows(Several, examples)
    assert [("x", "y")] == example_rows(Static, [("x", "y")])


def test_a_model_of_several_parameters_warms_up():
    """Its examples come to it as columns."""
    model = Several({"text": "a", "loud": 1}, {"text": "b", "loud": 2})
    warm(lambda: model, "several", "cpu")

    assert [(["a", "b"], ["en", "en"], [1, 2])] == model.seen


def test_an_example_that_does_not_fit_is_named():
    """The error names the model, its parameters and the example, and a start fails with it."""
    with pytest.raises(
        ConfigurationError,
        match=r"Static\.examples: 'x' does not fit the parameters \(text, lang\)",
    ):
        example_rows(Static, ["x"])
    with pytest.raises(LoadFailed, match=r"examples: 'x' does not fit"):
        warm(lambda: Several("x"), "several", "cpu")


@pytest.mark.parametrize("examples", ["abc", b"abc", {"text": "a"}, 3, None])
def test_examples_that_are_no_list_are_refused(examples):
    """The letters of a text would be warmed up with."""
    with pytest.raises(ConfigurationError, match=r"Static\.examples: must return a list of inputs"):
        example_rows(Static, examples)


def test_columns_go_where_they_are_asked_for():
    """Parameters by name only are given by name."""
    columns = [["a"], ["de"], [3]]

    assert [("a", "de", 3)] == call_with_columns(Several().predict, signature_of(Several), columns)
