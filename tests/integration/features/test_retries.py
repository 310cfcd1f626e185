"""Retries: of a whole batch, of one item, by hand and by themselves."""

from __future__ import annotations

import time
from typing import Any

import pytest
from celery.exceptions import Retry

from tests.services.shared_setup import SharedSetup, eventually

EVERY_POOL = ("prefork", "solo", "threads")


@pytest.mark.pools(*EVERY_POOL)
def test_self_retry_retries_every_item_of_the_batch(shared: SharedSetup):
    """``self.retry`` in a bound batch function sends each item again, with its own arguments."""
    words = [shared.unique("word") for _ in range(3)]
    results = [shared.patient.delay(word, 2) for word in words]

    assert words == shared.get(results)
    # More often only if a retry shares a batch with the first try of another item.
    assert all(shared.items("patient").count(word) >= 2 for word in words)


def test_self_retry_gives_up_after_max_retries(shared: SharedSetup):
    """An item over ``max_retries`` fails with the error that the retry was for."""
    result = shared.patient.delay(shared.unique("word"), 99)
    with pytest.raises(KeyError, match="try 3"):
        result.get(timeout=30)

    assert 3 == len(shared.items("patient"))


@pytest.mark.pools(*EVERY_POOL)
def test_one_item_is_retried_by_returning_retry(shared: SharedSetup):
    """A ``Retry`` instance among the outputs sends that item again, and no other."""
    again = shared.unique("retry")
    results = [shared.act.delay(word) for word in ("left", again, "right")]

    assert ["LEFT", again.upper(), "RIGHT"] == shared.get(results)
    assert sorted(["left", "right", again, again]) == sorted(shared.items("act"))


@pytest.mark.pools(*EVERY_POOL)
def test_a_returned_error_is_retried_by_itself(shared: SharedSetup):
    """``autoretry_for`` tries again the items whose error it names, each to its own success."""
    words = [shared.unique("word") for _ in range(3)]
    failures = [0, 1, 2]
    results = [shared.stubborn.delay(word, n) for word, n in zip(words, failures, strict=True)]

    assert [[word, n + 1] for word, n in zip(words, failures, strict=True)] == shared.get(results)
    assert 6 == len(shared.items("stubborn"))


@pytest.mark.pools(*EVERY_POOL)
def test_a_retry_has_the_arguments_as_they_came(shared: SharedSetup):
    """Although the function has changed them where they are, whichever place the item has."""
    words = [shared.unique("word") for _ in range(3)]
    results = [shared.takes_out.delay([word]) for word in words]

    assert [[word, 2] for word in words] == shared.get(results)


def test_autoretry_waits_longer_each_time(shared: SharedSetup):
    """``retry_backoff`` sets each item's next try twice as far off as the one before."""
    word = shared.unique("word")
    shared.stubborn.delay(word, 2).get(timeout=30)
    at = [fact["at"] for fact in shared.recall("stubborn") if word in fact["items"]]

    assert at[1] - at[0] >= 0.2
    assert at[2] - at[1] >= 0.4


def test_autoretry_ends_in_the_items_own_error(shared: SharedSetup):
    """An item that never succeeds fails with its last error; its neighbours do not wait."""
    bad, good = shared.unique("bad"), shared.unique("good")
    results = [shared.stubborn.delay(bad, 99), shared.stubborn.delay(good, 0)]

    assert [good, 1] == results[1].get(timeout=30)
    with pytest.raises(ConnectionError, match=f"{bad}: try 3"):
        results[0].get(timeout=30)


def _seen_between_two_tries(shared: SharedSetup) -> tuple[Any, Any] | None:
    """Return a result that was seen in RETRY and its reason; None if the time was too short."""
    result = shared.stubborn.delay(shared.unique("word"), 99)
    while (state := result.state) != "FAILURE":
        if state == "RETRY":
            return result, result.info
        time.sleep(0.01)
    return None


def test_an_item_between_two_tries_is_in_state_retry(shared: SharedSetup):
    """While it waits for its next try an item is RETRY, with the reason, in the same id."""
    result, info = eventually(lambda: _seen_between_two_tries(shared), "state RETRY")
    result.get(timeout=30, propagate=False)

    assert isinstance(info, (ConnectionError, Retry))
    assert "FAILURE" == result.state
