"""Whatever is written into a queue, it is refused or fails alone, and the worker goes on."""

from __future__ import annotations

import asyncio
import json
import os
import pickle
import re
import struct
from collections.abc import Callable
from functools import cache
from typing import Any

import amqp
import pytest
import redis
from kombu import Connection
from kombu.entity import Queue

from celery_batch import ConfigurationError, MessageRefused, MessageTooLarge
from celery_batch.processes.managed_process import wait_until
from tests.conftest import Setup
from tests.services.hostile import HOSTILE, RAW, encoded, post, valid
from tests.services.shared_setup import eventually

#: Characters of what the worker may say about one refused message.
LONGEST_LINE = 900


def client_of(setup: Setup) -> redis.Redis:
    """Return a client of the Redis that is the broker."""
    return setup.memory()


#: In the names of those that take long to make and to read.
LARGE = re.compile("million|bomb|over the limit")


@cache
def made_for_redis(*, with_large: bool) -> list[bytes]:
    """Return hostile messages as they lie in Redis."""
    made = {name: lambda make=make: encoded(make()) for name, make in HOSTILE.items()} | RAW
    return [make() for name, make in made.items() if with_large or not LARGE.search(name)]


def refusals(log: str) -> list[str]:
    """Return the worker's lines about refused messages."""
    return [line for line in log.splitlines() if "Refused a message" in line]


def drop(setup: Setup, *messages: bytes) -> None:
    """Put messages into the worker's queue in Redis, the first to be read first."""
    with client_of(setup) as client:
        client.lpush("celery", *messages)


def assert_unharmed(setup: Setup, worker, pid: int) -> None:
    """Check that the worker is the one it was, holds nothing, and said nothing forged."""
    assert 42 == setup.double.delay(21).get(timeout=30)
    assert pid == worker.pid
    assert not re.search(r"^\[2026-01-01 CRITICAL\]", worker.log, re.MULTILINE)
    assert "RestartFreqExceeded" not in worker.log
    assert "Connection to broker lost" not in worker.log
    assert all(len(line) < LONGEST_LINE for line in refusals(worker.log))


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("pool", "bulk"),
    [
        pytest.param("prefork", True, id="prefork-bulk"),
        pytest.param("solo", False, id="solo-one by one"),
        pytest.param(
            "prefork",
            False,
            id="prefork-one by one",
            marks=pytest.mark.thorough("hostile messages read one by one and on the solo pool"),
        ),
        pytest.param(
            "solo",
            True,
            id="solo-bulk",
            marks=pytest.mark.thorough("hostile messages read one by one and on the solo pool"),
        ),
    ],
)
def test_hostile_messages_harm_nobody_on_redis(setup: Setup, pool: str, bulk: bool):  # noqa: FBT001
    """Between any two of them a valid task is answered, by the same worker as before."""
    with_large = pool == "prefork" or "THOROUGH" in os.environ
    worker = setup.worker("-c", "1", "-P", pool, conf={"batch_bulk": bulk})
    pid = worker.pid
    results = []
    for message in made_for_redis(with_large=with_large):
        drop(setup, message)
        results.append(setup.double.delay(len(results)))

    assert [2 * n for n in range(len(results))] == [each.get(timeout=90) for each in results]
    assert_unharmed(setup, worker, pid)
    with client_of(setup) as client:
        what = "nothing unacknowledged"
        wait_until(lambda: str(client.hlen("unacked") or ""), [worker.child], what=what, timeout=60)
    assert len(refusals(worker.log)) > len(RAW)


def _made_for_rabbitmq() -> list[Callable[[], dict[str, Any]]]:
    """Return what makes hostile messages: bodies are read alike on both brokers, large ones too."""
    with_large = "THOROUGH" in os.environ
    return [make for name, make in HOSTILE.items() if with_large or not LARGE.search(name)]


@pytest.mark.timeout(300)
def test_hostile_messages_harm_nobody_on_rabbitmq(rabbit_setup: Setup):
    """The same with what can be written down in AMQP at all."""
    worker = rabbit_setup.worker("-c", "1")
    pid = worker.pid
    results, posted = [], 0
    with Connection(rabbit_setup.url) as connection:
        channel = connection.default_channel
        for make in _made_for_rabbitmq():
            posted += post(channel, make())
            results.append(rabbit_setup.double.delay(len(results)))

    assert [2 * n for n in range(len(results))] == [each.get(timeout=90) for each in results]
    assert_unharmed(rabbit_setup, worker, pid)
    assert posted > 200
    assert refusals(worker.log)


def table(depth: int) -> bytes:
    """Return an AMQP table in a table, that many deep."""
    inner = struct.pack(">I", 0)
    for _ in range(depth):
        content = b"\x01kF" + inner
        inner = struct.pack(">I", len(content)) + content
    return inner


