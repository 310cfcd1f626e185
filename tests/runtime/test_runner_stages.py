"""A batch whose rows are collated before `predict`, and whose outputs are uncollated after it."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Sequence
from itertools import chain
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_batch import OutOfMemory, WrongResultCount
from celery_batch.batching.cost import CostLimits
from celery_batch.runtime.runner import BatchRun, CallCost, ErrorPolicy, FixedSizes, Runner
from celery_batch.runtime.stages import Stages

PAD = 7777


class Batch(tuple):
    """What `collate` returns; `predict` takes nothing else."""

    __slots__ = ()


class Model:
    """
    Remembers what each stage gets, and fails at given items or with too many.

    Args:
        bad: By stage, the items at which it raises.
        memory: By stage, for how many rows it has memory.
    """

    def __init__(
        self, bad: dict[str, Sequence[int]] | None = None, memory: dict[str, int] | None = None
    ) -> None:
        self.bad, self.memory = bad or {}, memory or {}
        self.seen: dict[str, list[Any]] = {"collate": [], "predict": [], "uncollate": []}

    def _see(self, stage: str, items: Sequence[int]) -> None:
        self.seen[stage].append(list(items))
        if len(items) > self.memory.get(stage, len(items)):
            raise MemoryError(f"no room to {stage}")
        if failing := set(items) & set(self.bad.get(stage, ())):
            raise ValueError(f"{stage} refuses {min(failing)}")

    def collate(self, items: list[int]) -> Batch:
        """Make a batch of items."""
        self._see("collate", items)
        return Batch(items)

    def predict(self, batch: Batch) -> Batch:
        """Double each item."""
        assert isinstance(batch, Batch)
        self._see("predict", batch)
        return Batch(2 * item for item in batch)

    def uncollate(self, output: Batch) -> list[int]:
        """Take a batch apart."""
        assert isinstance(output, Batch)
        self._see("uncollate", [item // 2 for item in output])
        return [*output]

    @property
    def stages(self) -> Stages:
        """The stages in which a runner calls it."""
        return Stages(self.predict, self.collate, self.uncollate)


def runner(model: Model, **options: Any) -> Runner:
    """Return a runner of a model's stages."""
    return Runner(model.stages, "shop.model", **options)


def run_beside(runner: Runner, *columns: list[Any]) -> list[Any]:
    """Return the outputs of a batch that runs as in a worker: see `beside`."""
    return beside(BatchRun(runner, columns))


def beside(run: BatchRun) -> list[Any]:
    """Run a batch as a worker does that prepares it and finishes it on another thread."""
    run.collate()
    run.call(uncollate=False)
    run.uncollate()
    return run.outputs


def shown(outputs: Sequence[Any]) -> list[Any]:
    """Return outputs with the texts of errors, and "again" for what is to run again."""
    return [
        each
        if isinstance(each, int)
        else "again"
        if each.again
        else str(each.error)
        if each.error
        else each.value
        for each in outputs
    ]


@pytest.mark.parametrize("stage", ["collate", "predict", "uncollate"])
def test_running_out_of_memory_in_any_stage_is_the_models(stage: str):
    """What fits is remembered, and later batches are not collated larger."""
    model = Model(memory={stage: 4})
    batches = runner(model)
    run = BatchRun(batches, [[*range(8)]])

    assert [0, 2, 4, 6, 8, 10, 12, 14] == run.call()
    assert 4 == batches.safe_size.largest
    assert 1 == run.counts.out_of_memory
    before = len(model.seen["collate"])
    assert [2, 2, 2, 2, 2] == shown(batches.run([1] * 5))
    assert [[1, 1, 1, 1], [1]] == model.seen["collate"][before:]


def test_item_that_cannot_be_collated_alone_is_out_of_memory():
    """The error of one item is `OutOfMemory`, as that of `predict`."""
    (outcome,) = runner(Model(memory={"collate": 0})).run([1])

    assert isinstance(outcome.error, OutOfMemory)


def test_what_was_collated_before_is_not_collated_again():
    """The first call of a batch uses what another thread has made of its rows."""
    model = Model()

    assert [2, 4] == run_beside(runner(model), [1, 2])
    assert [[1, 2]] == model.seen["collate"]


@given(st.lists(st.integers(0, 9), min_size=1, max_size=20), st.integers(1, 8))
def test_batch_of_several_calls_is_collated_call_by_call(items: list[int], most: int):
    """Its first call is collated before it runs, the others as they come."""
    model = Model()

    assert [2 * item for item in items] == run_beside(runner(model, most=most), items)
    assert model.seen["predict"] == model.seen["collate"]
    assert items == [*chain.from_iterable(model.seen["predict"])]


@pytest.mark.parametrize("stage", ["collate", "predict"])
@given(items=st.lists(st.integers(0, 9), min_size=1, max_size=20))
def test_error_beside_the_model_is_isolated_in_it(stage: str, items: list[int]):
    """Halves of a batch that could not be collated are collated from its rows."""
    outputs = run_beside(runner(Model(bad={stage: [3]})), items)

    expected = [f"{stage} refuses 3" if item == 3 else 2 * item for item in items]
    assert expected == shown(outputs)


