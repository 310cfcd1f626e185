"""Streamers whose batches are limited by what items cost."""

from __future__ import annotations

import pytest

from celery_batch.errors import ConfigurationError, InvalidCost
from celery_batch.streamer import Streamer, ThreadedStreamer
from tests.apps.models.streamer_models import Measure, measure, slow_measure

BOTH = pytest.mark.parametrize("kind", [ThreadedStreamer, Streamer], ids=["thread", "process"])

LIMITS = {"max_batch_cost": 40, "padded": True}


def text(length):
    """Return a text of this length."""
    return "x" * length


@BOTH
@pytest.mark.parametrize(("model", "cost"), [(measure, len), (Measure, None)])
def test_batches_have_similar_items_and_cost_no_more_than_the_limit(kind, model, cost):
    """Those that wait are chosen by length; each request gets its own output."""
    lengths = [2, 10] * 16
    with kind(model, 16, 1.0, cost=cost, **LIMITS) as streamer:
        streamer.submit(["pause"])
        futures = [streamer.submit([text(length)]) for length in lengths]
        outputs = [future.result()[0] for future in futures]

    assert lengths == [own for own, _, _ in outputs]
    assert max(longest * rows for _, longest, rows in outputs) <= 40
    assert max(rows for own, _, rows in outputs if own == 2) > 4
    assert sum(longest for _, longest, _ in outputs) < 1.2 * sum(lengths)


@BOTH
def test_a_request_that_is_larger_than_a_batch_runs_in_several_calls(kind):
    """Each has items of similar length; the outputs are in the order of the items."""
    lengths = [50, 4, 20, 4, 4, 20]
    with kind(measure, 16, cost=len, **LIMITS) as streamer:
        outputs = streamer.predict(map(text, lengths))

    assert lengths == [own for own, _, _ in outputs]
    assert [(50, 1), (4, 3), (20, 2)] == [
        (longest, rows) for _, longest, rows in (outputs[0], outputs[1], outputs[2])
    ]


@BOTH
def test_short_items_do_not_wait_for_the_padding_of_a_long_one(kind):
    """Once it is known how long calls take; the slow model computes its padding."""
    with kind(slow_measure, 16, 0.02, cost=len, max_batch_cost=800, padded=True) as streamer:
        for _ in range(10):  # on a busy machine some calls take much longer than they should
            for rows in (1, 4, 8, 2, 6, 1, 8, 3, 5, 7, 2, 4):
                streamer.predict([text(40)] * rows)
            futures = [streamer.submit([text(length)]) for length in (100, 4, 4, 4, 4)]
            outputs = [future.result()[0] for future in futures]
            if (100, 100, 1) == outputs[0]:
                break

    assert (100, 100, 1) == outputs[0]
    assert {4} == {longest for _, longest, _ in outputs[1:]}


def test_costs_are_added_where_nothing_is_padded():
    """And a request that has more items than a batch is cut into parts, each with its cost."""
    with ThreadedStreamer(measure, 16, cost=len, max_batch_cost=40) as streamer:
        outputs = streamer.predict(map(text, [1] * 39 + [39]))

    assert [1] * 39 + [39] == [own for own, _, _ in outputs]
    assert 16 == outputs[0][2]


@BOTH
def test_an_item_without_a_cost_is_refused_at_once(kind):
    """The caller gets the error; others are answered."""
    with kind(measure, 4, cost=len, **LIMITS) as streamer:
        with pytest.raises(InvalidCost, match="cost function raised TypeError"):
            streamer.submit(["a", 5])

        assert [(1, 1, 1)] == streamer.predict(["a"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cost": len}, "cost: has no effect without max_batch_cost"),
        ({"max_batch_cost": 40}, "max_batch_cost: needs cost, a function of an item"),
        ({"max_batch_cost": 40, "cost": "text"}, "such as len; got 'text'"),
        ({"max_batch_cost": 0, "cost": len}, "max_batch_cost: must be a number above 0"),
        ({"padded": True}, "padded: has no effect without max_batch_cost"),
    ],
)
def test_wrong_limits_are_refused(options, message):
    """When the streamer is made, as any wrong argument."""
    with pytest.raises(ConfigurationError, match=message):
        ThreadedStreamer(measure, 4, **options)


def test_a_model_that_says_its_cost_need_not_be_limited():
    """Without a limit it is counted in items."""
    with ThreadedStreamer(Measure, 4) as streamer:
        assert [(1, 1, 1)] == streamer.predict(["a"])


def test_a_cost_that_cannot_be_sent_is_refused():
    """A worker process computes it once more, so it has to be importable."""
    with pytest.raises(ConfigurationError, match="cannot be sent to a worker process"):
        Streamer(measure, 4, cost=lambda item: item + 1, **LIMITS)
