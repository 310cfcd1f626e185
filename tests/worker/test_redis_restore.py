"""Messages that somebody held, given back on a real Redis."""

from __future__ import annotations

import json
from collections.abc import Iterator
from threading import Barrier, Thread
from types import SimpleNamespace
from typing import Any

import pytest
from kombu import Connection, Queue
from redis import Redis

from celery_batch.processes.managed_process import wait_until
from celery_batch.worker.redis.lease import Lease
from celery_batch.worker.redis.owner import Keys, describe_self, machine
from celery_batch.worker.redis.restore import Restorer
from celery_batch.worker.redis.scripts import script

PREFIX = "shop-"


@pytest.fixture
def place(broker: str) -> Iterator[Any]:
    """A channel with a queue, and a client of the same Redis."""
    options = {"global_keyprefix": PREFIX, "visibility_timeout": 5}
    with Connection(broker, transport_options=options) as connection:
        channel = connection.default_channel
        Queue("letters", channel=channel).declare()
        client = Redis(connection_pool=channel.pool)
        yield SimpleNamespace(channel=channel, client=client, url=broker, options=options)


def hold(place: Any, tag: str, *, flag: str = "0", owner: str = "other", **headers: Any) -> Keys:
    """Write a message down as another worker would have."""
    keys = Keys.of(place.channel, owner)
    message = {
        "body": "W10=",
        "headers": {"id": tag, **headers},
        "properties": {"delivery_tag": tag, "priority": 0, "delivery_info": {"exchange": ""}},
    }
    place.client.register_script(script("record"))(
        keys=[keys.index, keys.unacked, keys.owner_of, keys.held, keys.owners],
        args=[owner, tag, json.dumps([message, "", "letters"])],
    )
    place.client.hset(keys.held, tag, flag)
    return keys


def queued(place: Any) -> list[dict[str, Any]]:
    """Return the messages in the queue, the next one first."""
    return [json.loads(each) for each in reversed(place.client.lrange(f"{PREFIX}letters", 0, -1))]


def left(place: Any) -> set[str]:
    """Return the keys that are left of the books."""
    return {key.decode() for key in place.client.keys(f"{PREFIX}unacked*")}


def test_a_rescue_marks_and_counts(place: Any):
    """What ran counts one loss more, what waited none; both say that they come again."""
    hold(place, "ran", flag="1", batch_losses=1)
    keys = hold(place, "waited")
    restorer = Restorer(place.channel, place.client, keys)
    given = restorer.restore_dead("other", alive="")
    found = {message["headers"]["id"]: message for message in queued(place)}

    assert 2 == given
    assert {"id": "ran", "batch_losses": 2, "redelivered": True} == found["ran"]["headers"]
    assert {"id": "waited", "redelivered": True} == found["waited"]["headers"]
    assert found["ran"]["properties"]["delivery_info"]["redelivered"]
    assert set() == left(place)


@pytest.mark.parametrize("forged", ["many", None, -3, True, 1.5], ids=repr)
def test_a_forged_count_counts_as_none(place: Any, forged: object):
    """Whatever a message claims, the count stays a whole number."""
    keys = hold(place, "ran", flag="1", batch_losses=forged)
    Restorer(place.channel, place.client, keys).restore_dead("other", alive="")

    assert [1] == [message["headers"]["batch_losses"] for message in queued(place)]


def test_two_rescuers_give_a_message_back_once(place: Any):
    """However many workers notice a death at the same moment."""
    tags = [f"m{n}" for n in range(250)]
    for tag in tags:
        keys = hold(place, tag)
    start, given = Barrier(4), []

    def rescue() -> None:
        restorer = Restorer(place.channel, place.client, keys)
        start.wait(10)
        given.append(restorer.restore_dead("other", alive=""))

    rescuers = [Thread(target=rescue) for _ in range(4)]
    for each in rescuers:
        each.start()
    for each in rescuers:
        each.join(30)

    assert 250 == sum(given)
    assert sorted(tags) == sorted(message["headers"]["id"] for message in queued(place))
    assert set() == left(place)


