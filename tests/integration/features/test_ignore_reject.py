"""``Ignore`` and ``Reject``: returned for one item, and raised for the batch."""

from __future__ import annotations

import pytest
from celery.exceptions import Reject

from tests.services.place import Place, eventually

EVERY_POOL = ("prefork", "solo", "threads")


@pytest.mark.pools(*EVERY_POOL)
def test_an_ignored_item_has_no_result_and_its_neighbours_do(place: Place):
    """An ``Ignore`` among the outputs stores nothing for that item, and its message is done."""
    left, ignored, right = [place.act.delay(word) for word in ("left", "ignore", "right")]

    assert ["LEFT", "RIGHT"] == place.get([left, right])
    assert "ignore" in place.items("act")
    assert "PENDING" == ignored.state
    _assert_nothing_is_held(place)


def test_ignore_raised_is_for_every_item(place: Place):
    """``Ignore`` raised by the batch function leaves no result for any item of the batch."""
    word = place.unique("ignore")
    result = place.raises.delay(word)
    eventually(lambda: place.items("raises") == [word], "the batch")
    _assert_nothing_is_held(place)

    assert "PENDING" == result.state


@pytest.mark.pools(*EVERY_POOL)
def test_a_rejected_item_fails_alone(place: Place):
    """A ``Reject`` among the outputs fails that item and rejects its message, no other."""
    left, rejected, right = [place.act.delay(word) for word in ("left", "reject", "right")]

    assert ["LEFT", "RIGHT"] == place.get([left, right])
    with pytest.raises(Reject, match="told to reject"):
        rejected.get(timeout=30)
    _assert_nothing_is_held(place)


@pytest.mark.pools(*EVERY_POOL)
def test_an_item_rejected_for_requeueing_comes_back_alone(place: Place):
    """``Reject(requeue=True)`` gives that item's message back, and it runs again."""
    again = place.unique("requeue")
    results = [place.act.delay(word) for word in ("left", again, "right")]

    assert ["LEFT", again.upper(), "RIGHT"] == place.get(results)
    assert sorted(["left", "right", again, again]) == sorted(place.items("act"))


def test_reject_raised_is_for_every_item(place: Place):
    """``Reject`` raised by the batch function fails every item of the batch."""
    result = place.raises.delay(place.unique("reject"))

    with pytest.raises(Reject, match="told to reject"):
        result.get(timeout=30)


def test_reject_with_requeue_raised_brings_every_item_back(place: Place):
    """``Reject(requeue=True)`` raised by the batch function has each item delivered again."""
    words = [place.unique("requeue") for _ in range(3)]
    results = [place.raises.delay(word) for word in words]

    assert [word.upper() for word in words] == place.get(results)


def _assert_nothing_is_held(place: Place) -> None:
    held = place.app.control.inspect([place.worker.name], timeout=60.0, limit=1)
    eventually(lambda: held.reserved() == {place.worker.name: []}, "no request held")
