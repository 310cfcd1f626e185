"""A batch through the model, an outcome for every item."""

from __future__ import annotations

import traceback
from collections import UserList, deque
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from celery_batch import WrongResultCount
from celery_batch.serving.runner import Outcome, Runner
from celery_batch.testing import EchoModel, HungryModel, PoisonModel


def returning(outputs: Any) -> Runner:
    """Make a runner of a model that returns this, whatever it is asked."""
    return Runner(lambda _: outputs, "shop.model")


def values(outcomes: list[Outcome]) -> list[Any]:
    """Return what came out, raising what went wrong."""
    return [outcome.unwrap() for outcome in outcomes]


def the_error(outcomes: list[Outcome]) -> Exception:
    """Return the one error that all items share."""
    (error,) = {outcome.error for outcome in outcomes}
    assert error is not None
    return error


@given(st.lists(st.integers(), min_size=1))
def test_each_item_gets_its_own_output(items: list[int]):
    """Outputs belong to inputs by their order."""
    runner = Runner(EchoModel().predict, "echo")

    assert items == values(runner.run(items))


def test_every_parameter_is_a_column():
    """A model of several parameters is called with one list for each."""
    runner = Runner(lambda a, b: [x + y for x, y in zip(a, b, strict=True)], "sum")

    assert [11, 22] == values(runner.run([1, 2], [10, 20]))


@pytest.mark.parametrize(
    "outputs",
    [
        [1, 2, 3],
        (1, 2, 3),
        deque([1, 2, 3]),
        UserList([1, 2, 3]),
        range(1, 4),
        np.array([1, 2, 3]),
        torch.tensor([1, 2, 3]),
    ],
    ids=lambda outputs: type(outputs).__name__,
)
def test_anything_in_order_and_of_known_length_will_do(outputs: Any):
    """Lists, tuples, arrays and tensors all become plain values."""
    answers = values(returning(outputs).run(["a", "b", "c"]))

    assert [1, 2, 3] == answers
    assert {int} == {type(answer) for answer in answers}


def test_rows_of_an_array_become_lists():
    """What a result serializer cannot carry is unpacked all the way down."""
    outcomes = returning(np.array([[0.5, 1.0], [2.0, 4.0]])).run(["a", "b"])

    assert [[0.5, 1.0], [2.0, 4.0]] == values(outcomes)


def test_exception_among_the_outputs_fails_its_item_alone():
    """An error in an item's place is that item's outcome; the neighbours keep theirs."""
    one, two, three = returning([1, KeyError("two"), 3]).run(["a", "b", "c"])

    assert (1, 3) == (one.unwrap(), three.unwrap())
    with pytest.raises(KeyError, match="two"):
        two.unwrap()


def test_exception_class_is_a_value_like_any_other():
    """Only an instance is an error; a class might be what was asked for."""
    assert [KeyError] == values(returning([KeyError]).run(["a"]))


def test_none_among_the_outputs_is_a_value():
    """A model may have nothing to say about an item."""
    assert [None, 0] == values(returning([None, 0]).run(["a", "b"]))


def test_what_the_model_raises_is_the_outcome_of_all():
    """The original error, not one of ours, reaches every item."""
    outcomes = Runner(PoisonModel("bad").predict, "shop.model").run(["good", "bad", "fine"])

    assert 3 == len(outcomes)
    assert isinstance(the_error(outcomes), ValueError)
    for outcome in outcomes:
        with pytest.raises(ValueError, match="cannot digest 'bad'"):
            outcome.unwrap()


def test_running_out_of_memory_is_an_outcome_too():
    """A batch too large for the device fails its items; the process lives."""
    runner = Runner(HungryModel(limit=2).predict, "shop.model")

    assert isinstance(the_error(runner.run([1, 2, 3])), MemoryError)
    assert [1, 2] == values(runner.run([1, 2]))


def test_shared_error_keeps_the_model_s_own_traceback():
    """However many items raise it, each traceback leads into the model, once."""
    outcomes = Runner(PoisonModel(1).predict, "shop.model").run([1] * 5)
    depths = []
    for outcome in outcomes:
        with pytest.raises(ValueError, match="cannot digest") as caught:
            outcome.unwrap()
        frames = [frame.name for frame in traceback.extract_tb(caught.tb)]
        depths.append(frames.count("predict"))

    assert [1] * 5 == depths


def test_call_to_end_the_process_is_not_the_model_s_error():
    """What asks the whole process to stop passes through."""

    def predict(_: list[Any]) -> list[Any]:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Runner(predict, "shop.model").run([1])


@pytest.mark.parametrize("outputs", [[], [1], [1, 2, 3]], ids=len)
def test_wrong_number_of_outputs_is_nobody_s_output(outputs: list[int]):
    """Too few or too many: which belongs to whom cannot be known, so nobody gets one."""
    outcomes = returning(outputs).run(["a", "b"])

    assert 2 == len(outcomes)
    assert isinstance(the_error(outcomes), WrongResultCount)
    assert (
        f"shop.model returned {len(outputs)} outputs for a batch of 2;"
        " it must return one output per input, in order"
    ) == str(the_error(outcomes))


@pytest.mark.parametrize(
    ("outputs", "what"),
    [
        (None, "None"),
        (7, "a int"),
        ("ab", "a str"),
        (b"ab", "a bytes"),
        ({"a": 1, "b": 2}, "a dict"),
        (iter([1, 2]), "a list_iterator"),
        (np.array(7), "a int"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_is_no_list_is_refused_by_name(outputs: Any, what: str):
    """A string of the right length is not two outputs, and a forgotten return is told as such."""
    outcomes = returning(outputs).run(["a", "b"])

    assert (
        f"shop.model returned {what} for a batch of 2;"
        " it must return a list with one output per input, in order"
    ) == str(the_error(outcomes))


def test_model_s_own_list_may_change_afterwards():
    """A model that fills one list again and again does not rewrite outcomes."""
    reused = [1, 2]
    outcomes = returning(reused).run(["a", "b"])
    reused[:] = [None, None]

    assert [1, 2] == values(outcomes)
