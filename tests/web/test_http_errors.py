"""What a client is told of each error, and what it is not told."""

from __future__ import annotations

import pytest
from billiard.exceptions import SoftTimeLimitExceeded, TimeLimitExceeded, WorkerLostError
from celery.exceptions import TaskRevokedError
from celery.exceptions import TimeoutError as CeleryTimeoutError
from kombu.exceptions import OperationalError
from redis.exceptions import ConnectionError as RedisConnectionError

from celery_batch import errors
from celery_batch.web.errors import HttpError, http_error, task_error


@pytest.mark.parametrize(
    ("exception", "status", "kind"),
    [
        (errors.QueueFull("secret"), 429, "QueueFull"),
        (errors.DeadlineExceeded("3 of 4"), 504, "DeadlineExceeded"),
        (errors.PoisonItem(), 422, "PoisonItem"),
        (errors.LoadFailed("secret"), 503, "LoadFailed"),
        (errors.OutOfMemory(), 503, "OutOfMemory"),
        (TaskRevokedError("expired"), 504, "DeadlineExceeded"),
        (TaskRevokedError("revoked"), 503, "TaskRevoked"),
        (SoftTimeLimitExceeded(), 504, "TimeLimitExceeded"),
        (TimeLimitExceeded(3), 504, "TimeLimitExceeded"),
        (WorkerLostError("signal 9"), 503, "WorkerLost"),
        (CeleryTimeoutError("The operation timed out."), 504, "DeadlineExceeded"),
        (TimeoutError("secret"), 500, "InternalServerError"),
        (OperationalError("secret"), 503, "BrokerUnreachable"),
        (RedisConnectionError("secret"), 503, "BackendUnreachable"),
        (ValueError("secret"), 500, "InternalServerError"),
        (KeyError("secret"), 500, "InternalServerError"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else str(value),
)
def test_each_error_has_its_status(exception: Exception, status: int, kind: str):
    """The status, one word for programs, and nothing that is for the operator."""
    error = http_error(exception)

    assert (status, kind) == (error.status, error.type)
    assert error.message
    assert "secret" not in error.message
    assert (error.retry_after is not None) == (
        status in {429, 503, 504} and kind not in {"OutOfMemory", "TimeLimitExceeded"}
    )


def test_a_full_queue_says_when_to_come_again():
    """`Retry-After` is in whole seconds, and never 0."""
    later = http_error(errors.QueueFull(retry_after=2.2))

    assert {"Retry-After": "3"} == later.headers
    assert {"Retry-After": "1"} == http_error(errors.QueueFull(retry_after=0.01)).headers


def test_a_call_that_a_worker_refuses_would_be_late():
    """The client of a task with `shed` does not read that a queue without a limit is full."""
    refused = http_error(task_error(errors.QueueFull("secret", retry_after=2.2)))

    assert (429, "QueueFull", 2.2) == (refused.status, refused.type, refused.retry_after)
    assert "The result would come too late: too much work waits already." == refused.message
    assert refused.message != http_error(errors.QueueFull()).message


def test_the_client_of_a_poison_item_reads_no_ids():
    """The task, its id and the process are for the operator."""
    error = http_error(errors.PoisonItem("shop.score[a-secret-id]: exit code 9 Job: 11"))

    assert 422 == error.status
    assert http_error(errors.PoisonItem()).message == error.message


def test_a_message_is_no_essay():
    """A message that repeats its input is cut."""
    error = http_error(errors.InvalidRow("x" * 10_000))

    assert 501 == len(error.message)
    assert {"error": {"type": "InvalidRow", "message": error.message}} == error.body


def test_what_never_helps_has_no_header():
    """A client is not told to come again with what is wrong."""
    assert {} == HttpError(422, "ValueError", "a bad item").headers


def test_what_a_model_raises_of_its_own_servers_is_a_bug():
    """A model's lost connection is no lost broker."""
    error = http_error(task_error(OperationalError("secret")))

    assert (500, "InternalServerError") == (error.status, error.type)
