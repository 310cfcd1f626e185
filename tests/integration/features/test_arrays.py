"""Arrays and tensors as arguments and as results, without a setting."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from celery import chain, chord, group

from celery_batch import ChunkFailed
from tests.services.shared_setup import SOON, SharedSetup

pytestmark = pytest.mark.alike_on_brokers

POOLS = pytest.mark.pools("prefork", "solo", "threads")


@POOLS
def test_arrays_come_and_go(shared: SharedSetup):
    """Each item's result is an array with the type and the shape of its own."""
    sent = [np.arange(n, dtype=dtype) for n in (1, 3, 50) for dtype in ("f4", "i2", "c8")]
    found = shared.get(shared.arrays.delay_many(sent))

    for array, result in zip(sent, found, strict=True):
        assert isinstance(result, np.ndarray)
        assert array.dtype == result.dtype
        assert (2 * array).tolist() == result.tolist()
    assert sorted([["ndarray", str(a.dtype), [len(a)]] for a in sent]) == (
        sorted(shared.items("arrays"))
    )


def test_tensors_come_and_go(shared: SharedSetup):
    """A process without torch has them as arrays; here they are what they are."""
    found = shared.get(shared.arrays.delay_many([torch.arange(3.0), torch.ones(2, 2).half()]))

    assert {"ndarray", "Tensor"} >= {kind for kind, *_ in shared.items("arrays")}
    assert [[0, 2, 4], [[2, 2], [2, 2]]] == [each.tolist() for each in found]


@POOLS
def test_one_array_for_the_whole_batch(shared: SharedSetup):
    """Each caller gets its row, as an array; or a list where the task says so."""
    found = shared.get(shared.vectors.delay_many(range(5)))
    lists = shared.get(shared.vectors_as_lists.delay_many(range(5)))

    assert [[float(n)] * 3 for n in range(5)] == [each.tolist() for each in found] == lists
    assert {np.dtype("f4")} == {each.dtype for each in found}
    assert {list} == set(map(type, lists))


@pytest.mark.pools("prefork", "threads")
def test_a_model_that_fills_the_array_of_its_outputs_again(shared: SharedSetup):
    """Its next call runs while these are stored, and each caller has its own row."""
    found = shared.get(shared.refill.delay_many(range(200)))

    assert [float(n) for n in range(200)] == [row_of(each)[0] for each in found]
    assert all(1 == len({*row_of(each).tolist()}) for each in found)


def row_of(output: Any) -> Any:
    """Return the array in an output of `refill`."""
    while not isinstance(output, np.ndarray):
        output = output["row"] if isinstance(output, dict) else output[-1]
    return output


@POOLS
@pytest.mark.parametrize("size", [2, 5000], ids=["in the message", "beside it"])
def test_a_model_that_changes_its_items(shared: SharedSetup, size: int):
    """An item that fails does not change the answers of those that run again without it."""
    sent = [np.full(size, value) for value in (10.0, 20.0, 0.0, 30.0)]
    found = shared.get(shared.subtract.delay_many(sent))

    assert [9, 19, 29] == [found[0], found[1], found[3]]
    assert "ValueError('below 0')" == repr(found[2])


def test_many_rows_in_one_array(shared: SharedSetup):
    """A chunk's argument is one array, and its function gets the rows of it."""
    array = np.arange(12, dtype="f4").reshape(4, 3)
    found = shared.arrays.delay_rows(array).get(timeout=SOON)

    assert (2 * array).tolist() == [each.tolist() for each in found]
    assert [["ndarray", "float32", [3]]] * 4 == shared.items("arrays")


def test_an_array_of_complex_numbers(shared: SharedSetup):
    """Each item gets its number, as from a list of them."""
    assert [1j, 2j] == shared.get(shared.imaginary.delay_many([1, 2]))
    found = shared.get(shared.imaginary_tensor.delay_many([1, 2]))
    assert torch.equal(torch.tensor([1j, 2j]), torch.stack(found))


def test_a_matrix(shared: SharedSetup):
    """Each item gets a row, as of any array with two dimensions."""
    assert [[1, 1], [2, 2]] == [
        each.tolist() for each in shared.get(shared.matrix.delay_many([1, 2]))
    ]


def test_numbers_of_an_array_as_rows(shared: SharedSetup):
    """Rows of an array with one dimension are numbers."""
    found = shared.vectors.delay_rows(np.arange(3)).get(timeout=SOON)

    assert [[0, 0, 0], [1, 1, 1], [2, 2, 2]] == [each.tolist() for each in found]


def test_a_chunk_of_arrays_that_fails_keeps_the_others(shared: SharedSetup):
    """Its error has the outputs of the rows that did not fail."""
    result = shared.arrays.delay_rows([np.ones(2), "no array", np.ones(1)])
    with pytest.raises(ChunkFailed) as failure:
        result.get(timeout=SOON)

    assert [1] == [*failure.value.failures]
    assert [2, 2] == failure.value.outputs[0].tolist()


def test_canvas(shared: SharedSetup):
    """Arrays go from task to task, through ordinary ones, too."""
    array = np.ones(2)
    chained = chain(shared.arrays.s(array), shared.ordinary_array.s(), shared.arrays.s())
    joined = chord(group(shared.arrays.s(n * array) for n in range(3)), shared.gathered.s())

    assert [6, 6] == chained.delay().get(timeout=SOON).tolist()
    assert [[0, 0], [2, 2], [4, 4]] == [each.tolist() for each in joined.delay().get(timeout=SOON)]


def test_equal_arrays_are_computed_once(shared: SharedSetup):
    """Their bytes are compared; the answer that is kept is an array."""
    number = np.frombuffer(shared.unique("number").encode(), "u1")
    first = shared.cached_arrays.delay(number).get(timeout=SOON)
    second = shared.cached_arrays.delay(number.copy()).get(timeout=SOON)

    assert (2 * number).tolist() == first.tolist() == second.tolist()
    assert [number.tolist()] == shared.items("cached_arrays")
    assert first.dtype == second.dtype


def test_a_users_dict_stays_a_dict(shared: SharedSetup):
    """Though it looks like one of kombu's typed values."""
    data = {"__type__": "ndarray", "__value__": [1]}

    assert data == shared.echo.delay(data).get(timeout=SOON)


@pytest.mark.parametrize("option", ["link", "chain"])
def test_a_users_dict_stays_a_dict_in_later_tasks(shared: SharedSetup, option: str):
    """Also where the message of the first takes Celery's path, as one with a connection does."""
    data = {"__type__": "ndarray", "__value__": [1]}
    later = shared.echo.si(data)
    later.freeze()
    with shared.app.connection_for_write() as connection:
        shared.echo.apply_async((1,), **{option: [later]}, connection=connection)

    assert data == shared.app.AsyncResult(later.id).get(timeout=SOON)


def test_extended_results_have_the_arguments(shared: SharedSetup):
    """Arrays are arrays in them, too."""
    result = shared.arrays.delay(np.ones((40, 2), "f4"))
    result.get(timeout=SOON)

    assert (40, 2) == result.args[0].shape
