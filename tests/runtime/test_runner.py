"""A batch through the model, an outcome for every item."""

from __future__ import annotations

import logging
import math
import threading
import traceback
from collections import UserList, deque
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from celery_batch import OutOfMemory, WrongResultCount
from celery_batch.batching.isolation import SafeSize
from celery_batch.runtime.runner import BatchRun, ErrorPolicy, Outcome, Runner, as_outcome
from celery_batch.testing import HungryModel, PoisonModel


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


def test_exception_class_is_a_value_like_any_other():
    """Only an instance is an error; a class might be what was asked for."""
    assert [KeyError] == values(returning([KeyError]).run(["a"]))


def test_none_among_the_outputs_is_a_value():
    """A model may have nothing to say about an item."""
    assert [None, 0] == values(returning([None, 0]).run(["a", "b"]))


@given(st.integers(min_value=1, max_value=70), st.data())
def test_cost_of_isolation_is_bounded(size: int, data: st.DataObject):
    """However many are bad and wherever they stand, calls stay within 1 + 2 k log2 n."""
    bad = data.draw(st.sets(st.integers(min_value=0, max_value=size - 1)))
    runner = Runner(lambda items: [1 // (x not in bad) for x in items], "shop.model")
    run = BatchRun(runner, [list(range(size))], alone=size == 1)
    outcomes = map(as_outcome, run.call())

    assert bad == {index for index, outcome in enumerate(outcomes) if outcome.error}
    assert run.counts.calls <= 1 + 2 * len(bad) * math.ceil(math.log2(size))


def test_one_bad_item_in_32_costs_11_calls():
    """The promise of the documentation, for any place of the bad item."""
    calls = set()
    for bad in range(32):
        run = BatchRun(Runner(PoisonModel(bad).predict, "shop.model"), [list(range(32))])
        run.call()
        calls.add(run.counts.calls)

    assert {11} == calls


def test_verdict_is_for_the_whole_batch():
    """An error by which the function speaks for all is not taken for a bad item's."""
    runner = Runner(PoisonModel("bad").predict, "m", ErrorPolicy(verdicts=(ValueError,)))
    run = BatchRun(runner, [["good", "bad", "fine"]])

    assert isinstance(the_error(run.call()), ValueError)
    assert 1 == run.counts.calls


def test_interrupted_batch_is_to_run_again():
    """An interrupt from outside ends the run; items without output are to run again, alone."""

    def interrupted(items: list[int]) -> list[int]:
        if 3 in items:
            raise TimeoutError if len(items) == 1 else ValueError
        return items

    runner = Runner(interrupted, "m", ErrorPolicy(interrupts=(TimeoutError,)))
    outcomes = runner.run([1, 2, 3, 4])

    assert [False, False, True, True] == [outcome.again for outcome in outcomes]
    assert [1, 2] == values(outcomes[:2])


def test_interrupt_is_the_error_of_an_item_alone():
    """An item that was interrupted alone does not run again."""

    def slow(_: list[int]) -> list[int]:
        raise TimeoutError("too slow")

    runner = Runner(slow, "m", ErrorPolicy(interrupts=(TimeoutError,)))

    assert isinstance(the_error(runner.run([1])), TimeoutError)


def test_items_that_do_not_fit_together_are_warned_of_once(caplog):
    """Each batch is counted, and one warning names what helps."""
    runner = Runner(lambda items: list(np.stack(items)), "shop.model")
    batch = [np.ones(3), np.ones(4), np.ones(3)]
    first, later = BatchRun(runner, [batch]), BatchRun(runner, [batch])
    with caplog.at_level(logging.WARNING):
        outputs = first.call()
        later.call()

    assert [3, 4, 3] == [len(value) for value in outputs]
    assert (1, 1) == (first.counts.split, later.counts.split)
    (record,) = caplog.records
    assert "shop.model raised ValueError(" in record.message
    assert (
        "a batch of 3 items, which all succeeded in smaller parts, after 5 calls" in record.message
    )


def test_a_batch_with_a_failing_item_is_not_counted_as_split(caplog):
    """One item failed, and was isolated: the others had to run again for it."""
    run = BatchRun(Runner(PoisonModel(13).predict, "shop.model"), [[1, 13, 2]])
    with caplog.at_level(logging.WARNING):
        run.call()

    assert (1, 0, []) == (run.counts.isolated, run.counts.split, caplog.records)


def test_batch_beyond_the_memory_is_split():
    """All items have outputs, in batches that fit; and later batches fit from the start."""
    runner = Runner(HungryModel(limit=3).predict, "shop.model")
    first, later = (BatchRun(runner, [list(range(8))]) for _ in range(2))

    assert list(range(8)) == first.call()
    assert (6, 2) == (first.counts.calls, runner.safe_size.largest)

    assert list(range(8)) == later.call()
    assert 4 == later.counts.calls


def test_item_beyond_the_memory_fails_alone():
    """What does not fit even alone fails with an error that says so; the others are answered."""

    def predict(items: list[int]) -> list[int]:
        if sum(items) > 10:
            raise MemoryError("no room")
        return items

    outcomes = Runner(predict, "shop.model").run([1, 2, 99, 3])

    assert [1, 2, 3] == [outcomes[i].unwrap() for i in (0, 1, 3)]
    with pytest.raises(OutOfMemory, match=r"shop\.model: one item alone does not fit into memory"):
        outcomes[2].unwrap()


def test_memory_error_among_the_outputs_is_translated():
    """Celery takes a MemoryError for the end of the worker, so an item's is called otherwise."""
    with pytest.raises(OutOfMemory):
        values(returning([MemoryError("no room")]).run([1]))


def test_torch_running_out_of_memory_is_recognised():
    """What torch raises on any device is cut in halves too."""

    def predict(items: list[int]) -> list[int]:
        if len(items) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB")
        return items

    runner = Runner(predict, "shop.model")

    assert [1, 2, 3, 4] == values(runner.run([1, 2, 3, 4]))
    assert 2 == runner.safe_size.largest


def test_larger_batches_are_risked_again_in_time():
    """After many batches of the safe size one more item is tried, and kept if it fits."""
    model = HungryModel(limit=2)
    runner = Runner(model.predict, "shop.model")
    runner.run([1, 2, 3, 4])
    model.limit = 100  # another process has freed memory
    for _ in range(SafeSize.FIRST_INTERVAL):
        runner.run([1, 2])

    assert 3 == runner.safe_size.largest


def test_broken_device_ends_the_run():
    """After an error that a process cannot recover from, its model is not asked again."""

    def predict(_: list[int]) -> list[int]:
        raise RuntimeError("CUDA error: device-side assert triggered")

    runner = Runner(predict, "shop.model")
    run = BatchRun(runner, [[1, 2, 3]])

    assert [True] * 3 == [outcome.again for outcome in run.call()]
    assert 1 == run.counts.calls
    assert "CUDA error: device-side assert triggered" == runner.broken


def test_broken_device_is_the_error_of_an_item_alone():
    """The bad item, isolated, fails with the device's own error."""

    def predict(_: list[int]) -> list[int]:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    runner = Runner(predict, "shop.model")
    error = the_error(runner.run([1]))

    assert "illegal memory access" in str(error)
    assert runner.broken is not None


def test_harmless_cuda_error_is_an_error_like_any_other():
    """A launch with wrong arguments leaves the device usable: the bad item is isolated."""

    def predict(items: list[int]) -> list[int]:
        if 3 in items:
            raise RuntimeError("CUDA error: invalid argument")
        return items

    runner = Runner(predict, "shop.model")
    outcomes = runner.run([1, 2, 3, 4])

    assert [False, False, True, False] == [outcome.error is not None for outcome in outcomes]
    assert runner.broken is None


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


def test_runs_on_several_threads_are_counted_each_by_itself():
    """Threads share a runner, and none of them counts the calls of another."""
    both_run = threading.Barrier(2)

    def predict(items: list[str]) -> list[str]:
        if len(items) > 1:
            both_run.wait(timeout=60)
            raise ValueError(items)
        return items

    runner = Runner(predict, "shop.model")
    runs = [BatchRun(runner, [["a", "b"]]) for _ in range(2)]
    threads = [threading.Thread(target=run.call) for run in runs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert [3, 3] == [run.counts.calls for run in runs]


@pytest.mark.parametrize(
    ("outputs", "what"),
    [
        (None, "None"),
        (7, "a value of type int"),
        ("ab", "a value of type str"),
        (b"ab", "a value of type bytes"),
        ({"a": 1, "b": 2}, "a value of type dict"),
        (iter([1, 2]), "a value of type list_iterator"),
        (np.array(7), "a value of type int"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_is_no_list_is_refused_by_name(outputs: Any, what: str):
    """A string of the right length is not two outputs, and the error names a forgotten return."""
    outcomes = returning(outputs).run(["a", "b"])

    assert (
        f"shop.model returned {what} for a batch of 2;"
        " it must return a list with one output per input, in order"
    ) == str(the_error(outcomes))


@pytest.mark.parametrize(
    "outputs",
    [
        (np.array([0.1, 0.9]), np.array([3, 4])),
        (np.zeros((2, 3)), np.zeros(2)),
        (torch.zeros(2), np.zeros(2)),
        (np.array([0.1, 0.9]), ["cat", "dog"]),
        torch.zeros(2, 3).max(dim=1),
        ([0.1, 0.9], ["cat", "dog"]),
        ([0.1, 0.9], ["cat", "dog"], [1, 2]),
        (torch.zeros(2), torch.zeros(2), torch.zeros(2), torch.zeros(2)),
    ],
    ids=[
        "dtype",
        "shape",
        "library",
        "list",
        "values, indices",
        "two lists",
        "three lists",
        "four tensors",
    ],
)
def test_columns_are_nobody_s_output(outputs: tuple[Any, ...]):
    """A tuple with a value of each item in each of its columns is refused in any number."""
    outcomes = returning(outputs).run(["a", "b"])

    assert isinstance(the_error(outcomes), WrongResultCount)
    assert (
        f"shop.model returned a tuple of {len(outputs)} columns for a batch of 2; it must return"
        " one output per input, in order, as in: return list(zip(scores, labels))"
    ) == str(the_error(outcomes))


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_two_columns_fail_in_every_batch(size: int):
    """Whether a batch happens to have as many items as there are columns makes no difference."""
    columns = (torch.zeros(size), torch.zeros(size, dtype=torch.int64))
    outcomes = returning(columns).run(["a"] * size)

    assert f"a tuple of 2 columns for a batch of {size};" in str(the_error(outcomes))


@pytest.mark.parametrize(
    "outputs",
    [
        torch.ones(2, 2).unbind(),
        (np.array(["a", "b"]), np.array(["long", "er"])),
        (np.zeros((2, 3)), np.zeros((1, 4))),
        ([0, 1], [0.5, 0.5]),
        ([1, "a"], [1, 2]),
        ("ab", "cd"),
    ],
    ids=["unbind", "texts", "shapes", "lists", "unlike values", "strings"],
)
def test_a_tuple_of_rows_is_outputs(outputs: tuple[Any, ...]):
    """Also where each of them is as long as the batch."""
    found = values(returning(outputs).run(["a", "b"]))

    assert [id(each) for each in outputs] == [id(each) for each in found]


def test_model_s_own_list_may_change_afterwards():
    """A model that fills one list again and again does not rewrite outcomes."""
    reused = [1, 2]
    outcomes = returning(reused).run(["a", "b"])
    reused[:] = [None, None]

    assert [1, 2] == values(outcomes)