def test_who_came_back_to_life_keeps_its_messages(place: Any):
    """The sign of life is looked at in the very step that moves a message."""
    keys = hold(place, "mine")
    place.client.set(keys.alive, "I live")
    given = Restorer(place.channel, place.client, keys).restore_dead("other", alive="")

    assert 0 == given
    assert [] == queued(place)
    assert place.client.hexists(keys.unacked, "mine")


def test_a_message_that_has_found_another_worker_is_left_to_it(place: Any):
    """Given back by a visibility timeout and read again, it is no longer the dead one's."""
    keys = hold(place, "moved")
    hold(place, "moved", owner="living")
    given = Restorer(place.channel, place.client, keys).restore_dead("other", alive="")

    assert 0 == given
    assert b"living" == place.client.hget(keys.owner_of, "moved")
    assert not place.client.exists(keys.held)


def test_an_entry_that_cannot_be_read_stays_and_spoils_nothing(place: Any):
    """The others come back; what is unreadable is kept for a person to see."""
    hold(place, "broken")
    keys = hold(place, "good")
    place.client.hset(keys.unacked, "broken", "[{")
    given = Restorer(place.channel, place.client, keys).restore_dead("other", alive="")

    assert 1 == given
    assert b"[{" == place.client.hget(keys.unacked, "broken")
    assert not place.client.exists(keys.held, keys.owners)


def test_a_sweep_spares_what_a_living_worker_holds(place: Any):
    """Also where that was too busy to refresh it in time; a stock worker's goes back."""
    keys = hold(place, "living", owner="living")
    place.client.set(keys.alive, "I live")
    hold(place, "dead")
    hold(place, "fresh")
    hold(place, "stock")
    place.client.hdel(keys.owner_of, "stock")
    place.client.zadd(keys.index, {"living": 1, "dead": 1, "stock": 1})
    given = Restorer(place.channel, place.client, keys).restore_expired(5, None)

    assert 2 == given
    assert {"dead", "stock"} == {message["headers"]["id"] for message in queued(place)}


def test_a_message_goes_to_either_end(place: Any):
    """To the front when it comes back, to the end when it is put back on purpose."""
    for tag in ("front", "middle", "end"):
        keys = hold(place, tag)
    restorer = Restorer(place.channel, place.client, keys)
    for tag, command in (("middle", "RPUSH"), ("front", "RPUSH"), ("end", "LPUSH")):
        restorer.restore({tag: "0"}, "other", command=command)

    assert ["front", "middle", "end"] == [message["headers"]["id"] for message in queued(place)]


def test_a_lease_takes_over_from_one_that_lapsed_and_leaves_nothing_behind(place: Any):
    """Orphans of another machine come back once their lease is over; the end is tidy."""
    hold(place, "orphan", flag="1")
    lease = Lease(place.channel, "w1@here", 1.0, on_doubt=lambda: None)
    lease.open()
    alive = place.client.get(lease.keys.alive)
    wait_until(lambda: "" if queued(place) else "not back", [], what="orphan", timeout=60)
    lease.end()

    assert describe_self("w1@here").encode() == alive
    assert [1] == [message["headers"]["batch_losses"] for message in queued(place)]
    assert set() == left(place)


def test_a_lease_that_was_taken_for_lapsed_says_so(place: Any):
    """When its sign of life is gone, others may have acted on that."""
    doubts: list[bool] = []
    lease = Lease(place.channel, "w1@here", 2.0, on_doubt=lambda: doubts.append(True))
    lease.open()
    place.client.delete(lease.keys.alive)
    wait_until(lambda: "" if doubts else "no doubt", [], what="doubt", timeout=60)
    held = lease.renew()
    lease.end()

    assert set() == held
    assert not lease.in_doubt


