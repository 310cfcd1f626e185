"""What the fast path puts into the broker is what Celery would."""

from __future__ import annotations

import datetime as dt
import json
import re
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from kombu import Exchange, Queue

#: In days, as RabbitMQ would still count it.
SOON = dt.datetime.now(dt.UTC) + dt.timedelta(days=9)

ID = "6f1c1f0e-0000-4000-8000-00000000000a"


def comparable(lists: dict[str, list[dict[str, Any]]]) -> Any:
    """Take out what is new in every message: its tag, and when it was to come, to the second."""
    for messages in lists.values():
        for message in messages:
            tag = message["properties"].pop("delivery_tag")
            assert re.fullmatch(r"[0-9a-f-]{36}", tag)
            for ours in ("batch_reply", "batch_reads_payloads"):
                message["headers"].pop(ours, None)
            if message["headers"]["eta"]:
                message["headers"]["eta"] = message["headers"]["eta"][:15]
    return lists


def in_order(lists: dict[str, list[dict[str, Any]]]) -> Any:
    """Have the order of fields count too, which is the order on the wire."""
    return {
        key: [
            [(part, list(message[part])) for part in ("headers", "properties")] for message in each
        ]
        for key, each in lists.items()
    }


CALLS: dict[str, dict[str, Any]] = {
    "plain": {},
    "countdown": {"countdown": 100},
    "eta": {"eta": dt.datetime(2040, 1, 2, 3, 4, tzinfo=dt.UTC)},
    "naive eta": {"eta": dt.datetime(2040, 1, 2, 3, 4)},  # noqa: DTZ001
    "expires number": {"expires": 10_000},
    "expires fraction": {"expires": 20_000.1234},
    "expires at once": {"expires": 0},
    "expires flag": {"expires": True},
    "expired": {"expires": -10_000},
    "expires in years": {"expires": 10**9},
    "expires soon": {"expires": SOON},
    "expires naive": {"expires": SOON.replace(tzinfo=None)},
    "expires elsewhere": {"expires": SOON.astimezone(dt.timezone(dt.timedelta(hours=5)))},
    "expires text": {"expires": SOON.isoformat()},
    "expires day": {"expires": f"{SOON:%Y%m%d}"},
    "expires never": {"expires": None},
    "expires datetime": {"expires": dt.datetime(2040, 1, 2, 3, 4, tzinfo=dt.UTC)},
    "priority": {"priority": 5},
    "priority above": {"priority": 9},
    "queue": {"queue": "other"},
    "queue object": {"queue": Queue("other", Exchange("other"), "other")},
    "routing key": {"routing_key": "odd"},
    "headers": {"headers": {"request_id": "a \N{SNOWMAN} 100%s", "tenant": "%(reply)s"}},
    "nested headers": {"headers": {"a": {"b": [1, 2.5, None, True]}, "": "", "%s": -(2**40)}},
    "typed headers": {"headers": {"day": dt.date(2040, 1, 2), 1: "one"}},
    "celery's headers": {"headers": {"tenant": "a", "task": "shout"}},
    "described headers": {"headers": {"argsrepr": "(secret)", "expires": None}},
    "no headers": {"headers": {}},
    "headers left out": {"headers": None},
    "expires with headers": {"expires": 10_000, "headers": {"request_id": "a"}, "priority": 3},
    "ignore result": {"ignore_result": True},
    "keep result": {"ignore_result": False},
    "shadow": {"shadow": "whisper %s"},
    "blank": {"shadow": "%(reply)s %%(task_id)s"},
    "argsrepr": {"argsrepr": "(secret)", "kwargsrepr": "{secret}"},
    "stamps": {"stamped_headers": ["stamp"], "stamp": "value"},
    "group": {"group_id": "g", "group_index": 3, "root_id": "r", "parent_id": "p"},
    "time limits": {"time_limit": 9, "soft_time_limit": 7.5},
    "gzip": {"compression": "gzip"},
    "pickle": {"serializer": "pickle"},
    "yaml": {"serializer": "yaml"},
    "retries": {"retries": 2},
    "reply to": {"reply_to": "elsewhere"},
    "delivery mode": {"delivery_mode": 1},
    "no retry": {"retry": False},
    "retry policy": {"retry_policy": {"max_retries": 1}},
    "origin": {"origin": "me"},
    "chord": {"chord": {"task": "sum", "args": []}, "group_id": "g"},
    "unknown property": {"content_kind": "x"},
}


