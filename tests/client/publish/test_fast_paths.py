"""Which calls take the fast path, wherever Celery's code lies, and what is said of it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
from celery import Celery, signals
from kombu import Producer
from kombu.exceptions import SerializerNotInstalled
from redis.client import PubSub

from celery_batch import BatchTask, ConfigurationError
from tests.client.conftest import Sender

#: Celery, moved after it was compiled; then two calls, of which Celery sends what we do not.
_RELOCATED = """
from celery import Celery, Task
from kombu.messaging import Producer

for method in (Task.apply_async, Celery.send_task, Producer.publish):
    method.__code__ = method.__code__.replace(co_filename="/build/elsewhere.py")

from celery_batch import BatchTask, ConfigurationError

app = Celery("moved", broker={url!r}, backend={url!r})

@app.task(base=BatchTask, name="shout")
def shout(text):
    return text

shout.delay("first of its kind")
sent = []
own = app.amqp.send_task_message
app.amqp.send_task_message = lambda *args, **more: (sent.append(args), own(*args, **more))[1]
shout.delay("a")
shout.delay_many(["b", "c"])
print(len(sent))
"""


def test_code_that_was_moved_is_known(broker: str, in_python: Callable[..., str]) -> None:
    """Where Celery's code names files that are not there, calls take the fast path as ever."""
    assert "0" == in_python(_RELOCATED.format(url=broker))


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return what was logged of fast paths."""
    return [one.message for one in caplog.records if "Fast paths" in one.message]


def test_the_first_call_says_which_fast_paths_are_on(
    sender: Callable[..., Sender], caplog: pytest.LogCaptureFixture
) -> None:
    """One line a process says that calls and results take the fast paths."""
    caplog.set_level(logging.INFO)
    here = sender()
    for _ in range(3):
        here.task.delay("a")

    assert ["Fast paths of sender here: publish, notify on"] == said(caplog)


@pytest.mark.parametrize(
    ("conf", "line"),
    [
        ({"batch_bulk": False}, "here: publish, notify off (batch_bulk is False)"),
        ({"task_send_sent_event": True}, "notify on; publish off (task_send_sent_event is on)"),
        ({"task_routes": (lambda *_, **__: None,)}, "publish off (a route is a function)"),
        ({"result_backend": "cache+memory://"}, "on; notify off (results are in CacheBackend)"),
        ({"batch_disable_fast_paths": "all"}, "publish, notify off (batch_disable_fast_paths)"),
    ],
    ids=["no bulk", "sent events", "a route", "another backend", "by hand"],
)
def test_what_is_off_is_said_with_its_reason(
    sender: Callable[..., Sender],
    caplog: pytest.LogCaptureFixture,
    conf: dict[str, Any],
    line: str,
) -> None:
    """The line names what keeps calls and results from the fast paths."""
    caplog.set_level(logging.INFO)
    sender(**conf).task.delay("a")

    assert [True] == [line in one for one in said(caplog)]


def test_an_unknown_serializer_is_raised_and_not_logged(
    sender: Callable[..., Sender], caplog: pytest.LogCaptureFixture
) -> None:
    """The error says enough."""
    with pytest.raises(SerializerNotInstalled, match="nope"):
        sender().task.apply_async(("a",), serializer="nope")

    assert "" == caplog.text


def test_a_url_of_no_store_is_raised_and_not_logged(
    sender: Callable[..., Sender], caplog: pytest.LogCaptureFixture
) -> None:
    """The error names the setting and the URL, and no part of Celery."""
    with pytest.raises(ConfigurationError, match=r"^batch_payload_store: .*, got 'redis:/x'$"):
        sender(batch_payload_store="redis:/x").task.delay("a")

    assert "" == caplog.text


def test_other_private_parts_leave_calls_to_celery(
    sender: Callable[..., Sender], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where kombu and redis-py have changed, calls go Celery's way, and the line says why."""
    caplog.set_level(logging.INFO)
    publish = Producer._publish

    def changed(self: Any, *args: Any, more: None = None, **options: Any) -> Any:  # noqa: ARG001
        return publish(self, *args, **options)

    monkeypatch.setattr(Producer, "_publish", changed)
    monkeypatch.setattr(PubSub, "get_message", lambda _self: None)
    here = sender()
    results = [here.task.delay("a"), *here.task.delay_many(["b", "c"])]
    messages = here.taken()["celery"]

    assert [result.id for result in results] == [each["headers"]["id"] for each in messages]
    line = (
        "publish off (kombu.messaging.Producer._publish has other parameters);"
        " notify off (redis.client.PubSub.get_message has other parameters)"
    )
    assert [line] == [each.partition("here: ")[2] for each in said(caplog)]


def test_other_brokers_and_receivers_are_named(caplog: pytest.LogCaptureFixture) -> None:
    """So are a broker that we do not know, and whoever listens to publications."""
    caplog.set_level(logging.INFO)
    app = Celery("other", broker="memory://", set_as_current=False)

    @app.task(base=BatchTask, name="shout", ignore_result=True)
    def shout(text: list[str]) -> list[str]:
        return text

    def listen(**_: Any) -> None:
        """Listen."""

    signals.before_task_publish.connect(listen, weak=False)
    try:
        shout.delay("a")
    finally:
        signals.before_task_publish.disconnect(listen)
    reasons = "the broker is memory, a publishing signal has receivers"

    assert [f"Fast paths of other here: publish off ({reasons}); notify off"] == [
        line.rpartition(" (")[0] for line in said(caplog)
    ]
