"""A batch: requests that run in one model call."""

from __future__ import annotations

import json

import pytest

from celery_batch.batching.batch import Batch, Reason, Request


@pytest.fixture
def batch() -> Batch[str]:
    """Two requests, the older one first."""
    return Batch((Request("a", arrived=1.0), Request("b", arrived=2.0)), Reason.IDLE)


def test_batch_gives_the_model_its_items_in_order(batch: Batch[str]):
    """The model's inputs are a list, oldest first."""
    assert ["a", "b"] == batch.items


def test_batch_is_as_long_as_its_requests(batch: Batch[str]):
    """Its length is the number of its requests."""
    assert 2 == len(batch) == len(batch.requests)


def test_model_cannot_change_the_batch_through_its_items(batch: Batch[str]):
    """The list is a new one each time: emptying it does not change the batch."""
    batch.items.clear()

    assert ["a", "b"] == batch.items


def test_batch_and_request_cannot_be_changed(batch: Batch[str]):
    """Both are immutable."""
    with pytest.raises(AttributeError):
        batch.reason = Reason.FULL
    with pytest.raises(AttributeError):
        batch.requests[0].arrived = 0.0

    assert Batch((Request("a", 1.0), Request("b", 2.0)), Reason.IDLE) == batch


def test_a_suspect_is_alone_in_its_batch(batch: Batch[str]):
    """Whether the only request may be the one that kills processes is the request's to say."""
    alone = Batch((Request("a", 1.0, alone=True),), Reason.ALONE)

    assert (True, False) == (alone.is_suspect, batch.is_suspect)


def test_reasons_are_words_for_logs_and_json():
    """Counters by reason can be sent and read as plain text."""
    words = json.loads(json.dumps({reason: str(reason) for reason in Reason}))

    assert {word: word for word in ("full", "urgent", "timeout", "ahead", "idle", "alone")} == words