def standing(here: Any) -> Any:
    """Have time stand still for an app, so that what is left of it is the same every time."""
    now = dt.datetime.now(dt.UTC)
    here.app.now = lambda: now
    return here


@pytest.mark.parametrize("options", CALLS.values(), ids=CALLS)
def test_every_option_makes_celerys_message(
    sender: Callable[..., Any], options: dict[str, Any]
) -> None:
    """Whatever the options, the message is the same field by field, in the same order."""
    here = standing(sender())
    arguments = (("it's 100% \N{SNOWMAN}", "!"), {})
    for _ in range(2):  # the first of its kind takes Celery's path
        here.task.apply_async(*arguments, task_id=ID, **options)
        ours = here.taken()
    here.stock(*arguments, task_id=ID, **options)
    theirs = here.taken()

    assert theirs
    assert in_order(comparable(theirs)) == in_order(comparable(ours))
    assert theirs == ours


def without_id(message: dict[str, Any]) -> Any:
    """Take out what is the call's own."""
    text = json.dumps(comparable({"": [message]})[""][0])
    return json.loads(text.replace(message["headers"]["id"], "its id"))


@pytest.mark.parametrize("options", CALLS.values(), ids=CALLS)
def test_each_of_many_is_celerys_message(
    sender: Callable[..., Any], options: dict[str, Any]
) -> None:
    """What `apply_many` looks up once for all is what it would be for each."""
    here = standing(sender())
    arguments = (("it's 100% \N{SNOWMAN}", "!"), {})
    here.task.apply_many([arguments] * 3, **options)
    ours = here.taken()
    here.stock(*arguments, **options)
    theirs = here.taken()
    ((key, (message,)),) = theirs.items()
    of_celery = without_id(message)
    of_ours = [without_id(each) for each in ours[key]]

    assert [of_celery] * 3 == of_ours
    assert in_order({key: [of_celery] * 3}) == in_order({key: of_ours})


def test_links_are_the_same(sender: Callable[..., Any]) -> None:
    """Callbacks and errbacks, single or several, are in the body as Celery writes them."""
    here = sender()
    sig = here.task.s("next")
    for links in ({"link": sig}, {"link": [sig, sig], "link_error": sig}):
        for _ in range(2):
            here.task.apply_async(("a",), task_id=ID, **links)
            ours = here.taken()
        here.stock(("a",), task_id=ID, **links)

        assert comparable(here.taken()) == comparable(ours)


def test_a_named_exchange_is_the_same(sender: Callable[..., Any]) -> None:
    """A message to an exchange goes to the queues that are bound to it."""
    queues = [Queue("celery"), Queue("far", Exchange("elsewhere"), "odd")]
    here = sender(task_queues=queues)
    for queue in queues:
        queue(here.app.connection().default_channel).declare()
    for _ in range(2):
        here.task.apply_async(("a",), task_id=ID, exchange="elsewhere", routing_key="odd")
        ours = here.taken()
    here.stock(("a",), task_id=ID, exchange="elsewhere", routing_key="odd")
    theirs = here.taken()

    assert ["far"] == list(theirs)
    assert comparable(theirs) == comparable(ours)


ARGUMENTS: dict[str, Any] = {
    "text": (("a",), None),
    "two": (("a", 2), {}),
    "list": (["a", [1.5, None]], {}),
    "keywords": ((), {"text": "a", "mark": {"b": (1, 2)}}),
    "long": (("x" * 5000, "y" * 5000), {}),
    "long words": (("word " * 300,), {}),
    "nearly long": (("x" * 999, "y" * 30), {}),
    "quotes": (('it\'s "so" \\ %s\n',), {}),
    "numbers": ((float("1e30"), True), {}),
    "bytes": ((b"\xff\x00", b"plain"), {}),
    "nothing": ((None,), {}),
    "date": ((dt.date(2040, 1, 2),), {}),
}


