"""Many calls to RabbitMQ, whose confirms are awaited together."""

from __future__ import annotations

import asyncio
import datetime as dt
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import psutil
import pytest
from amqp import Channel
from celery import Celery, Task, group
from kombu import Queue, pools
from kombu.exceptions import OperationalError

from celery_batch import BatchTask, PartlySent
from celery_batch.client.publish import confirms, transport
from celery_batch.client.publish.publisher import Publisher
from celery_batch.client.publish.series import Call
from celery_batch.payloads.app_payloads import AppPayloads
from celery_batch.processes.managed_process import wait_until

CONFIRMED = {"broker_transport_options": {"confirm_publish": True}}


@pytest.fixture
def apps(rabbitmq_server: Any) -> Iterator[Any]:
    """Make apps that send to an empty queue."""
    made: list[Any] = []

    def make(**conf: Any) -> Any:
        app = Celery("sender", broker=rabbitmq_server.url, set_as_current=False)
        app.conf.update({"task_default_queue": "asked", **conf})
        made.append(app)
        with app.connection_for_write() as connection:
            connection.default_channel.queue_delete("asked")

        @app.task(base=BatchTask, name="shout")
        def shout(text: list[Any]) -> list[Any]:
            return text

        return shout

    yield make
    for app in made:
        app.close()
    pools.reset()


def taken(task: Any) -> list[Any]:
    """Take all messages out of the queue, oldest first."""
    with task.app.connection_for_read() as connection:
        channel, found = connection.default_channel, []
        while message := channel.basic_get("asked", no_ack=True):
            found.append(message)
    return found


def ids(messages: list[Any]) -> list[str]:
    """Return the tasks' ids."""
    return [message.headers["id"] for message in messages]


@pytest.mark.parametrize("conf", [{}, CONFIRMED], ids=["unconfirmed", "confirmed"])
def test_many_calls_arrive_in_order(apps: Any, conf: dict[str, Any]) -> None:
    """All of many calls lie in the queue when `delay_many` returns, in order."""
    task = apps(**conf)
    results = task.delay_many(range(1100))
    task.app.pool.force_close_all()
    found = taken(task)

    assert ids(found) == [each.id for each in results]


@pytest.mark.parametrize("conf", [{}, CONFIRMED], ids=["unconfirmed", "confirmed"])
@pytest.mark.parametrize("is_allowed", [True, False], ids=["taken before", "the first"])
def test_calls_whose_values_cannot_be_stored(
    apps: Any, conf: dict[str, Any], is_allowed: Any
) -> None:
    """The others of many are sent, in order."""
    task = apps(batch_payload_store="redis://127.0.0.1:1/0", **conf)
    AppPayloads.of(task.app).is_allowed = is_allowed
    large = np.ones(20_000)
    with pytest.raises(PartlySent, match="payload store cannot be reached") as caught:
        task.delay_many([large, 1, 2, large, 3])
    with pytest.raises(PartlySent, match="payload store cannot be reached") as members:
        group(task.s(value) for value in (1, large, 2)).delay()

    assert [1, 2, 4] == list(caught.value.places)
    assert [0, 2] == list(members.value.places)
    sent = [*caught.value.sent, *members.value.sent]
    assert ids(taken(task)) == [each.id for each in sent]


def test_many_calls_make_celerys_messages(apps: Any) -> None:
    """A message of many is the one that Celery sends alone."""
    task = apps(**CONFIRMED)
    task.apply_many([(("a",), None)], countdown=0, priority=3)
    Task.apply_async(task, ("a",), priority=3)
    ours, theirs = taken(task)
    for message in (ours, theirs):
        for name in ("id", "root_id"):
            del message.headers[name]
        del message.properties["correlation_id"], message.properties["application_headers"]

    assert theirs.headers == ours.headers
    assert theirs.properties == ours.properties
    assert theirs.body == ours.body


