"""The short way in leaves a request as Celery's strategy leaves it, or leaves it to that."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta, timezone
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery, _state, signals
from celery.worker import state, strategy
from kombu.message import Message

from celery_batch import BatchTask
from celery_batch.worker.dispatch.running_messages import RunningMessages
from celery_batch.worker.intake.strategy import FastPath

#: What is made anew for each request, and what Celery's have looked up already.
OWN = {"_on_ack", "_on_reject", "_message", "_tzlocal"}


def nothing(*_: Any, **__: Any) -> None:
    """Do nothing."""


@pytest.fixture
def app(monkeypatch: pytest.MonkeyPatch) -> Iterator[Celery]:
    """Return an app with one batch task."""
    monkeypatch.setattr(_state, "_on_app_finalizers", set())
    monkeypatch.setattr(signals.task_received, "receivers", [])  # other tests' apps have some
    app = Celery("shop", broker="memory://", backend="cache+memory://", set_as_current=False)

    @app.task(base=BatchTask, name="shop.double")
    def double(x):
        return x

    app.finalize()
    yield app
    state.reset_state()


@pytest.fixture
def consumer(app: Celery) -> SimpleNamespace:
    """Return what the strategies ask of Celery's consumer."""
    return SimpleNamespace(
        **dict.fromkeys(("apply_eta_task", "_limit_task", "_limit_post_eta"), nothing),
        app=app,
        hostname="w1@localhost",
        event_dispatcher=None,
        pool=SimpleNamespace(apply_async=nothing),
        timer=SimpleNamespace(call_at=nothing),
        connection_errors=(OSError,),
        disable_rate_limits=False,
        task_buckets=defaultdict(lambda: None),
        controller=SimpleNamespace(state=state),
        _maximum_prefetch_restored=True,
        restart_count=0,
        on_task_message=set(),
        call_soon_ack=nothing,
    )


class Ways:
    """Celery's way and ours, each from a message to the requests that joined the line."""

    def __init__(self, consumer: SimpleNamespace) -> None:
        self.line: list[Any] = []
        task = consumer.app.tasks["shop.double"]
        consumer.on_task_request = self.line.append
        self._usual = strategy.default(task, consumer.app, consumer)
        scheduler: Any = SimpleNamespace(running_messages=RunningMessages())
        self._ours = FastPath(consumer, scheduler, task, self._usual, self.line.append)

    def usual(self, message: Message) -> list[Any]:
        """Return who joins the line by Celery's strategy."""
        self._usual(message, None, nothing, nothing, [])
        return self._take()

    def short(self, message: Message) -> list[Any] | None:
        """Return who joins the line by the short way; None if it is left to Celery's."""
        return self._take() if self._ours.admit(message) else None

    def _take(self) -> list[Any]:
        taken = list(self.line)
        self.line.clear()
        return taken


def message_of(app: Celery, more: dict[str, Any] | None = None, **options: Any) -> Message:
    """Return the message of one call, as a worker has it, with some more headers."""
    headers, properties, body, _ = app.amqp.as_task_v2("one", "shop.double", (1,), {}, **options)
    headers.update(more or {})
    return Message(
        body=json.dumps(body).encode(),
        content_type="application/json",
        content_encoding="utf-8",
        headers=headers,
        properties={**properties, "priority": 3, "delivery_tag": "tag"},
        delivery_info={"exchange": "", "routing_key": "celery"},
        accept={"application/json"},
    )


def state_of(request: Any) -> dict[str, Any]:
    """Return every attribute of a request, slots and all."""
    names = {name for cls in type(request).__mro__ for name in getattr(cls, "__slots__", ())}
    names = {f"_Request{name}" if name.startswith("__") else name for name in names}
    names = {*names, *vars(request)} - {"_Request__dict__", "_Request__weakref__", *OWN}
    names -= {"__dict__", "__weakref__"}
    return {name: getattr(request, name, "not set") for name in sorted(names)}


def at(seconds: float) -> datetime:
    """Return a time so many seconds from now."""
    return datetime.now(UTC) + timedelta(seconds=seconds)


PLAIN: dict[str, Callable[[], dict[str, Any]]] = {
    "plain": dict,
    "keyword": lambda: {"shadow": "other", "ignore_result": True, "group_id": "many"},
    "limits": lambda: {"time_limit": 9, "soft_time_limit": 8},
    "expires": lambda: {"expires": at(60)},
    "expired": lambda: {"expires": at(-60)},
    "expires naive": lambda: {"expires": at(60).replace(tzinfo=None)},
    "expires elsewhere": lambda: {"expires": at(60).astimezone(timezone(timedelta(hours=5)))},
    "expires day": lambda: {"expires": "99991231"},
    "expired day": lambda: {"expires": "19991231"},
    "headers": lambda: {"more": {"request_id": "a", "tenant": {"name": "b"}}},
    "both": lambda: {"expires": at(60), "more": {"request_id": "a"}},
    "stamped": lambda: {"stamped_headers": ["who"], "who": "me"},
    "linked": lambda: {"callbacks": [{"task": "a", "args": [], "kwargs": {}, "options": {}}]},
}


