"""Links, chains, groups and chords, with batch tasks in every place."""

from __future__ import annotations

import pytest
from celery import chain, chord, group
from celery.exceptions import ChordError

from celery_batch import ConfigurationError
from tests.services.place import Place, eventually

EVERY_POOL = ("prefork", "solo", "threads")


def test_link_is_called_for_its_own_item(place: Place):
    """A callback linked to one item gets that item's result, once; its neighbours have theirs."""
    results = [
        place.double.apply_async((1,), link=place.note.s()),
        place.double.apply_async((2,), link=place.note_batch.s()),
        place.double.apply_async((3,)),
    ]

    assert [2, 4, 6] == place.get(results)
    heard = eventually(lambda: _noted(place) if len(_noted(place)) == 2 else [], "both callbacks")
    assert [2, 4] == heard


def _noted(place: Place) -> list:
    noted = [fact["x"] for fact in place.recall("note")]
    return sorted(each[0] if isinstance(each, list) else each for each in noted)


def test_link_error_is_called_for_the_item_that_failed(place: Place):
    """An errback hears of its own item's failure and of no other."""
    errback = place.note_error.s()
    bad, good = [place.act.apply_async((x,), link_error=errback) for x in ("fail", "good")]
    place.get([bad, good])
    (heard,) = eventually(lambda: place.recall("note_error"), "the errback")

    assert bad.id == heard["id"]
    assert "told to fail" in heard["error"]


@pytest.mark.pools(*EVERY_POOL)
def test_a_chain_passes_each_result_on(place: Place):
    """Batch and ordinary tasks follow one another in a chain."""
    steps = [place.add.s(1, 1), place.plain_add.s(1), place.double.s(), place.add.s(y=5)]

    assert 11 == chain(*steps).delay().get(timeout=30)


def test_a_broken_chain_stops_at_the_item_that_failed(place: Place):
    """The chain's later tasks do not run; the chain's result is the error."""
    good = chain(place.act.s("good"), place.note.s()).delay()
    bad = chain(place.act.s("fail"), place.note.s()).delay()

    assert "GOOD" == good.get(timeout=30)
    with pytest.raises(ValueError, match="told to fail"):
        bad.get(timeout=30)
    assert ["GOOD"] == [fact["x"] for fact in place.recall("note")]


@pytest.mark.pools(*EVERY_POOL)
def test_a_group_of_one_task_becomes_batches(place: Place):
    """A group's members share batches, and its result keeps their order."""
    answers = group(place.double.s(n) for n in range(16)).delay().get(timeout=30)

    assert [2 * n for n in range(16)] == answers
    assert len(place.batches("double")) < 16


@pytest.mark.parametrize("body", ["total", "plain_total"])
@pytest.mark.parametrize("head", ["double", "plain_add"])
def test_a_chord_with_batch_tasks_as_header_and_body(place: Place, head: str, body: str):
    """Header and body may each be batch or ordinary tasks; the body runs once."""
    header = [getattr(place, head).s(n) for n in range(5)]
    answer = chord(header)(getattr(place, body).s()).get(timeout=30)

    assert {"double": 20, "plain_add": 15}[head] == answer


def test_a_chord_in_the_middle_of_a_chain(place: Place):
    """A group between two tasks becomes a chord: its members start from the first result."""
    middle = group(place.add.s(y=n) for n in range(4))
    answer = chain(place.add.s(1, 1), middle, place.total.s(), place.double.s()).delay()

    assert 28 == answer.get(timeout=30)


def test_several_chords_share_their_batches(place: Place):
    """Items of one batch may belong to several chords, and each counts for its own."""
    answers = [chord([place.double.s(n + k) for n in range(3)])(place.total.s()) for k in range(4)]

    assert [2 * (3 + 3 * k) for k in range(4)] == place.get(answers)


def test_a_failed_header_fails_its_chord_alone(place: Place):
    """A chord with a failed member fails, another that shared its batch succeeds."""
    bad = chord([place.act.s("one"), place.act.s("fail")])(place.echo.s())
    good = chord([place.act.s("two"), place.act.s("three")])(place.echo.s())

    error, words = place.get([bad, good])

    assert {"TWO", "THREE"} == set(words)
    assert isinstance(error, ChordError)
    assert "told to fail" in str(error)


def test_an_ordinary_task_is_replaced_by_a_batch_task(place: Place):
    """``replace`` puts a batch task in an ordinary task's place, under the same id."""
    result = place.replaced_by_batch.delay(21)

    assert 42 == result.get(timeout=30)


def test_replace_in_a_batch_function_is_refused(place: Place):
    """A batch function that replaces itself would answer one request and lose the others."""
    with pytest.raises(ConfigurationError, match="link the next task to each request"):
        place.replaces.delay(1).get(timeout=30)


def test_items_know_their_children_and_parents(place: Place):
    """A linked task is its item's child, and knows its parent and the root of its chain."""
    last = chain(place.double.s(1), place.double.s()).delay()
    last.get(timeout=30)

    assert 2 == last.parent.get(timeout=30)
    assert [last.id] == [child.id for child in place.app.AsyncResult(last.parent.id).children]
