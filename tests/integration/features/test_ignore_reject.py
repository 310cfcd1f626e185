"""``Ignore`` and ``Reject``: returned for one item, and raised for the batch."""

from __future__ import annotations

import pytest
from celery.exceptions import Reject

from tests.services.shared_setup import SharedSetup, eventually

EVERY_POOL = ("prefork", "solo", "threads")


@pytest.mark.pools(*EVERY_POOL)
def test_an_ignored_item_has_no_result_and_its_neighbours_do(shared: SharedSetup):
    """An ``Ignore`` among the outputs stores nothing for that item, and its message is done."""
    left, ignored, right = [shared.act.delay(word) for word in ("left", "ignore", "right")]

    assert ["LEFT", "RIGHT"] == shared.get([left, right])
    assert "ignore" in shared.items("act")
    assert "PENDING" == ignored.state
    _assert_nothing_is_held(shared)


def test_ignore_raised_is_for_every_item(shared: SharedSetup):
    """``Ignore`` raised by the batch function leaves no result for any item of the batch."""
    word = shared.unique("ignore")
    result = shared.raises.delay(word)
    eventually(lambda: shared.items("raises") == [word], "the batch")
    _assert_nothing_is_held(shared)

    assert "PENDING" == result.state


@pytest.mark.pools(*EVERY_POOL)
def test_a_rejected_item_fails_alone(shared: SharedSetup):
    """A ``Reject`` among the outputs fails that item and rejects its message, no other."""
    left, rejected, right = [shared.act.delay(word) for word in ("left", "reject", "right")]

    assert ["LEFT", "RIGHT"] == shared.get([left, right])
    with pytest.raises(Reject, match="told to reject"):
        rejected.get(timeout=30)
    _assert_nothing_is_held(shared)


@pytest.mark.pools(*EVERY_POOL)
def test_an_item_rejected_for_requeueing_comes_back_alone(shared: SharedSetup):
    """``Reject(requeue=True)`` gives that item's message back, and it runs again."""
    again = shared.unique("requeue")
    results = [shared.act.delay(word) for word in ("left", again, "right")]

    assert ["LEFT", again.upper(), "RIGHT"] == shared.get(results)
    assert sorted(["left", "right", again, again]) == sorted(shared.items("act"))


def test_reject_raised_is_for_every_item(shared: SharedSetup):
    """``Reject`` raised by the batch function fails every item of the batch."""
    result = shared.raises.delay(shared.unique("reject"))

    with pytest.raises(Reject, match="told to reject"):
        result.get(timeout=30)


def test_reject_with_requeue_raised_brings_every_item_back(shared: SharedSetup):
    """``Reject(requeue=True)`` raised by the batch function has each item delivered again."""
    words = [shared.unique("requeue") for _ in range(3)]
    results = [shared.raises.delay(word) for word in words]

    assert [word.upper() for word in words] == shared.get(results)


def _assert_nothing_is_held(shared: SharedSetup) -> None:
    held = shared.app.control.inspect([shared.worker.name], timeout=60.0, limit=1)
    eventually(lambda: held.reserved() == {shared.worker.name: []}, "no request held")
