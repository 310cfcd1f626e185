"""Options and lists of calls that a user has got wrong: errors at the call, and a warning."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from celery import signals
from kombu import Queue

from celery_batch import BatchTask, ConfigurationError
from tests.client.conftest import Sender

ONE = [(("a",), None)]


def ways(task: Any, options: dict[str, Any]) -> Iterator[Callable[[], Any]]:
    """Yield all methods that send a call with these options."""
    yield lambda: task.apply_async(("a",), **options)
    yield lambda: task.apply_many(ONE, **options)
    yield lambda: asyncio.run(task.aapply_async(("a",), **options))
    yield lambda: asyncio.run(task.aapply_many(ONE, **options))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"countdown": "5"}, "shout: countdown: must be seconds as a number, got '5'"),
        ({"countdown": float("inf")}, "shout: countdown: must be seconds as a number, got inf"),
        ({"eta": 5}, "shout: eta: must be a datetime or its text in ISO 8601, got 5"),
        ({"eta": "x"}, "shout: eta: must be a datetime or its text in ISO 8601, got 'x'"),
        ({"time_limit": "x"}, "shout: time_limit: must be seconds as a number from 0 up, got 'x'"),
        ({"soft_time_limit": -1}, "shout: soft_time_limit: must be seconds as a number .*, got -1"),
        ({"link": 3}, "shout: link: must be a signature, or a list of these, got 3"),
        ({"link_error": "x"}, "shout: link_error: must be a signature, or a list .*, got 'x'"),
        ({"expires": "tomorrow"}, "shout: expires: must be seconds as a number, a datetime or"),
        ({"expires": {"in": 5}}, "text in ISO 8601, got {'in': 5}"),
        ({"headers": ["a"]}, r"shout: headers: must be a dict, got \['a'\]"),
        ({"queue": 5}, "shout: queue: must be a name or a Queue, got 5"),
        ({"queue": b"gpu"}, "shout: queue: must be a name or a Queue, got b'gpu'"),
        ({"routing_key": 4}, "shout: routing_key: must be a text, got 4"),
        ({"retry_policy": 3}, "shout: retry_policy: must be a dict of max_retries, interval_start"),
        ({"retry_policy": {"retries": 3}}, r"and others, got \{'retries': 3\}"),
        ({"compression": "zipp"}, "shout: compression: must be a method that kombu knows, such"),
    ],
)
def test_values_that_cannot_be_read(
    sender: Callable[..., Sender],
    options: dict[str, Any],
    says: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The error names task, option and value, whichever method sends; nothing is sent or logged."""
    here = sender()
    for send in ways(here.task, options):
        with pytest.raises(ConfigurationError, match=says):
            send()

    assert {} == here.taken()
    assert not caplog.messages


@pytest.mark.parametrize(
    "options",
    [
        {"queue": "celery", "compression": "gzip"},
        {"queue": Queue("celery"), "compression": "application/x-gzip"},
        {"countdown": True, "eta": None, "headers": None},
        {"countdown": "", "expires": None, "headers": ()},
        {"eta": "2040-01-01T00:00:00", "expires": "2040-01-01"},
        {"eta": datetime(2040, 1, 1, tzinfo=UTC), "expires": datetime(2040, 1, 1)},  # noqa: DTZ001
        {"time_limit": 5, "soft_time_limit": 0.5, "link": [], "link_error": None},
        {"link": {"task": "a", "args": ()}, "link_error": [{"task": "a"}, {"task": "b"}]},
        {"countdown": -0.5, "expires": 60, "headers": [("mine", 1)]},
    ],
)
def test_values_that_celery_reads(sender: Callable[..., Sender], options: dict[str, Any]) -> None:
    """What an ordinary task accepts is accepted, pairs as headers too."""
    here = sender()
    here.stock(("a",), **options)
    (theirs,) = here.taken()["celery"]
    for send in ways(here.task, options):
        send()
    ours = here.taken()["celery"]

    assert 4 == len(ours)
    assert {theirs["headers"].get("mine")} == {each["headers"].get("mine") for each in ours}
    assert bool(theirs["headers"]["eta"]) == all(each["headers"]["eta"] for each in ours)