@pytest.mark.parametrize(
    "properties",
    [
        struct.pack(">H", 0x2000) + table(3000),
        struct.pack(">H", 0x8000) + b"\x02\xff\xfe",
        struct.pack(">H", 0x0400) + b"\x03\xed\xa0\x80",
        struct.pack(">H", 0x2000) + struct.pack(">I", 11) + b"\x01kT" + b"\xff" * 8,
    ],
    ids=["nested table", "content type not UTF-8", "correlation id not UTF-8", "date beyond time"],
)
def test_unreadable_properties_are_refused(rabbit_setup: Setup, properties: bytes):
    """What RabbitMQ lets through and py-amqp cannot read stops no worker and does not return."""
    worker = rabbit_setup.worker("-c", "1")
    pid = worker.pid
    message = amqp.Message(b"x")
    message._serialize_properties = lambda: properties
    with Connection(rabbit_setup.url) as connection:
        connection.default_channel.basic_publish(message, exchange="", routing_key="celery")

    assert_unharmed(rabbit_setup, worker, pid)
    assert 1 == worker.log.count("Refused a message") + worker.log.count("deleted unknown message")


def test_worker_survives_a_flood_of_garbage(setup: Setup):
    """A thousand unreadable messages in front delay a valid one, and that is all."""
    drop(setup, *(bytes([n % 256]) * 50 for n in range(1000)))
    result = setup.double.delay(4)
    worker = setup.worker("-c", "1")

    assert 8 == result.get(timeout=60)
    assert 1000 == len(refusals(worker.log))


def test_garbage_for_remote_control_is_refused(setup: Setup):
    """What is published where workers listen for commands stops none of them."""
    worker = setup.worker("-c", "1")
    pid = worker.pid
    with client_of(setup) as client:
        for garbage in (b"{}", b"7", b"no JSON", b'{"properties": {}}', b'{"body": 1}'):
            client.publish("/0.celery.pidbox", garbage)
    for odd in ([["a"]], {"a": 1}, 7, None, [None]):
        setup.double.app.control.revoke(odd, batch_quietly=odd or True)

    assert_unharmed(setup, worker, pid)
    assert worker.status()


def test_caller_of_a_refused_message_hears_why(each_setup: Setup):
    """Where the message says who waits, the caller gets an error and not silence."""
    worker = each_setup.worker("-c", "1", conf={"batch_max_message_size": 20_000})
    too_large = each_setup.double.delay("x" * 20_000)
    wrong = each_setup.double.apply_async((1,), headers={"batch_losses": "many"})

    said = r"^shop\.double: .* more than batch_max_message_size allows \(20000\): raise it"
    with pytest.raises(MessageTooLarge, match=said):
        too_large.get(timeout=30)
    with pytest.raises(MessageRefused, match="batch_losses cannot be 'many'") as refused:
        wrong.get(timeout=30)

    assert MessageRefused is refused.type
    assert f"its task is 'shop.double'; its id is '{too_large.id}'; it begins" in worker.log


@pytest.mark.parametrize("properties", [{"priority": "high"}, {"reply_to": 7}], ids=repr)
def test_caller_of_wrong_properties_hears_why(setup: Setup, properties: dict[str, Any]):
    """What is wrong may be an address, too: the id is enough to store a failure."""
    setup.worker("-c", "1")
    wrong = setup.app.send_task("shop.double", (1,), **properties)

    with pytest.raises(MessageRefused, match=f"property {next(iter(properties))} cannot be "):
        wrong.get(timeout=30)


@pytest.mark.parametrize("priority", ["high", 1.5, -1, 256, True, False])
def test_a_wrong_priority_is_refused_at_the_call(each_setup: Setup, priority: Any):
    """By task and value, whatever the broker and the path."""
    task = each_setup.double
    words = f"shop.double: priority: must be a whole number from 0 to 255, got {priority!r}"
    for send in (
        lambda: task.apply_async((1,), priority=priority),
        lambda: task.apply_async((1,), priority=priority, countdown=1),
        lambda: task.apply_many([((1,), None)], priority=priority),
        lambda: asyncio.run(task.aapply_async((1,), priority=priority)),
    ):
        with pytest.raises(ConfigurationError, match=re.escape(words)):
            send()


def test_a_higher_priority_of_an_older_caller(setup: Setup):
    """On Redis such calls run as before, with their retries and what follows them."""
    setup.worker("-c", "1")
    following = setup.double.s().set(priority=300)
    sent = setup.app.send_task("shop.again", ("one",), priority=300, chain=[following])

    assert "one" == sent.get(timeout=30)
    eventually(lambda: setup.recall("double"), "the call that follows")


