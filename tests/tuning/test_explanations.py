"""The explanations of a proposal."""

from __future__ import annotations

from celery_batch.tuning.curve import Curve, Point
from celery_batch.tuning.explanations import (
    about_messages,
    about_scatter,
    about_size,
    about_target,
)
from celery_batch.tuning.propose import propose

SIZES = (1, 4, 16, 64)


def curve(*, fixed=0.01, each=0.001, scatter=1.0, cap="", overhead=0.0):
    """Return the curve of a model with a cost for each batch and one for each item."""
    points = []
    for size in SIZES:
        usual = fixed + each * size
        points.append(Point(size, (usual, usual, usual * scatter)))
    return Curve(tuple(points), cap, overhead)


def test_too_many_requests_need_more_processes():
    """It says how many, and the rate of one."""
    measured = curve()
    text = about_target(measured, propose(measured, 0.2, rate=2000))

    assert text.startswith(
        "No settings that were tried meet it. 2,000 requests a second need 3 processes,"
    )
    assert text.endswith("With one process the queue grows without end.")


def test_a_target_shorter_than_the_model_is_explained():
    """No settings meet it."""
    measured = curve(overhead=0.003)
    text = about_target(measured, propose(measured, 0.005, rate=1))

    assert "A batch of one takes 14 ms with sending: a faster model" in text
    assert "With these settings 99 of 100 have their results within" in text


def test_a_target_hardly_longer_than_the_model_is_explained():
    """Two requests that arrive together miss it."""
    measured = curve()
    text = about_target(measured, propose(measured, 0.0112, rate=1))

    assert "or a target of 22 ms or more." in text


def test_the_smallest_cost_is_no_single_item():
    """Where cost limits batches, or none of one was measured, the smallest limit is named."""
    larger = Curve(curve().points[1:])
    text = about_size(larger, propose(larger, 5.0, rate=20))

    assert "with up to 4 it would be" in text
    assert "one by one" not in text


def test_times_that_vary_are_noted():
    """The machine may have been busy."""
    assert "" == about_scatter(curve())
    assert "takes 3.7 times as long" in about_scatter(curve(scatter=4.0))


def test_a_model_faster_than_any_worker_is_noted():
    """The expected rate is limited to that of messages; a slower model has no such note."""
    quick = curve(fixed=1e-5, each=1e-7)
    proposal = propose(quick, 0.2)

    assert 10_000 == proposal.rate
    assert "some thousands of messages a second, 10,000 at the very most" in about_messages(
        proposal
    )
    assert "" == about_messages(propose(curve(), 0.2))