#: How a worker of an earlier version asks whom to look after: those whose sign of life is
#: gone, and those of its machine.
EARLIER = """
local found = {}
for _, owner in ipairs(redis.call('SMEMBERS', KEYS[1])) do
  local alive = redis.call('GET', ARGV[1] .. owner)
  if not alive or (ARGV[2] ~= '' and string.find(alive, ARGV[2], 1, true)) then
    found[#found + 1] = {owner, alive or ''}
  end
end
return found
"""


@pytest.mark.parametrize("ends", ["on this machine", "elsewhere"])
def test_worker_of_an_earlier_version_is_seen_to(place: Any, ends: str):
    """During an upgrade: it says nowhere when it is due, lives for a while, and is killed."""
    keys = hold(place, "orphan", owner="earlier")
    facts = json.loads(describe_self("w0@here"))
    elsewhere = json.dumps({**facts, "machine": "elsewhere"}, sort_keys=True)
    place.client.set(keys.alive, elsewhere if ends == "elsewhere" else describe_self("w0@here"))
    lease = Lease(place.channel, "w1@here", 1.0, on_doubt=lambda: None)
    lease.open()
    noticed = lambda: place.client.zscore(keys.due, "earlier")  # noqa: E731
    wait_until(lambda: "" if noticed() else "unknown", [], what="look", timeout=60)
    waiting = queued(place)
    if ends == "elsewhere":
        place.client.delete(keys.alive)  # as when it expires
    else:
        dead = json.dumps({**facts, "started": "1"}, sort_keys=True)  # its number is another's
        place.client.set(keys.alive, dead)
    wait_until(lambda: "" if queued(place) else "not back", [], what="orphan", timeout=60)
    lease.end()

    assert [] == waiting
    assert ["orphan"] == [message["headers"]["id"] for message in queued(place)]
    assert set() == left(place)


def test_worker_of_an_earlier_version_sees_ours(place: Any):
    """During an upgrade: should ours die, it finds and rescues what ours held."""
    lease = Lease(place.channel, "w1@here", 15.0, on_doubt=lambda: None)
    lease.open()
    keys = lease.keys
    look = place.client.register_script(EARLIER)
    found = look(keys=[keys.owners], args=[keys.alive_prefix, machine()])
    lease.end()

    assert [[keys.owner.encode(), describe_self("w1@here").encode()]] == found


def test_one_worker_of_a_machine_searches(place: Any):
    """When it ends, another one does; with the last of them no trace of that is left."""
    first, second = (
        Lease(place.channel, f"w{n}@here", 1.0, on_doubt=lambda: None) for n in range(2)
    )
    first.open()
    second.open()
    sweeper = lambda: place.client.get(first.keys.sweeper).decode().split()[0]  # noqa: E731
    before = sweeper()
    first.end()
    handed_over = lambda: place.client.exists(second.keys.sweeper) and sweeper()  # noqa: E731
    wait_until(
        lambda: "" if handed_over() == second.keys.owner else "not yet", [], what="it", timeout=60
    )
    second.end()

    assert first.keys.owner == before
    assert set() == left(place)


def test_all_that_a_worker_holds_is_refreshed(place: Any):
    """However much that is: it is done in pieces."""
    tags = {f"m{n}": "0" for n in range(1500)}
    lease = Lease(place.channel, "w1@here", 1.0, on_doubt=lambda: None)
    place.client.hset(lease.keys.held, mapping=tags)
    place.client.zadd(lease.keys.index, dict.fromkeys(tags, 1.0))
    lease.open()
    stale = lambda: place.client.zcount(lease.keys.index, 1, 1)  # noqa: E731
    wait_until(lambda: f"{stale()} are stale" if stale() else "", [], what="all", timeout=60)
    lease._stopped.set()

    assert 1500 == place.client.zcard(lease.keys.index)