@pytest.mark.parametrize("options", PLAIN.values(), ids=PLAIN)
def test_requests_are_celery_s(app: Celery, consumer: SimpleNamespace, options: Any):
    """Whatever a plain message says, both ways end in the same request, or in none."""
    ways, given = Ways(consumer), options()
    theirs = [state_of(request) for request in ways.usual(message_of(app, **given))]
    state.requests.clear()
    ours = ways.short(message_of(app, **given))

    assert ours is not None
    assert theirs == [state_of(request) for request in ours]
    assert [request.id for request in ours] == list(state.requests)


def test_a_request_keeps_its_headers_once(app: Celery, consumer: SimpleNamespace):
    """The message of one that waits has no second dict of them."""
    message = message_of(app, more={"tenant": "a"})
    headers = message.headers
    (request,) = Ways(consumer).short(message) or ()

    assert headers.items() <= message.headers.items()
    assert request.request_dict is message.headers


@pytest.mark.parametrize("zone", ["Asia/Tokyo", None])
def test_naive_times_are_of_the_apps_zone(app: Celery, consumer: SimpleNamespace, zone: str | None):
    """A time without a zone is read in the zone that Celery reads it in."""
    app.conf.timezone = zone
    ways, given = Ways(consumer), {"expires": "2999-07-01T12:00:00"}
    (theirs,) = ways.usual(message_of(app, **given))
    (ours,) = ways.short(message_of(app, **given)) or ()

    assert theirs.expires == ours.expires


def test_no_time_is_left_to_celery(app: Celery, consumer: SimpleNamespace):
    """What cannot be read as a time is refused in Celery's own words."""
    assert Ways(consumer).short(message_of(app, expires="2040-13-32T00:00:00.000000+00:00")) is None


def test_revoked_is_not_admitted(app: Celery, consumer: SimpleNamespace):
    """A revoked message is taken, announced, and joins no line."""
    state.revoked.add("one")

    assert [] == Ways(consumer).short(message_of(app))
    assert "REVOKED" == app.backend.get_task_meta("one")["status"]


def test_autoscale_is_told(app: Celery, consumer: SimpleNamespace):
    """Whoever counts messages to scale the pool counts these too."""
    counted: list[Any] = []
    consumer.on_task_message.add(counted.append)
    admitted = Ways(consumer).short(message_of(app))

    assert admitted == counted


def limited(consumer: SimpleNamespace) -> None:
    """Let the task have a rate limit."""
    consumer.task_buckets["shop.double"] = object()


def watched(consumer: SimpleNamespace) -> None:
    """Let somebody listen to the events of tasks."""
    consumer.event_dispatcher = SimpleNamespace(enabled=True, groups=set(), send=nothing)


def reduced(consumer: SimpleNamespace) -> None:
    """Be just back from a lost connection."""
    consumer.restart_count, consumer._maximum_prefetch_restored = 1, False


@pytest.mark.parametrize("make_rare", [limited, watched, reduced])
def test_what_is_rare_is_left_to_celery(app: Celery, consumer: SimpleNamespace, make_rare: Any):
    """Where more is to be done than usual, Celery's strategy does it."""
    make_rare(consumer)

    assert Ways(consumer).short(message_of(app)) is None
    assert {} == state.requests


def test_an_eta_is_left_to_celery(app: Celery, consumer: SimpleNamespace):
    """Who is to wait is scheduled by Celery's strategy."""
    assert Ways(consumer).short(message_of(app, eta=at(60))) is None


def test_receivers_of_a_signal_hear_it(app: Celery, consumer: SimpleNamespace):
    """With a receiver of task_received the message goes where the signal is sent."""
    signals.task_received.connect(nothing)
    try:
        assert Ways(consumer).short(message_of(app)) is None
    finally:
        signals.task_received.disconnect(nothing)


def test_worker_events_alone_are_no_listeners(app: Celery, consumer: SimpleNamespace):
    """A dispatcher that sends the worker's heartbeats only leaves tasks their short way."""
    consumer.event_dispatcher = SimpleNamespace(enabled=True, groups={"worker"}, send=nothing)

    assert Ways(consumer).short(message_of(app))
