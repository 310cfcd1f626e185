"""Celery's request, for a task that shares its process with others."""

from __future__ import annotations

from inspect import signature
from types import SimpleNamespace
from typing import Any

import pytest
from billiard.einfo import ExceptionInfo
from billiard.exceptions import TimeLimitExceeded
from celery import Celery
from celery.backends import cache
from celery.concurrency.base import BasePool
from celery.worker import state
from celery.worker.request import Request, create_request_cls
from kombu import Connection, Queue

from celery_batch import BatchTask
from celery_batch.serialization.decoding import Undecoded
from celery_batch.worker.intake.request import BatchRequest


class Message:
    """A message as kombu delivers it, which notes what becomes of it."""

    def __init__(self, **headers: Any) -> None:
        self.heard: list[Any] = []
        self.headers = {"id": "a", "task": "shop.task", **headers}
        self.properties: dict[str, Any] = {}
        self.delivery_info = {"redelivered": bool(headers.get("redelivered"))}
        self.body, self.content_type, self.content_encoding = b"[]", "application/json", "utf-8"
        self.payload = ((), {}, {})

    def ack_log_error(self, *_: Any) -> None:
        """It is done with."""
        self.heard.append("acknowledged")

    def reject_log_error(self, _logger: Any, _errors: Any, requeue: Any) -> None:
        """It goes back, or away."""
        self.heard.append(("rejected", requeue))


@pytest.fixture
def make() -> Any:
    """Make requests as Celery's strategy does."""
    app = Celery("shop", set_as_current=False, broker="memory://", backend="cache+memory://")
    cache._DUMMY_CLIENT_CACHE.clear()  # which all apps of this process share

    @app.task(base=BatchTask, name="shop.task")
    def task(x):
        return x

    kind = create_request_cls(BatchRequest, task, _Pool(), "here", None, app=app)

    def made(message: Message) -> Any:
        return kind(
            message,
            on_ack=message.ack_log_error,
            on_reject=message.reject_log_error,
            app=app,
            task=task,
            headers=message.headers,
            body=message.body,
        )

    return made


class _Pool:
    """Takes nothing; Celery looks at its method when it makes the class."""

    apply_async = None


@pytest.mark.parametrize(
    ("header", "losses"), [(None, 0), (1, 1), (7, 7), (-1, 0), ("2", 0), ([1], 0), (True, 1)]
)
def test_losses_come_with_the_message(make: Any, header: Any, losses: int):
    """What anybody may write into a header counts only where it is a count."""
    assert losses == make(Message(batch_losses=header)).losses


def test_start_and_success_are_routine_where_nobody_asked_for_more(make: Any):
    """Those of a batch are recorded together: Celery's handlers take a fifth of the process."""
    request = make(Message())
    assert request.is_routine

    class Noticed(type(request)):
        def on_accepted(self, *_: Any) -> None:
            """Do what Celery's does not."""

    request.__class__ = Noticed
    assert not request.is_routine


def test_broker_hears_last(make: Any):
    """A handler that fails after it has acknowledged has acknowledged nothing."""
    message = Message()
    request = make(message)
    with pytest.raises(ConnectionError):
        fail_after_acknowledging(request)

    assert [] == message.heard
    assert not request.acknowledged

    with request.acknowledging_last():
        request.reject(requeue=True)
        assert [] == message.heard

    assert [("rejected", True)] == message.heard


def fail_after_acknowledging(request: Any) -> None:
    """Do as Celery's handler of failures does when the result backend is away."""
    with request.acknowledging_last():
        request.acknowledge()
        raise ConnectionError


def test_retries_are_told_apart(make: Any):
    """Two tries of one task have one id, and are not taken for each other."""
    assert make(Message()).key != make(Message(retries=1)).key


def failed(error: Exception) -> ExceptionInfo:
    """An error as the pool reports it."""
    try:
        raise error
    except type(error):
        return ExceptionInfo()


