"""What a client is told of a task that has ended, and what it is not."""

from __future__ import annotations

import logging

import pytest
from celery import states
from celery.exceptions import TaskRevokedError
from celery.result import EagerResult

from celery_batch.errors import BatchError, WrongResultCount
from webapp.outcomes import Failure, Outcome, outcome_of


class Overloaded(BatchError):
    """There is no room."""

    http = 429


def failed(error, state=states.FAILURE):
    """Return a task that ended with an error."""
    return EagerResult("the-id", error, state)


def test_an_output_is_passed_on():
    """A success is its output."""
    assert Outcome(output="little") == outcome_of(EagerResult("the-id", "little", states.SUCCESS))


def test_a_bad_input_is_told_why():
    """What the model says of a bad input reaches the client as it is."""
    expected = Failure("ValueError", "no [MASK] in it", 422)

    assert Outcome(failure=expected) == outcome_of(failed(ValueError("no [MASK] in it")))


@pytest.mark.parametrize("kind", [RuntimeError, TypeError])
def test_other_errors_are_not_told(caplog, kind):
    """An error that was not written for clients goes to the log, under the task's id."""
    with caplog.at_level(logging.ERROR, logger="webapp"):
        failure = outcome_of(failed(kind("/srv/private is broken"))).failure

    assert ("ModelError", 500) == (failure.kind, failure.http)
    assert "the-id" in failure.message
    assert "private" not in failure.message
    assert "/srv/private is broken" in caplog.text


def test_our_own_errors_bring_their_status():
    """An error of the batching tree keeps its class and its status."""
    expected = Failure("Overloaded", "come back at noon", 429)

    assert Outcome(failure=expected) == outcome_of(failed(Overloaded("come back at noon")))


def test_an_error_that_says_nothing_of_itself_is_named():
    """A class without a word, as all are with python -OO, is told by its name."""
    silent = type("Silent", (BatchError,), {"http": 503})

    assert Failure("Silent", "Silent", 503) == outcome_of(failed(silent("/srv/model"))).failure


def test_our_own_grave_errors_keep_their_details():
    """Of an error on our side a client hears what kind it is, not where it was."""
    failure = outcome_of(failed(WrongResultCount("/srv/model.py gave 3 for 4"))).failure

    assert ("WrongResultCount", 500) == (failure.kind, failure.http)
    assert "The model did not return one output per input." == failure.message


def test_a_revoked_task_may_be_sent_again():
    """A task that an operator revoked is nobody's mistake."""
    failure = outcome_of(failed(TaskRevokedError("revoked"), states.REVOKED)).failure

    assert ("Revoked", 503) == (failure.kind, failure.http)


def test_an_expired_task_was_not_revoked():
    """A task that a worker found expired was late, though Celery stores it as revoked."""
    failure = outcome_of(failed(TaskRevokedError("expired"), states.REVOKED)).failure

    assert ("DeadlineExceeded", 504) == (failure.kind, failure.http)


def test_a_long_message_is_cut():
    """An error that repeats its input does not send it all back."""
    failure = outcome_of(failed(ValueError("x" * 10_000))).failure

    assert len(failure.message) < 600
