"""Links, chains, groups and chords, with batch tasks in every place."""

from __future__ import annotations

import pytest
from celery import chain, chord, group
from celery.exceptions import ChordError

from celery_batch import ConfigurationError
from tests.services.shared_setup import SharedSetup, eventually

EVERY_POOL = ("prefork", "solo", "threads")


def test_link_is_called_for_its_own_item(shared: SharedSetup):
    """A callback linked to one item gets that item's result, once; its neighbours have theirs."""
    results = [
        shared.double.apply_async((1,), link=shared.note.s()),
        shared.double.apply_async((2,), link=shared.note_batch.s()),
        shared.double.apply_async((3,)),
    ]

    assert [2, 4, 6] == shared.get(results)
    heard = eventually(lambda: _noted(shared) if len(_noted(shared)) == 2 else [], "both callbacks")
    assert [2, 4] == heard


def _noted(shared: SharedSetup) -> list:
    noted = [fact["x"] for fact in shared.recall("note")]
    return sorted(each[0] if isinstance(each, list) else each for each in noted)


def test_link_error_is_called_for_the_item_that_failed(shared: SharedSetup):
    """An errback hears of its own item's failure and of no other."""
    errback = shared.note_error.s()
    bad, good = [shared.act.apply_async((x,), link_error=errback) for x in ("fail", "good")]
    shared.get([bad, good])
    (heard,) = eventually(lambda: shared.recall("note_error"), "the errback")

    assert bad.id == heard["id"]
    assert "told to fail" in heard["error"]


@pytest.mark.pools(*EVERY_POOL)
def test_a_chain_passes_each_result_on(shared: SharedSetup):
    """Batch and ordinary tasks follow one another in a chain."""
    steps = [shared.add.s(1, 1), shared.plain_add.s(1), shared.double.s(), shared.add.s(y=5)]

    assert 11 == chain(*steps).delay().get(timeout=30)


def test_a_broken_chain_stops_at_the_item_that_failed(shared: SharedSetup):
    """The chain's later tasks do not run; the chain's result is the error."""
    good = chain(shared.act.s("good"), shared.note.s()).delay()
    bad = chain(shared.act.s("fail"), shared.note.s()).delay()

    assert "GOOD" == good.get(timeout=30)
    with pytest.raises(ValueError, match="told to fail"):
        bad.get(timeout=30)
    assert ["GOOD"] == [fact["x"] for fact in shared.recall("note")]


@pytest.mark.pools(*EVERY_POOL)
def test_a_group_of_one_task_becomes_batches(shared: SharedSetup):
    """A group's members share batches, and its result keeps their order."""
    answers = group(shared.double.s(n) for n in range(16)).delay().get(timeout=30)

    assert [2 * n for n in range(16)] == answers
    assert len(shared.batches("double")) < 16


@pytest.mark.parametrize("way", ["map", "starmap", "chunks"])
def test_map_calls_the_function_item_by_item(shared: SharedSetup, way: str):
    """Celery's task of a map calls the function in its own process, for one item after another."""
    rows = [(n,) for n in range(4)]
    mapped = {
        "map": lambda: shared.double.map(range(4)),
        "starmap": lambda: shared.double.starmap(rows),
        "chunks": lambda: shared.double.chunks(rows, 4).group(),
    }
    answers = mapped[way]().apply_async().get(timeout=30)

    assert [0, 2, 4, 6] == (answers[0] if way == "chunks" else answers)
    assert [[0], [1], [2], [3]] == [fact["items"] for fact in shared.recall("double")]


@pytest.mark.parametrize("body", ["total", "plain_total"])
@pytest.mark.parametrize("head", ["double", "plain_add"])
def test_a_chord_with_batch_tasks_as_header_and_body(shared: SharedSetup, head: str, body: str):
    """Header and body may each be batch or ordinary tasks; the body runs once."""
    header = [getattr(shared, head).s(n) for n in range(5)]
    answer = chord(header)(getattr(shared, body).s()).get(timeout=30)

    assert {"double": 20, "plain_add": 15}[head] == answer


def test_a_chord_in_the_middle_of_a_chain(shared: SharedSetup):
    """A group between two tasks becomes a chord: its members start from the first result."""
    middle = group(shared.add.s(y=n) for n in range(4))
    answer = chain(shared.add.s(1, 1), middle, shared.total.s(), shared.double.s()).delay()

    assert 28 == answer.get(timeout=30)


def test_several_chords_share_their_batches(shared: SharedSetup):
    """Items of one batch may belong to several chords, and each counts for its own."""
    answers = [
        chord([shared.double.s(n + k) for n in range(3)])(shared.total.s()) for k in range(4)
    ]

    assert [2 * (3 + 3 * k) for k in range(4)] == shared.get(answers)


def test_a_failed_header_fails_its_chord_alone(shared: SharedSetup):
    """A chord with a failed member fails, another that shared its batch succeeds."""
    bad = chord([shared.act.s("one"), shared.act.s("fail")])(shared.echo.s())
    good = chord([shared.act.s("two"), shared.act.s("three")])(shared.echo.s())

    error, words = shared.get([bad, good])

    assert {"TWO", "THREE"} == set(words)
    assert isinstance(error, ChordError)
    assert "told to fail" in str(error)


def test_an_ordinary_task_is_replaced_by_a_batch_task(shared: SharedSetup):
    """``replace`` puts a batch task in an ordinary task's place, under the same id."""
    result = shared.replaced_by_batch.delay(21)

    assert 42 == result.get(timeout=30)


def test_replace_in_a_batch_function_is_refused(shared: SharedSetup):
    """A batch function that replaces itself would answer one request and lose the others."""
    with pytest.raises(ConfigurationError, match="link the next task to each request"):
        shared.replaces.delay(1).get(timeout=30)


def test_items_know_their_children_and_parents(shared: SharedSetup):
    """A linked task is its item's child, and knows its parent and the root of its chain."""
    last = chain(shared.double.s(1), shared.double.s()).delay()
    last.get(timeout=30)

    assert 2 == last.parent.get(timeout=30)
    assert [last.id] == [child.id for child in shared.app.AsyncResult(last.parent.id).children]