def test_confirms_are_awaited_together(apps: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is awaited between one call and the next."""
    task = apps(**CONFIRMED)
    waits: list[Any] = []
    wait = Channel.wait

    def noted(*args: Any, **options: Any) -> Any:
        """Note a wait, but none of the threads that other tests' apps have left."""
        if threading.current_thread() is threading.main_thread():
            waits.append(args)
        return wait(*args, **options)

    monkeypatch.setattr(Channel, "wait", noted)
    task.delay_many(range(300))

    assert len(waits) < 20
    assert 300 == len(taken(task))


def test_refused_calls_are_told_from_those_that_were_sent(apps: Any) -> None:
    """Where RabbitMQ refuses some of many, the error names the others, which it has."""
    full = Queue("asked", queue_arguments={"x-max-length": 5, "x-overflow": "reject-publish"})
    task = apps(task_queues=[full], **CONFIRMED)
    with pytest.raises(PartlySent, match="only 5 calls were surely sent") as caught:
        task.delay_many(range(20))

    assert isinstance(caught.value, OperationalError)
    assert [each.id for each in caught.value.sent] == ids(taken(task))


def test_returned_calls_were_not_sent(apps: Any) -> None:
    """What no queue takes comes back, if that was wanted, and is an error."""
    task = apps(**CONFIRMED)
    with pytest.raises(OperationalError, match="NO_ROUTE"):
        task.apply_many(
            [(("a",), None)] * 3, exchange="amq.direct", routing_key="nowhere", mandatory=True
        )


def test_coroutines_have_their_confirms_together(apps: Any) -> None:
    """Calls of one pass of a loop are confirmed together."""
    task = apps(**CONFIRMED)

    async def ask() -> list[Any]:
        """Make many calls in one pass."""
        return await asyncio.gather(*(task.adelay(number) for number in range(50)))

    results = asyncio.run(ask())

    assert ids(taken(task)) == [each.id for each in results]


def test_a_group_arrives(apps: Any) -> None:
    """A group goes to RabbitMQ as ever."""
    task = apps(result_backend="cache+memory://")
    result = group(task.s(str(number)) for number in range(5)).apply_async()

    assert ids(taken(task)) == [each.id for each in result]


SOON = dt.datetime.now(dt.UTC) + dt.timedelta(days=9)

OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "priority": {"priority": 9},
    "shadow": {"shadow": "whisper %s"},
    "group": {"group_id": "g", "group_index": 3, "root_id": "r", "parent_id": "p"},
    "large index": {"group_index": 2**40},
    "time limits": {"time_limit": 9, "soft_time_limit": 7.5},
    "pickle": {"serializer": "pickle"},
    "yaml": {"serializer": "yaml"},
    "retries": {"retries": 2},
    "reply to": {"reply_to": "elsewhere"},
    "long reply to": {"reply_to": "x" * 200},
    "delivery mode": {"delivery_mode": 1},
    "headers": {"headers": {"tenant": "a", "attempt": 2, "size": 1.5, "is_new": True, "of": None}},
    "nested headers": {"headers": {"a": {"b": [1, -(2**40)], "": "\N{SNOWMAN}"}, "%s": "%s"}},
    "celery's headers": {"headers": {"task": "shout", "tenant": "a"}},
    "expires number": {"expires": 10_000},
    "expires time": {"expires": SOON, "headers": {"request_id": "a"}},
    "expires text": {"expires": SOON.isoformat(), "priority": 3},
    "chord": {"chord": {"task": "sum", "args": []}, "group_id": "g"},
}

TEXTS = ["it's 100% \N{SNOWMAN}", "x" * 300_000]


def missing(task: Any, found: list[Any], count: int) -> str:
    """Take what has come, and say whether something is missing."""
    found += taken(task)
    return "" if len(found) == count else f"{len(found)} messages"


def whole(message: Any) -> Any:
    """Return all that is in a message, in order, and where it was sent."""
    properties = {**message.properties, "application_headers": list(message.headers.items())}
    place = message.delivery_info["exchange"], message.delivery_info["routing_key"]
    return list(properties.items()), message.body, place


@pytest.mark.parametrize("text", TEXTS, ids=["text", "several frames"])
def test_short_road_makes_celerys_messages(apps: Any, text: str) -> None:
    """Whatever the options, a message is the same field by field, in the same order."""
    task, now = apps(), dt.datetime.now(dt.UTC)
    task.app.now = lambda: now  # it stands still, so that what is left of it is the same
    given = {"task_id": "6f1c1f0e-0000-4000-8000-00000000000a"}
    for options in OPTIONS.values():
        for _ in range(2):  # the first of its kind takes Celery's path
            task.apply_async((text,), None, **given, **options)
        Task.apply_async(task, (text,), None, **given, **options)
        found: list[Any] = []
        wait_until(lambda: missing(task, found, 3), [], what="three messages", timeout=60)  # noqa: B023
        _, ours, theirs = found

        assert whole(theirs) == whole(ours)


def test_headers_that_no_frame_holds_are_left_to_celery(apps: Any) -> None:
    """Headers too large for a frame do not share a connection with others' messages."""
    task = apps()
    task.apply_async((0,), headers={"about": "little"})
    publisher, task = Publisher.of(task.app), task.app.tasks["shout"]
    sent = [
        publisher.send_fast(Call(task, (1,), None, {"headers": {"about": "x" * size}}))
        for size in (1000, 200_000)
    ]

    assert [False, True] == [each is None for each in sent]
    assert publisher.series(task, {"headers": {"about": "x" * 200_000}}) is None