def test_cold_shutdown_acknowledges_only_what_is_stored(make: Any, monkeypatch: pytest.MonkeyPatch):
    """What fails while the worker goes down in haste has an answer, or comes again."""
    unstored, stored = Message(), Message()
    monkeypatch.setattr(state, "should_terminate", 1)
    make(unstored).on_failure(failed(TimeLimitExceeded(3)))
    make(stored).on_failure(failed(ValueError()), return_ok=True)

    assert [] == unstored.heard
    assert ["acknowledged"] == stored.heard


def test_running_thread_is_left_to_end(make: Any):
    """Where a pool cannot stop what runs, cancelling it is no error, and it may still answer."""
    request = make(Message())
    request.time_start = 1.0
    request.cancel(BasePool())

    assert not request.is_cancelled


def test_process_of_a_batch_is_told_once_to_end(make: Any):
    """A second signal would kill it in the middle of its last words."""
    process = SimpleNamespace(pid=7, _job_terminated=False)
    told: list[int] = []

    def terminate_job(pid: int, _signal: Any = None) -> None:
        told.append(pid)
        process._job_terminated = True

    pool = SimpleNamespace(terminate_job=terminate_job, _pool=SimpleNamespace(_pool=[process]))
    requests = [make(Message()), make(Message())]
    known = signature(Request.cancel).parameters
    options = {"emit_retry": False} if "emit_retry" in known else {}  # since 5.7
    for request in requests:
        request.time_start, request.worker_pid = 1.0, 7
        request.cancel(pool, **options)

    assert [7] == told
    assert all(request.is_cancelled for request in requests)


def test_large_arguments_are_decoded_when_somebody_asks(make: Any):
    """Celery asks to tell of an end by itself; `inspect` shows them as the message does."""
    message = Message(argsrepr="(...)")
    message.payload = Undecoded(([], {}, None))
    message._decode = lambda: [[1], {"y": 2}, {"errbacks": ["call"], "chord": "chord"}]
    request, asked = make(message), make(message)

    assert request.is_undecoded
    assert "(...)" == request.info()["args"]
    assert (["call"], "chord") == (request._context.errbacks, request._context.chord)
    assert ([1], {"y": 2}) == (request._context.args, request._context.kwargs)
    assert ([1], {"y": 2}) == (asked.args, asked.kwargs)


def test_rabbitmq_counts_how_often_a_message_came_back(make: Any, rabbitmq_server: Any):
    """Quorum queues count it, so that a worker recognises what has killed others repeatedly."""
    queue = Queue("counted", queue_arguments={"x-queue-type": "quorum"})
    with Connection(rabbitmq_server.url) as connection:
        connection.default_channel.queue_delete("counted")
        headers = {"id": "a", "task": "shop.task"}
        body = ([], {}, {})
        connection.Producer().publish(body, routing_key="counted", declare=[queue], headers=headers)
    found = []
    for _ in range(3):
        with Connection(rabbitmq_server.url) as connection:  # it is lost with what it holds
            received: list[Any] = []
            consumer = connection.Consumer([queue], on_message=received.append, prefetch_count=1)
            with consumer:
                connection.drain_events(timeout=60)
                request = make(received[0])
                found.append((request.is_redelivered, request.deliveries))

    assert [(False, None), (True, 1), (True, 2)] == found


@pytest.mark.parametrize(
    ("headers", "deliveries"),
    [
        ({}, None),
        ({"x-acquired-count": 3}, 0),
        ({"x-acquired-count": 3, "x-delivery-count": 1}, 1),
        ({"x-delivery-count": "1"}, None),
    ],
)
def test_returns_are_no_deliveries_where_rabbitmq_counts_both(
    make: Any, headers: dict[str, Any], deliveries: int | None
):
    """From 4.3 on a message has two counts: how often it was handed out, and how often in vain."""
    assert deliveries == make(Message(**headers)).deliveries
