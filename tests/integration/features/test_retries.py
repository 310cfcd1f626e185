"""Retries: of a whole batch, of one item, by hand and by themselves."""

from __future__ import annotations

import pytest
from celery.exceptions import Retry

from tests.services.place import Place, eventually

EVERY_POOL = ("prefork", "solo", "threads")


@pytest.mark.pools(*EVERY_POOL)
def test_self_retry_retries_every_item_of_the_batch(place: Place):
    """``self.retry`` in a bound batch function sends each item again, with its own arguments."""
    words = [place.unique("word") for _ in range(3)]
    results = [place.patient.delay(word, 2) for word in words]

    assert words == place.get(results)
    # More often only if a retry shares a batch with the first try of another item.
    assert all(place.items("patient").count(word) >= 2 for word in words)


def test_self_retry_gives_up_after_max_retries(place: Place):
    """An item over ``max_retries`` fails with the error that the retry was for."""
    result = place.patient.delay(place.unique("word"), 99)
    with pytest.raises(KeyError, match="try 3"):
        result.get(timeout=30)

    assert 3 == len(place.items("patient"))


@pytest.mark.pools(*EVERY_POOL)
def test_one_item_is_retried_by_returning_retry(place: Place):
    """A ``Retry`` instance among the outputs sends that item again, and no other."""
    again = place.unique("retry")
    results = [place.act.delay(word) for word in ("left", again, "right")]

    assert ["LEFT", again.upper(), "RIGHT"] == place.get(results)
    assert sorted(["left", "right", again, again]) == sorted(place.items("act"))


@pytest.mark.pools(*EVERY_POOL)
def test_a_returned_error_is_retried_by_itself(place: Place):
    """``autoretry_for`` tries again the items whose error it names, each to its own success."""
    words = [place.unique("word") for _ in range(3)]
    failures = [0, 1, 2]
    results = [place.stubborn.delay(word, n) for word, n in zip(words, failures, strict=True)]

    assert [[word, n + 1] for word, n in zip(words, failures, strict=True)] == place.get(results)
    assert 6 == len(place.items("stubborn"))


@pytest.mark.pools(*EVERY_POOL)
def test_a_retry_has_the_arguments_as_they_came(place: Place):
    """Although the function has changed them where they are, whichever place the item has."""
    words = [place.unique("word") for _ in range(3)]
    results = [place.takes_out.delay([word]) for word in words]

    assert [[word, 2] for word in words] == place.get(results)


def test_autoretry_waits_longer_each_time(place: Place):
    """``retry_backoff`` sets each item's next try twice as far off as the one before."""
    word = place.unique("word")
    place.stubborn.delay(word, 2).get(timeout=30)
    at = [fact["at"] for fact in place.recall("stubborn") if word in fact["items"]]

    assert at[1] - at[0] >= 0.2
    assert at[2] - at[1] >= 0.4


def test_autoretry_ends_in_the_items_own_error(place: Place):
    """An item that never succeeds fails with its last error; its neighbours do not wait."""
    bad, good = place.unique("bad"), place.unique("good")
    results = [place.stubborn.delay(bad, 99), place.stubborn.delay(good, 0)]

    assert [good, 1] == results[1].get(timeout=30)
    with pytest.raises(ConnectionError, match=f"{bad}: try 3"):
        results[0].get(timeout=30)


def test_an_item_between_two_tries_is_in_state_retry(place: Place):
    """While it waits for its next try an item is RETRY, with the reason, in the same id."""
    word = place.unique("word")
    result = place.stubborn.apply_async((word, 99))
    eventually(lambda: result.state == "RETRY", "state RETRY")
    info = result.info
    result.get(timeout=30, propagate=False)

    assert isinstance(info, (ConnectionError, Retry))
    assert "FAILURE" == result.state