@pytest.mark.parametrize("options", [{}, {"expires": 60, "headers": {"request_id": "a"}}])
def test_many_calls_are_written_together(
    apps: Any, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    """Of many calls none goes through py-amqp's publishing, nor the first, which is learnt from."""
    task = apps()
    published: list[Any] = []
    publish = Channel.basic_publish
    monkeypatch.setattr(
        Channel, "basic_publish", lambda *a, **k: (published.append(a), publish(*a, **k))[1]
    )
    results = task.apply_many((((number,), None) for number in range(300)), **options)
    messages = taken(task)

    assert [] == published
    assert [each.id for each in results] == ids(messages)
    assert {options.get("headers", {}).get("request_id")} == {
        message.headers.get("request_id") for message in messages
    }


def test_many_calls_survive_a_lost_connection(apps: Any) -> None:
    """A connection that was lost since the last call is made anew, and all calls arrive."""
    task = apps()
    first = task.delay_many(range(3))
    with task.app.producer_pool.acquire() as producer:
        producer.connection.default_channel.connection.sock.shutdown(2)
    more = task.delay_many(range(300))

    assert ids(taken(task)) == [each.id for each in (*first, *more)]


def stop(broker: psutil.Process) -> None:
    """Suspend a broker, and return when none of its threads runs any more."""
    broker.suspend()
    tasks = Path(f"/proc/{broker.pid}/task")

    def running() -> str:
        states = [
            (each / "stat").read_text().rpartition(")")[2].split()[0] for each in tasks.iterdir()
        ]
        return "" if set(states) == {"T"} else f"{states}"

    wait_until(running, [], what="a stopped broker", timeout=60)


@pytest.mark.parametrize("at", [0, 1], ids=["at first", "in the midst"])
@pytest.mark.parametrize("conf", [{}, CONFIRMED], ids=["unconfirmed", "confirmed"])
def test_broker_that_takes_nothing_is_given_up(
    apps: Any, rabbitmq_server: Any, monkeypatch: pytest.MonkeyPatch, conf: dict[str, Any], at: int
) -> None:
    """Who sends many is not kept for ever by a broker that is stuck, and can send again later."""
    task = apps(task_publish_retry=False, **conf)
    task.delay_many(range(2))
    monkeypatch.setattr(transport, "_TIMEOUT", 0.3)
    monkeypatch.setattr(confirms, "_TIMEOUT", 0.3)
    (broker,) = psutil.Process(rabbitmq_server.child.pid).children()
    at_last = threading.Timer(20, broker.resume)
    at_last.start()

    def rows() -> Iterator[int]:
        """Make the rows of calls, and have the broker stop before one of them is sent."""
        for number in range(2):
            if number == at:
                stop(broker)
            yield number

    try:
        with pytest.raises(OperationalError, match=r"has taken nothing|timed out|no confirm"):
            task.delay_many(rows())
        was_stuck = broker.status() == psutil.STATUS_STOPPED
    finally:
        at_last.cancel()
        broker.resume()
    monkeypatch.undo()
    results = task.delay_many(range(2))

    assert was_stuck
    assert {each.id for each in results} <= set(ids(taken(task)))


def test_broker_that_takes_nothing_is_given_up_by_one_call_of_many(
    apps: Any, rabbitmq_server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call that is written alone, since the next was late, waits until the broker has it."""
    task = apps(task_publish_retry=False)
    task.delay_many(range(2))
    monkeypatch.setattr(transport, "_TIMEOUT", 0.3)
    (broker,) = psutil.Process(rabbitmq_server.child.pid).children()
    at_last = threading.Timer(20, broker.resume)
    at_last.start()
    stop(broker)
    try:
        with pytest.raises(OperationalError, match="has taken nothing"):
            task.delay_many(range(1))
    finally:
        at_last.cancel()
        broker.resume()


def test_bytes_stay_bytes_with_msgpack(apps: Any):
    """A file travels as it is, by the first road and by the short one, alone and among many."""
    shout = apps(task_serializer="msgpack", accept_content=["json", "msgpack"])
    file = bytes(range(256)) * 400
    shout.delay(file)
    shout.delay(file)
    shout.delay_many([file, file])
    messages = taken(shout)

    assert ["application/x-msgpack"] * 4 == [message.content_type for message in messages]
    assert [file] * 4 == [msgpack.unpackb(message.body)[0][0] for message in messages]
    assert max(len(message.body) for message in messages) < len(file) + 200


@pytest.mark.parametrize("limit", [1, 10])
def test_a_generators_first_members_are_there_before_its_last_is_made(
    apps: Any, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    """A group over a generator is sent piece by piece, with one connection, too."""
    # What is kept for a second is sent, too: on a slow machine sooner than a piece is full.
    monkeypatch.setattr("celery_batch.client.publish.buffer.monotonic", lambda: 0.0)
    task = apps(result_backend="cache+memory://", broker_pool_limit=limit)
    group(task.s(0)).apply_async()  # the first of its kind
    found: list[Any] = []

    def members() -> Iterator[Any]:
        """Take what has been sent when some are made."""
        for number in range(1500):
            if number == 1200:
                wait_until(lambda: missing(task, found, 1001), [], what="a piece", timeout=60)
            yield task.s(number)

    group(members()).apply_async()
    wait_until(lambda: missing(task, found, 1501), [], what="all", timeout=60)

    assert [0, *range(1500)] == [json.loads(message.body)[0][0] for message in found]