def test_memory_that_is_short_beside_the_model_counts_as_the_models():
    """The batch runs in halves, each collated again."""
    model = Model(memory={"collate": 2})
    batches = runner(model)
    run = BatchRun(batches, [[0, 1, 2, 3]])

    assert [0, 2, 4, 6] == beside(run)
    assert [[0, 1, 2, 3], [0, 1], [2, 3]] == model.seen["collate"]
    assert (2, 1, 3) == (batches.safe_size.largest, run.counts.out_of_memory, run.counts.calls)


def test_what_no_longer_fits_is_collated_again():
    """A batch that was collated before memory was found to be short runs in smaller parts."""
    model = Model()
    batches = runner(model)
    run = BatchRun(batches, [[1, 2, 3, 4]])
    run.collate()
    model.memory = {"predict": 2}
    batches.run([1, 1, 1, 1])

    assert [2, 4, 6, 8] == run.call()
    assert [[1, 2], [3, 4]] == model.seen["collate"][-2:]


def test_nothing_holds_what_was_collated_while_memory_is_freed():
    """A call that runs out of memory leaves no tensors behind for its halves."""
    alive: list[int] = []
    tensors: list[weakref.ref[Any]] = []

    class Tensor(set):
        pass

    def collate(items: list[int]) -> Tensor:
        gc.collect()
        alive.append(sum(each() is not None for each in tensors))
        tensor = Tensor(items)
        tensors.append(weakref.ref(tensor))
        return tensor

    def predict(tensor: Tensor) -> list[int]:
        if len(tensor) > 1:
            raise MemoryError("no room")
        return [*tensor]

    assert [1, 2] == run_beside(Runner(Stages(predict, collate), "shop.model"), [1, 2])
    assert [0, 0, 0] == alive


@given(st.lists(st.integers(0, 9), min_size=1, max_size=20), st.booleans())
def test_padding_rows_are_collated(items, has_row):
    """Each call has one of the sizes in every stage, and the outputs of padding are cut."""
    model = Model(bad={"collate": [3]})
    sizes = FixedSizes((1, 4, 16), (lambda: (PAD,)) if has_row else None)
    run = BatchRun(runner(model, most=16, fixed_sizes=sizes), [items])

    expected = ["collate refuses 3" if item == 3 else 2 * item for item in items]
    assert expected == shown(beside(run))
    assert {1, 4, 16} >= {len(call) for calls in model.seen.values() for call in calls}
    if has_row and 3 not in items:
        assert run.counts.padding_rows == sum(call.count(PAD) for call in model.seen["predict"])


@given(st.lists(st.integers(1, 9), min_size=1, max_size=20))
def test_rows_are_collated_in_the_order_in_which_they_run(items: list[int]):
    """Where cost is limited, a call has rows of similar cost, and each its own output."""
    model = Model()
    cost = CallCost(
        lambda columns: [float(each) for each in columns[0]],
        CostLimits(8, 20.0, is_padded=True),
    )

    assert [2 * item for item in items] == run_beside(runner(model, cost=cost), items)
    assert model.seen["predict"] == model.seen["collate"]


def test_items_that_cannot_be_uncollated_later_run_again_alone():
    """A model that runs the next batch cannot look for the item at fault."""
    model = Model(bad={"uncollate": [3]})

    assert ["again"] * 3 == shown(run_beside(runner(model), [1, 2, 3]))
    assert ["uncollate refuses 3"] == shown(run_beside(runner(model), [3]))
    assert [2, 4, "uncollate refuses 3"] == shown(runner(model).run([1, 2, 3]))


def test_errors_of_the_whole_batch_are_those_of_its_items_later():
    """Nothing runs again where that would not help, or is not allowed."""
    model = Model()
    short = Stages(model.predict, model.collate, lambda output: output[1:])
    careful = ErrorPolicy(isolate_failures=False)

    outputs = run_beside(Runner(short, "shop.model"), [1, 2])
    assert {WrongResultCount} == {type(each.error) for each in outputs}
    outputs = run_beside(runner(Model(bad={"uncollate": [2]}), error_policy=careful), [1, 2])
    assert ["uncollate refuses 2"] * 2 == shown(outputs)


def test_memory_that_is_short_later_is_remembered():
    """The items run again alone, and later batches are smaller."""
    batches = runner(Model(memory={"uncollate": 2}))
    run = BatchRun(batches, [[1, 2, 3, 4]])

    assert ["again"] * 4 == shown(beside(run))
    assert (2, 1) == (batches.safe_size.largest, run.counts.out_of_memory)
    (output,) = run_beside(runner(Model(memory={"uncollate": 0})), [1])
    assert isinstance(output.error, OutOfMemory)


def test_device_that_fails_later_is_broken():
    """The error of a kernel may show where its output is read."""

    def uncollate(_: Any) -> Any:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    batches = Runner(Stages(Model().predict, Model().collate, uncollate), "shop.model")

    assert ["again"] * 2 == shown(run_beside(batches, [1, 2]))
    assert batches.broken is not None
    assert "illegal memory access" in batches.broken


def test_model_without_stages_is_not_prepared():
    """There is nothing to collate beside the model before."""
    plain = Runner(lambda items: items, "shop.model")
    run, empty = BatchRun(plain, [[1]]), BatchRun(runner(Model()), [[]])
    run.collate()
    empty.collate()

    assert not plain.has_stages
    assert runner(Model()).has_stages
    assert [1] == run.call(uncollate=False)
    assert 1 == len(run.timings)
    assert [] == empty.call()
