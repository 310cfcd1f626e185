"""The script that fetches messages, on a real Redis."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from kombu import Connection
from redis import Redis

from celery_batch.worker.redis.scripts import script

RECORDS = ["index", "unacked", "owner of", "held", "due", "alive"]

PROPERTIES = {
    "correlation_id": "a",
    "delivery_info": {"exchange": "shop", "routing_key": "letters.a/b"},
    "priority": 0,
    "delivery_tag": "tag",
}
ELSE = {"delivery_tag": "other", "delivery_info": {"exchange": "x", "routing_key": "y"}}


@pytest.fixture
def client(broker: str) -> Iterator[Redis]:
    """A client of an empty Redis."""
    with Connection(broker) as connection:
        yield Redis(connection_pool=connection.default_channel.pool)


def message(*, headers: Any = None, **properties: Any) -> str:
    """Return a message as kombu writes it."""
    parts = {"body": "W10=", "headers": headers or {"id": "a"}}
    return json.dumps({**parts, "properties": {**PROPERTIES, **properties}})


def fetch(client: Redis, *messages: str, most: int = 10) -> list[str]:
    """Fetch messages, and return them."""
    if messages:
        client.lpush("letters", *messages)
    found = client.eval(script("fetch"), 7, *RECORDS, "letters", most, "me", "alive", 10_000)
    numbers, handed_out = iter(map(int, found[0].split())), []
    texts = b"".join(found[1]).decode()
    for _, in_tag, in_message in zip(numbers, numbers, numbers, strict=True):
        handed_out.append(texts[in_tag : in_tag + in_message])
        texts = texts[in_tag + in_message :]
    return handed_out


MESSAGES = {
    "kombu's": message(),
    "no exchange": message(delivery_info={"exchange": "", "routing_key": "letters"}),
    "in another order": json.dumps({"properties": PROPERTIES, "body": ""}),
    "dense": json.dumps(json.loads(message()), separators=(",", ":")),
    "quotes": message(delivery_info={"exchange": '"', "routing_key": 'a", "b\\'}),
    "more of a place": message(delivery_info={"routing_key": "k", "exchange": "e", "more": {}}),
    "no place": message(delivery_info=None),
    "braces": message(correlation_id="{}"),
    "another's tag within": message(headers={"properties": ELSE}),
    "another's tag in a text": message(headers={"id": ', "properties": ' + json.dumps(ELSE)}),
    "another's tag in a name": message(headers={', "properties": ' + json.dumps(ELSE): 1}),
    "a text that ends so": message(correlation_id=', "delivery_tag": "x"}}'),
    "twice": message()[:-1] + ', "properties": ' + json.dumps({**PROPERTIES, "x": 1}) + "}",
    "snow": message(delivery_info={"exchange": "\N{SNOWMAN}", "routing_key": "k"}),
}


@pytest.mark.parametrize("text", MESSAGES.values(), ids=MESSAGES)
def test_messages_are_recorded_as_kombu_does(client: Redis, text: str):
    """Of any message the script finds its own tag and routing, and stores it unchanged."""
    properties = json.loads(text)["properties"]
    place = properties["delivery_info"] or {}
    entry = [json.loads(text), place.get("exchange", ""), place.get("routing_key", "")]

    assert [text] == fetch(client, text)
    assert {b"tag": entry} == {
        tag: json.loads(each) for tag, each in client.hgetall("unacked").items()
    }
    assert {b"tag": b"me"} == client.hgetall("owner of")
    assert {b"tag": b"0"} == client.hgetall("held")
    assert [b"tag"] == client.zrange("index", 0, -1)


TAGLESS = {
    "text": "no JSON",
    "list": "[]",
    "empty": "{}",
    "no tag": message(delivery_tag=""),
    "line": message(delivery_tag="\n"),
    "number": message(delivery_tag=7),
}


@pytest.mark.parametrize("text", TAGLESS.values(), ids=TAGLESS)
def test_messages_without_a_tag_are_fetched_too(client: Redis, text: str):
    """The worker refuses them, and the script records nothing."""
    assert [text] == fetch(client, text)
    assert {} == client.hgetall("unacked")


def test_rows_of_chunks_are_counted(client: Redis):
    """A chunk counts as all its rows."""
    chunks = [message(headers={"batch_rows": 4}, delivery_tag=f"{n}") for n in range(5)]

    assert chunks[:3] == fetch(client, *chunks, most=10)
    assert 2 == client.llen("letters")


def test_large_messages_are_fetched_a_few_at_a_time(client: Redis):
    """One fetch has a limit in bytes, too; the rest stays in the queue."""
    large = [
        message(correlation_id="x" * 1_500_000, delivery_tag=f"{number}") for number in range(6)
    ]

    assert large[:3] == fetch(client, *large)
    assert 3 == client.llen("letters") == client.hlen("unacked")
    assert large[3:] == fetch(client)
    assert 6 == client.hlen("unacked")


def test_places_are_reserved_for_the_less_urgent(client: Redis):
    """The first lists have a limit each; the following ones fill the rest."""
    for name in ("urgent", "bulk"):
        client.lpush(name, *(message(delivery_tag=f"{name}{n}") for n in range(5)))
    chunks = [message(headers={"batch_rows": 4}, delivery_tag=f"chunk{n}") for n in range(2)]
    client.lpush("chunks", *chunks)
    lists = ["chunks", "bulk", "none", "urgent", "bulk"]
    found = client.eval(
        script("fetch"), 6 + len(lists), *RECORDS, *lists, 10, "me", "alive", 10_000, "3 2 2"
    )

    assert [b"1 3 0 1 3", 1, b""] == found[2:]  # left in each list, for so many workers
    assert 7 == client.hlen("unacked")
    assert [1, 3, 1] == [client.llen(name) for name in ("chunks", "bulk", "urgent")]


def of_tasks(name: str, *tasks: str) -> list[str]:
    """Return messages of these tasks for a list, in the order in which they are read."""
    return [
        message(headers={"lang": "py", "task": task, "id": "a"}, delivery_tag=f"{name}{n}")
        for n, task in enumerate(tasks)
    ]


def fetch_limited(client: Redis, *lists: str, ordinary: int | str) -> tuple[list[str], str]:
    """Fetch with a limit to ordinary tasks; return the tags, and the numbers of blocked lists."""
    found = client.eval(
        script("fetch"), 6 + len(lists), *RECORDS, *lists,
        10, "me", "alive", 10_000, "", ordinary, "\nbatch\nsecond\n",
    )  # fmt: skip
    numbers, tags = iter(map(int, found[0].split())), []
    texts = b"".join(found[1]).decode()
    for _, in_tag, in_message in zip(numbers, numbers, numbers, strict=True):
        tags.append(texts[:in_tag])
        texts = texts[in_tag + in_message :]
    return tags, found[4].decode()


def test_ordinary_tasks_are_left_beyond_their_limit(client: Redis):
    """A list is read up to the first one too many, and the others as far as they can be."""
    client.lpush("a", *of_tasks("a", "plain", "batch", "plain", "plain", "batch"))
    client.lpush("b", *of_tasks("b", "batch", "second", "bat", "batch"))

    assert (["a0", "a1", "a2", "b0", "b1"], "1 2") == fetch_limited(client, "a", "b", ordinary=2)
    assert [2, 2] == [client.llen(name) for name in "ab"]
    assert ([], "1 2") == fetch_limited(client, "a", "b", ordinary=0)
    assert (["a3", "a4"], "2") == fetch_limited(client, "a", "b", "none", ordinary=1)
    assert (["b2", "b3"], "") == fetch_limited(client, "a", "b", ordinary="")
    assert 9 == client.hlen("unacked")


NAMELESS = {
    "text": "no JSON",
    "first protocol": message(),
    "not Latin": of_tasks("a", "pl\N{LATIN SMALL LETTER A WITH DIAERESIS}in")[0],
    "no name": message(headers={"task": None}),
    "in a text": message(correlation_id=', "task": "plain"'),
}


@pytest.mark.parametrize("text", NAMELESS.values(), ids=NAMELESS)
def test_what_names_no_task_is_not_limited(client: Redis, text: str):
    """It is read as if it were a batch task's."""
    client.lpush("a", text)

    assert "" == fetch_limited(client, "a", ordinary=0)[1]
    assert 0 == client.llen("a")


def test_dense_json_is_limited(client: Redis):
    """Messages of other libraries need no spaces."""
    (text,) = of_tasks("a", "plain")
    client.lpush("a", json.dumps(json.loads(text), separators=(",", ":")))

    assert ([], "1") == fetch_limited(client, "a", ordinary=0)


def test_blocked_list_keeps_its_expiry(client: Redis):
    """What is not read is not touched."""
    client.lpush("a", *of_tasks("a", "plain"))
    client.pexpire("a", 60_000)

    assert ([], "1") == fetch_limited(client, "a", ordinary=0)
    assert client.pttl("a") > 0
