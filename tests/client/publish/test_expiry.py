"""What a message says of its expiry, and which calls with one take the fast path."""

from __future__ import annotations

import asyncio
import datetime as dt
from collections.abc import Callable
from typing import Any

import pytest
from celery import Celery

from celery_batch.client.publish.message import PublishSettings, expiry_of
from celery_batch.client.publish.publisher import Publisher
from celery_batch.client.publish.series import Call
from celery_batch.processes.managed_process import wait_until
from tests.client.conftest import Sender

NOW = dt.datetime.now(dt.UTC)
SOON = NOW + dt.timedelta(days=9)


STRANGE: dict[str, Any] = {
    "past": -1,
    "past time": NOW - dt.timedelta(days=1),
    "never ending": 2**32,
    "far time": NOW + dt.timedelta(days=365),
    "no number": float("nan"),
    "endless": float("inf"),
    "flag": True,
    "text": "tomorrow",
    "day": SOON.date(),
    "span": dt.timedelta(days=1),
}


@pytest.mark.parametrize("expires", STRANGE.values(), ids=STRANGE)
def test_what_is_strange_is_left_to_celery(expires: Any):
    """What Celery warns of, or refuses, or RabbitMQ would, has no text of ours."""
    app = Celery(set_as_current=False)

    assert expiry_of(app, PublishSettings(app), expires) is None


ROAD: dict[str, dict[str, Any]] = {
    "expires": {"expires": 10},
    "expires fraction": {"expires": 0.5},
    "expires time": {"expires": SOON},
    "expires text": {"expires": SOON.isoformat()},
    "headers": {"headers": {"request_id": "a", "attempt": 1}},
    "both": {"expires": 10, "headers": {"request_id": "a"}},
    "unset": {"expires": None, "headers": None},
}


@pytest.mark.parametrize("options", ROAD.values(), ids=ROAD)
def test_calls_take_the_short_road(sender: Callable[..., Sender], options: dict[str, Any]) -> None:
    """Calls that expire or have headers of their own are no rare ones, whatever is in them."""
    here = sender()
    here.task.apply_async(("first",), **options)
    publisher, task = Publisher.of(here.app), here.app.tasks["shout"]
    sent = publisher.send_fast(Call(task, ("second",), None, {**options, **_another(options)}))

    assert sent is not None
    assert publisher.series(task, options) is not None
    assert 2 == sum(map(len, here.taken().values()))


def _another(options: dict[str, Any]) -> dict[str, Any]:
    headers = options.get("headers")
    return {"headers": {"tenant": "b", **headers}} if headers else {}


def test_a_task_that_expires_takes_the_short_road(sender: Callable[..., Sender]) -> None:
    """What a task says of its expiry is in the messages of its calls, unless a call says other."""
    here = sender()
    here.make("hurried", expires=60)
    task = here.app.tasks["hurried"]
    published: list[bool] = []
    for options in ({}, {}, {"expires": 120}, {"expires": None}, {"expires": None}):
        call = Call(task, ("a",), None, options)
        published.append(Publisher.of(here.app).send_fast(call) is not None)
        if not published[-1]:
            here.stock(("a",), task=task, **options)
    (messages,) = here.taken().values()
    spans = [message["properties"].get("expiration") for message in messages]

    assert [False, True, True, False, True] == published
    assert ["60000", "60000", "120000", None, None] == spans


def is_over(time: dt.datetime) -> bool:
    """Say whether a time has passed."""
    return dt.datetime.now(dt.UTC) > time


def test_rows_expire_when_they_are_made(sender: Callable[..., Sender]) -> None:
    """Seconds count from each call of many, and Celery tells of a time that passes meanwhile."""
    here = sender()
    here.task.apply_async(("first",), expires=60)
    here.taken()
    passed = dt.datetime.now(dt.UTC) + dt.timedelta(seconds=0.2)

    def rows() -> Any:
        """Make a call before that time and one after."""
        yield ("a",), None
        wait_until(lambda: "" if is_over(passed) else "not yet", [], what="the time", timeout=60)
        yield ("b",), None

    here.task.apply_many(rows(), expires=60)
    first, second = here.taken()["celery"]
    here.task.apply_many(rows(), expires=passed)
    *_, late = here.taken()["celery"]

    assert first["headers"]["expires"] < second["headers"]["expires"]
    assert "0" == late["properties"]["expiration"]


def test_coroutines_send_headers_of_their_own(sender: Callable[..., Sender]) -> None:
    """Calls of one pass of a loop are written together, each with its own headers."""
    here = sender()

    async def ask() -> None:
        """Make many calls at once."""
        await asyncio.gather(
            *(
                here.task.aapply_async((each,), expires=60, headers={"request_id": each})
                for each in "abcd"
            )
        )

    asyncio.run(ask())
    found = {message["headers"]["argsrepr"]: message for message in here.taken()["celery"]}

    assert [f"('{each}',)" for each in "abcd"] == sorted(found)
    assert all(message["headers"]["request_id"] in about for about, message in found.items())
    assert {"60000"} == {message["properties"]["expiration"] for message in found.values()}