def test_compressed_message_is_measured_as_it_expands(each_setup: Setup):
    """What is small on its way and large in memory is refused; what is small in both is not."""
    each_setup.worker("-c", "1", conf={"batch_max_message_size": 20_000})
    small = each_setup.double.apply_async((["x"] * 100,), compression="zlib")
    large = each_setup.double.apply_async((["x"] * 10_000,), compression="zlib")

    assert ["x"] * 200 == small.get(timeout=30)
    with pytest.raises(MessageTooLarge, match="larger than 20000 bytes when decompressed"):
        large.get(timeout=30)


def test_no_limit_takes_any_size(setup: Setup):
    """With the limit off, a message beyond the default is served."""
    setup.worker("-c", "1", conf={"batch_max_message_size": None})

    assert (17 << 20) * 2 == len(setup.double.delay("x" * (17 << 20)).get(timeout=60))


def test_dead_letters_keep_what_could_not_be_read(setup: Setup):
    """Where a dead-letter queue is named, the bytes of an unreadable message are kept there."""
    worker = setup.worker("-c", "1", conf={"batch_dead_letter_queue": "dead"})
    unreadable = b'\x00{"no": message'
    drop(setup, unreadable, *[encoded(valid(timelimit="soon"))] * 2)
    setup.double.delay(1).get(timeout=30)
    kept = take(setup, "dead", 3)

    assert unreadable == kept[0].payload
    assert "JSONDecodeError" in kept[0].headers["batch_reason"]
    assert valid()["body"] == kept[1].payload
    assert "timelimit cannot be 'soon'" == kept[1].headers["batch_reason"]
    assert "shop.double" == kept[1].headers["task"]
    assert 3 == len(refusals(worker.log))


def test_dead_letters_are_kept_on_rabbitmq(rabbit_setup: Setup):
    """On RabbitMQ the body of a refused message is kept."""
    rabbit_setup.worker("-c", "1", conf={"batch_dead_letter_queue": "dead"})
    with Connection(rabbit_setup.url) as connection:
        post(connection.default_channel, valid(timelimit="soon"))
    (kept,) = take(rabbit_setup, "dead", 1)

    assert valid()["body"] == kept.payload
    assert "timelimit cannot be 'soon'" == kept.headers["batch_reason"]


def take(setup: Setup, name: str, count: int) -> list:
    """Take messages from a queue as an operator would."""
    with setup.app.connection_for_read() as connection:
        inbox = connection.SimpleQueue(Queue(name))
        found = [inbox.get(timeout=60) for _ in range(count)]
        for message in found:
            message.ack()
        inbox.close()
    return found


def test_ordinary_tasks_keep_celery_s_behaviour(setup: Setup):
    """A bad message of an ordinary task is Celery's to report; only a crash is prevented."""
    worker = setup.worker("-c", "1")
    pid = worker.pid
    unreadable, nameless = valid("shop.plain"), valid("shop.plain")
    unreadable["body"] = b"[[1"
    del nameless["headers"]["id"]
    drop(setup, encoded(unreadable), encoded(nameless), encoded(valid("shop.plain", retries="3")))

    assert 2 == setup.plain.delay(1).get(timeout=30)
    assert_unharmed(setup, worker, pid)
    assert "Can't decode message body" in worker.log
    assert 1 == len(refusals(worker.log))


class Trap:
    """Something that writes a file when it is unpickled."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return open, (self.path, "w")


@pytest.mark.parametrize("task", ["shop.double", "shop.plain"])
def test_pickle_is_refused_unless_asked_for(each_setup: Setup, task: str, tmp_path):
    """A pickled message is not opened by a worker that was not told to accept pickle."""
    each_setup.worker("-c", "1")
    trap = tmp_path / "sprung"
    body = pickle.dumps(((Trap(trap),), {}, {}))
    for content_type in ("application/x-python-serialize", "pickle", "application/data"):
        message = {**valid(task), "body": body, "content-type": content_type}
        message["content-encoding"] = "binary"
        if each_setup.url.startswith("amqp"):
            with Connection(each_setup.url) as connection:
                post(connection.default_channel, message)
        else:
            drop(each_setup, encoded(message))

    assert 6 == each_setup.double.delay(3).get(timeout=30)
    assert not trap.exists()


def test_forged_id_cannot_change_a_result_that_is_stored(setup: Setup):
    """A refused message under the id of a finished task leaves its result alone."""
    setup.worker("-c", "1")
    result = setup.double.delay(5)
    result.get(timeout=30)
    drop(setup, encoded(valid(id=result.id, timelimit="soon")))
    setup.double.delay(6).get(timeout=30)
    with client_of(setup) as client:
        stored = json.loads(client.get(f"celery-task-meta-{result.id}"))

    assert ("SUCCESS", 10) == (stored["status"], stored["result"])