@pytest.mark.parametrize("arguments", ARGUMENTS.values(), ids=ARGUMENTS)
def test_all_arguments_make_celerys_message(sender: Callable[..., Any], arguments: Any) -> None:
    """Arguments are written and described as Celery does it."""
    here = sender()
    for _ in range(2):
        here.task.apply_async(*arguments, task_id=ID)
        ours = here.taken()
    here.stock(*arguments, task_id=ID)

    assert comparable(here.taken()) == comparable(ours)


SETTINGS: dict[str, dict[str, Any]] = {
    "timezone": {"timezone": "Europe/Berlin"},
    "no utc": {"enable_utc": False, "timezone": "Asia/Tokyo"},
    "prefix": {"broker_transport_options": {"global_keyprefix": "mine:"}},
    "steps": {"broker_transport_options": {"priority_steps": list(range(10)), "sep": ":"}},
    "order": {"broker_transport_options": {"queue_order_strategy": "priority"}},
    "default queue": {"task_default_queue": "main"},
    "default priority": {"task_default_priority": 6},
    "route": {"task_routes": {"shout": "routed"}},
    "pattern": {"task_routes": [{"sh*": {"queue": "routed", "priority": 3}}]},
    "router": {"task_routes": lambda _name, args, *_a, **_k: {"queue": f"to-{args[0]}"}},
    "sent event": {"task_send_sent_event": True},
    "protocol 1": {"task_protocol": 1},
    "serializer": {"task_serializer": "yaml"},
    "compression": {"task_compression": "gzip"},
    "levels": {"task_repr_maxlevels": 1},
    "topic": {"task_default_exchange": "t", "task_default_exchange_type": "topic"},
    "expiring": {"task_queues": [Queue("celery", expires=60)]},
    "ignored": {"task_ignore_result": True},
    "off": {"batch_bulk": False},
    "delivery": {"task_default_delivery_mode": 1},
}


@pytest.mark.parametrize("conf", SETTINGS.values(), ids=SETTINGS)
def test_every_setting_makes_celerys_message(
    sender: Callable[..., Any], conf: dict[str, Any]
) -> None:
    """Whatever the settings, the message and the list it goes to are the same."""
    here = sender(**conf)
    for options in ({}, {"priority": 8}, {"countdown": 100}):
        for _ in range(2):
            here.task.apply_async(("a", [[[1]]]), task_id=ID, **options)
            ours = here.taken()
        here.stock(("a", [[[1]]]), task_id=ID, **options)
        theirs = here.taken()

        assert theirs or "protocol" in str(conf) or "topic" in str(conf)
        if conf.get("task_protocol") != 1:
            assert in_order(comparable(theirs)) == in_order(comparable(ours))
        assert strip(theirs) == strip(ours)


def strip(lists: Any) -> Any:
    """Leave out tags, and times in bodies of the first protocol."""
    for messages in lists.values():
        for message in messages:
            message["properties"].pop("delivery_tag", None)
            if not message["headers"]:
                message.pop("body")
    return lists


def test_calls_with_a_latency_target_say_when_they_were_sent(sender: Callable[..., Any]) -> None:
    """The header is there on each path, between Celery's own and ours, unless the caller has it."""
    here = sender()
    timed = here.make("timed", target_latency=0.2)
    before, found = int(time.time() * 1000), []
    for send in (timed.apply_async, timed.apply_async, partial(here.stock, task=timed)):
        send(("a",))
        found += [each["headers"] for messages in here.taken().values() for each in messages]
    timed.delay_many(["a"] * 2)
    timed.apply_async(("a",), headers={"batch_sent": 0})
    more = [each["headers"] for messages in here.taken().values() for each in messages]
    here.task.apply_async(("a",))
    ((message,),) = here.taken().values()

    assert [True, True, False] == ["batch_sent" in each for each in found]
    assert [*found[0]] == [*found[1]]
    sent = [each["batch_sent"] for each in (*found[:2], *more)]
    assert all(before <= each <= time.time() * 1000 for each in sent[:-1])
    assert 0 == sent[-1]
    assert "batch_sent" not in message["headers"]
