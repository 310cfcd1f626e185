"""What is said for a proposal."""

from __future__ import annotations

from celery_batch.formatting import figure
from celery_batch.tuning.curve import Curve, Point
from celery_batch.tuning.propose import Goal, propose
from celery_batch.tuning.words import (
    about_carrying,
    about_scatter,
    about_size,
    about_target,
    about_wait,
)

SIZES = (1, 4, 16, 64)


def curve(*, fixed=0.01, each=0.001, scatter=1.0, cap="", way=0.0):
    """Return what a model takes that has a price for a batch and one for an item."""
    points = []
    for size in SIZES:
        usual = fixed + each * size
        points.append(Point(size, (usual, usual, usual * scatter)))
    return Curve(tuple(points), cap, way)


def test_a_target_that_is_met_is_told_with_what_is_expected():
    """At which rate, how fast, in which batches."""
    measured = curve()
    said = about_target(measured, propose(measured, Goal(0.2, rate=50)))

    assert said.startswith("At 50 requests a second: half of them within ")
    assert "the model busy for" in said


def test_too_many_requests_want_more_processes():
    """It says how many, and what one can do."""
    measured = curve()
    said = about_target(measured, propose(measured, Goal(0.2, rate=2000)))

    assert said.startswith("Nothing tried meets it. 2,000 requests a second want 3 processes,")
    assert said.endswith("With one process the others queue up ever longer.")


def test_a_target_shorter_than_the_model_is_said():
    """No settings help then."""
    measured = curve(way=0.003)
    said = about_target(measured, propose(measured, Goal(0.005, rate=1)))

    assert "A batch of one takes 14 ms with its way: that wants a faster model" in said
    assert "With these settings 99 of 100 have their answers within" in said


def test_a_target_that_is_hardly_longer_than_the_model_is_said():
    """Two that come together already miss it."""
    measured = curve()
    said = about_target(measured, propose(measured, Goal(0.0112, rate=1)))

    assert "or a target of 22 ms or more." in said


def test_the_size_is_told_beside_smaller_and_larger_ones():
    """One by one, and with the next that was measured."""
    measured = curve(fixed=0.0, each=0.01)
    small = about_size(measured, propose(measured, Goal(0.1, rate=20)))
    growing = curve(cap="a batch of 128 does not fit into memory (no)")
    large = about_size(growing, propose(growing, Goal(5.0, rate=20)))

    assert "one by one it would be" in small
    assert "With up to" in small
    assert large.startswith("With up to 64 in a batch one process answers ")
    assert large.endswith(
        "It was not measured further: a batch of 128 does not fit into memory (no)."
    )


def test_waits_are_told_with_the_worst():
    """What an idle process adds, and what a crowd does."""
    measured = curve(fixed=0.01, each=0.0001)
    proposal = propose(measured, Goal(1.0, rate=1000))
    full = figure(2 * measured.seconds(proposal.chosen.policy.max_batch_size))

    assert f"is answered with the next, after {full}." in about_wait(measured, proposal)


def test_times_that_scatter_are_told():
    """A busy machine is no place to measure on."""
    assert "" == about_scatter(curve())
    assert "takes 3.7 times as long" in about_scatter(curve(scatter=4.0))


def test_a_model_faster_than_any_worker_is_told():
    """The rate that is expected is one that messages can have; a slower model has no such note."""
    quick = curve(fixed=1e-5, each=1e-7)
    proposal = propose(quick, Goal(0.2))

    assert 10_000 == proposal.rate
    assert "some thousands of messages a second, 10,000 at the very most" in about_carrying(
        proposal
    )
    assert "" == about_carrying(propose(curve(), Goal(0.2)))