@pytest.mark.parametrize("typing", [True, False])
@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("ab",), "shout: task args must be a list or tuple, got 'ab'"),
        ((5,), "shout: task args must be a list or tuple, got 5"),
        ((("a",), ["b"]), r"shout: task kwargs must be a dict, got \['b'\]"),
        ((None, "b"), "shout: task kwargs must be a dict, got 'b'"),
    ],
)
def test_arguments_that_no_call_has(
    sender: Callable[..., Sender], arguments: tuple[Any, ...], says: str, *, typing: bool
) -> None:
    """The error says which of both it is, and what it has to be."""
    here = sender()
    task = here.make("shout", typing=typing)
    for _ in range(2):
        with pytest.raises(TypeError, match=says):
            task.apply_async(*arguments)
        with pytest.raises(TypeError, match=says):
            asyncio.run(task.aapply_async(*arguments))

    assert {} == here.taken()


@pytest.mark.parametrize("task_id", [3, b"one"])
def test_an_id_that_is_no_text(sender: Callable[..., Sender], task_id: Any) -> None:
    """It is refused at the call, also by a coroutine."""
    here = sender()
    one, *_, many = [*ways(here.task, {"task_id": task_id})]
    with pytest.raises(ConfigurationError, match="shout: task_id: must be a text, got"):
        one()
    with pytest.raises(ConfigurationError, match="cannot have one task_id"):
        many()

    assert {} == here.taken()


def test_options_of_the_task(
    sender: Callable[..., Sender], caplog: pytest.LogCaptureFixture
) -> None:
    """They have no effect in a call, which is sent, and the log says so once."""
    here = sender()
    for send in ways(here.task, {"max_wait": 3, "max_retries": 1}):
        send()

    assert 4 == len(here.taken()["celery"])
    said = sorted(text for text in caplog.messages if "has no option" in text)
    assert 2 == len(said)
    words = "which nothing reads; it is an option of the task"
    assert f"shout: a call has no option 'max_wait', {words}" == said[1]


def test_a_misspelt_option_is_told_once(
    sender: Callable[..., Sender], caplog: pytest.LogCaptureFixture
) -> None:
    """The call is sent, as in Celery, and the log names the option that was meant."""
    here = sender()
    for send in ways(here.task, {"priorty": 3, "colour": "red"}):
        send()

    assert 4 == len(here.taken()["celery"])
    (said,) = [text for text in caplog.messages if "has no option" in text]
    assert said.startswith("shout: a call has no option 'priorty'")
    assert said.endswith("did you mean priority?")


def test_options_that_others_may_read(
    sender: Callable[..., Sender], caplog: pytest.LogCaptureFixture
) -> None:
    """A route that is a function, and receivers of signals, get options of any name."""
    routed = sender(task_routes=[lambda *_, **__: None])
    routed.make("routed").apply_async(("a",), queues="b")
    here = sender()

    def receive(**_: Any) -> None:
        """Look at the message."""

    signals.before_task_publish.connect(receive, weak=False)
    try:
        here.make("watched").apply_async(("a",), queues="b")
    finally:
        signals.before_task_publish.disconnect(receive)
    here.make("stamped").apply_async(("a",), stamped_headers=["headed"], headed="yes")

    assert "has no option" not in caplog.text


@pytest.mark.parametrize("items", [5, None, "abc", b"abc", {"a": 1}], ids=repr)
def test_what_is_no_list(sender: Callable[..., Sender], items: Any) -> None:
    """The error names the method, and says how one item is sent."""
    task = sender().task
    for send in (task.delay_many, lambda each: asyncio.run(task.adelay_many(each))):
        with pytest.raises(TypeError, match=r"delay_many\(\) takes a list .*; for .* \[item\]"):
            send(items)
    for send in (task.apply_many, lambda each: asyncio.run(task.aapply_many(each))):
        with pytest.raises(TypeError, match=r"apply_many\(\) takes .* \[\(\(item,\), None\)\]"):
            send(items)


def test_items_of_a_task_with_several_arguments(sender: Callable[..., Sender]) -> None:
    """The error names the method that takes them."""
    here = sender()

    @here.app.task(base=BatchTask, name="pair")
    def pair(one: list[Any], two: list[Any]) -> list[Any]:
        """Return the first ones."""
        return one or two

    says = r"gives each call one argument: pair\(\) missing .*'two'; write apply_many\(\[\(\(a, b\)"
    for send in (pair.delay_many, lambda each: asyncio.run(pair.adelay_many(each))):
        with pytest.raises(TypeError, match=says):
            send([(1, 2)])
    assert {} == here.taken()
