"""What a chunk may be given, and what its message says, without a worker."""

from __future__ import annotations

import json
from collections import deque
from typing import Any

import numpy as np
import pytest
from celery import Celery
from celery.app.task import Context

from celery_batch import BatchTask, ChunkFailed, InvalidChunk
from celery_batch.items.rows import MOST_ROWS, Chunk, chunk_of, row_count_header


@pytest.fixture
def app() -> Celery:
    """An app whose tasks run where they are called."""
    app = Celery("eager", broker="memory://", backend="cache+memory://", set_as_current=False)
    app.conf.task_always_eager = True
    return app


@pytest.fixture
def join(app: Celery) -> Any:
    """A batch task of several parameters, which fails at an empty text."""

    @app.task(base=BatchTask, name="eager.join", max_batch_size=4)
    def join(left: list[str], right: list[str] = "!", *, sep: list[str] = "-") -> list[Any]:
        assert len(left) <= 4
        return [
            f"{a}{s}{b}" if a else ValueError("nothing to join")
            for a, b, s in zip(left, right, sep, strict=True)
        ]

    return join


def test_a_chunk_is_called_as_the_function_is(join: Any):
    """Lists go to parameters as values do in a plain call; what is left out has its default."""
    answers = [
        join.delay_rows(["a", "b"], ["c", "d"], sep=["+", "*"]),
        join.delay_rows(left=["a", "b"], right=["c", "d"]),
        join.delay_rows(["a", "b"]),
        join.apply_rows(["a", "b"], kwargs={"sep": ["+", "*"]}, priority=3),
        join.rows_signature(["a", "b"], ["c", "d"]).delay(),
        join.apply(([["a", "b"]]), headers={"batch_rows": 2}),
    ]

    assert [
        ["a+c", "b*d"],
        ["a-c", "b-d"],
        ["a-!", "b-!"],
        ["a+!", "b*!"],
        ["a-c", "b-d"],
        ["a-!", "b-!"],
    ] == [answer.get() for answer in answers]


def test_an_eager_chunk_runs_in_slices_and_tells_of_its_rows(join: Any):
    """Without a worker a chunk has the same outcomes as with one."""
    error = join.delay_rows(["a", "b", "", "d", "e", ""]).get(propagate=False)

    assert ChunkFailed is type(error)
    assert {2: "ValueError: nothing to join", 5: "ValueError: nothing to join"} == error.failures
    assert ["a-!", "b-!", None, "d-!", "e-!", None] == error.outputs


@pytest.mark.parametrize(
    "rows",
    [
        ["a", "b"],
        ("a", "b"),
        deque(["a", "b"]),
        {"a": 1, "b": 2}.keys(),
        (letter for letter in "ab"),
        np.array(["a", "b"]),
    ],
    ids=lambda rows: type(rows).__name__,
)
def test_rows_are_anything_with_an_order(join: Any, rows: Any):
    """What can be gone through in order is a list of rows."""
    assert ["a-!", "b-!"] == join.delay_rows(rows).get()


def test_an_array_without_dimensions_has_no_rows(join: Any):
    """It is one value, though it is an array."""
    with pytest.raises(InvalidChunk, match="list of rows, got a ndarray without dimensions"):
        join.delay_rows(np.array(3.0))


@pytest.mark.parametrize("rows", ["ab", b"ab", {"a": 1}, {"a"}, 7, None], ids=repr)
def test_one_value_is_no_list_of_rows(join: Any, rows: Any):
    """A text is not taken for its letters, nor anything for rows that has no order."""
    with pytest.raises(
        InvalidChunk, match=f"argument 1: must be a list of rows, got an? {type(rows).__name__}"
    ):
        join.delay_rows(rows)


@pytest.mark.parametrize(
    ("columns", "named", "error", "said"),
    [
        (([],), {}, InvalidChunk, "a chunk has from 1 to 1,000,000 rows, got 0"),
        ((), {}, InvalidChunk, "got 0"),
        ((["a"], ["b", "c"]), {}, InvalidChunk, "right: must have 1 rows like the chunk, got 2"),
        ((["a"],), {"sep": []}, InvalidChunk, "sep: must have 1 rows like the chunk, got 0"),
        (([["a"]] * 3), {}, TypeError, "too many positional arguments"),
        (([],), {"left": ["a"]}, InvalidChunk, "got 0"),
        ((["a"],), {"left": ["a"]}, TypeError, "multiple values for argument 'left'"),
        ((["a"],), {"other": ["a"]}, TypeError, "unexpected keyword argument 'other'"),
        (
            (),
            {"right": ["a"]},
            TypeError,
            "^eager.join: missing a required argument: 'left'; it takes",
        ),
        (([0] * (MOST_ROWS + 1),), {}, InvalidChunk, "got 1,000,001"),
    ],
)
def test_lists_that_do_not_fit_are_refused_where_they_are_sent(
    join: Any, columns: Any, named: Any, error: type[Exception], said: str
):
    """The caller gets an error at once if a chunk is wrong."""
    for ask in (join.apply_rows, join.rows_signature):
        with pytest.raises(error, match=said):
            ask(*columns, kwargs=named)


def test_a_chunk_signature_is_plain_data(join: Any):
    """It can be written down, keeps its headers, and takes no further argument."""
    signature = join.rows_signature(["a"], headers={"mine": 1}, queue="elsewhere")

    assert signature.immutable
    assert {"headers": {"mine": 1, "batch_rows": 1}, "queue": "elsewhere"} == signature.options
    assert ["a-!"] == join.app.signature(json.loads(json.dumps(signature))).delay().get()


@pytest.mark.parametrize(
    ("request_dict", "expected"),
    [
        ({"id": "x"}, None),
        ({"id": "x", "headers": {"other": 1}}, None),
        ({"id": "x", "batch_rows": 3}, 3),
        ({"id": "x", "headers": {"batch_rows": 3}}, 3),
    ],
    ids=str,
)
def test_rows_are_told_by_a_header(request_dict: dict[str, Any], expected: int | None):
    """In a worker it is part of the request, in place it is among its headers."""
    assert expected == row_count_header(Context(request_dict))


@pytest.mark.parametrize("rows", [0, -1, True, "2", 2.0, None, MOST_ROWS + 1], ids=repr)
def test_a_header_that_says_nonsense_is_named(join: Any, rows: Any):
    """Whatever got past others is refused here."""
    with pytest.raises(InvalidChunk, match="its message says"):
        chunk_of(join._batch_signature, (["a", "b"],), {}, rows)


@pytest.mark.parametrize("column", ["ab", 2, {"a": 1, "b": 2}], ids=repr)
def test_a_message_whose_arguments_are_no_lists_is_refused(join: Any, column: Any):
    """A header alone makes no chunk."""
    with pytest.raises(InvalidChunk, match="left: must be a list of rows, got a"):
        chunk_of(join._batch_signature, (column,), {}, 2)


def test_columns_are_in_the_order_of_parameters(join: Any):
    """However they were given."""
    chunk = chunk_of(join._batch_signature, (), {"sep": ("+", "-"), "left": ["a", "b"]}, 2)

    assert Chunk((["a", "b"], ["!", "!"], ["+", "-"]), 2) == chunk
