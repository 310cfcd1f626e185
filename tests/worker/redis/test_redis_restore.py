"""Messages of dead workers, put back on a real Redis."""

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
from celery_batch.worker.redis.owner import Keys, describe_self
from celery_batch.worker.redis.restore import Restorer
from celery_batch.worker.redis.scripts import script
from tests.services.shared_setup import eventually

PREFIX = "shop-"


@pytest.fixture
def setup(broker: str) -> Iterator[Any]:
    """A channel with a queue, and a client of the same Redis."""
    options = {"global_keyprefix": PREFIX, "visibility_timeout": 5}
    with Connection(broker, transport_options=options) as connection:
        channel = connection.default_channel
        Queue("letters", channel=channel).declare()
        client = Redis(connection_pool=channel.pool)
        yield SimpleNamespace(channel=channel, client=client, url=broker, options=options)


def hold(setup: Any, tag: str, *, flag: str = "0", owner: str = "other", **headers: Any) -> Keys:
    """Record a message as another worker would have."""
    keys = Keys.of(setup.channel).of_owner(owner)
    message = {
        "body": "W10=",
        "headers": {"id": tag, **headers},
        "properties": {"delivery_tag": tag, "priority": 0, "delivery_info": {"exchange": ""}},
    }
    setup.client.register_script(script("record"))(
        keys=[keys.index, keys.unacked, keys.owner_of, keys.held, keys.due],
        args=[owner, tag, json.dumps([message, "", "letters"])],
    )
    setup.client.hset(keys.held, tag, flag)
    return keys


def queued(setup: Any) -> list[dict[str, Any]]:
    """Return the messages in the queue, the next one first."""
    return [json.loads(each) for each in reversed(setup.client.lrange(f"{PREFIX}letters", 0, -1))]


def left(setup: Any) -> set[str]:
    """Return the remaining keys of kombu's and our records."""
    return {key.decode() for key in setup.client.keys(f"{PREFIX}unacked*")}


def test_what_never_ran_is_put_back_unmarked_and_in_order(setup: Any):
    """What has run here before is marked as delivered again, without one more loss."""
    hold(setup, "ran", flag="1", batch_losses=1)
    for tag in ("first", "second"):
        keys = hold(setup, tag)
    restorer = Restorer(setup.channel, setup.client, keys)
    restorer.restore_not_run(["first", "ran", "second"], "other")

    assert [
        {"id": "first"},
        {"id": "ran", "batch_losses": 1, "redelivered": True},
        {"id": "second"},
    ] == [message["headers"] for message in queued(setup)]
    assert not setup.client.exists(keys.unacked, keys.held)


@pytest.mark.parametrize("invalid", ["many", None, -3, True, 1.5], ids=repr)
def test_an_invalid_count_counts_as_none(setup: Any, invalid: object):
    """For any value in the message, the count stays a whole number."""
    keys = hold(setup, "ran", flag="1", batch_losses=invalid)
    Restorer(setup.channel, setup.client, keys).restore_dead("other", alive="")

    assert [1] == [message["headers"]["batch_losses"] for message in queued(setup)]


def test_several_workers_restore_a_message_once(setup: Any):
    """Even if several workers notice a death at the same moment."""
    tags = [f"m{n}" for n in range(250)]
    for tag in tags:
        keys = hold(setup, tag)
    start, restored = Barrier(4), []

    def restore() -> None:
        restorer = Restorer(setup.channel, setup.client, keys)
        start.wait(60)
        restored.append(restorer.restore_dead("other", alive=""))

    threads = [Thread(target=restore) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(60)

    assert 250 == sum(restored)
    assert sorted(tags) == sorted(message["headers"]["id"] for message in queued(setup))
    assert set() == left(setup)


def test_a_worker_that_is_alive_again_keeps_its_messages(setup: Any):
    """The script that moves a message checks the `alive` key in the same step."""
    keys = hold(setup, "mine")
    setup.client.set(keys.alive, "I live")
    restored = Restorer(setup.channel, setup.client, keys).restore_dead("other", alive="")

    assert 0 == restored
    assert [] == queued(setup)
    assert setup.client.hexists(keys.unacked, "mine")


def test_a_message_of_another_worker_stays_with_it(setup: Any):
    """After a visibility timeout it may be another worker's, and no longer the dead one's."""
    keys = hold(setup, "moved")
    hold(setup, "moved", owner="living")
    restored = Restorer(setup.channel, setup.client, keys).restore_dead("other", alive="")

    assert 0 == restored
    assert b"living" == setup.client.hget(keys.owner_of, "moved")
    assert not setup.client.exists(keys.held)


def test_an_unreadable_entry_stays_alone(setup: Any):
    """The other messages are restored; the unreadable one is kept."""
    hold(setup, "broken")
    keys = hold(setup, "good")
    setup.client.hset(keys.unacked, "broken", "[{")
    restored = Restorer(setup.channel, setup.client, keys).restore_dead("other", alive="")

    assert 1 == restored
    assert b"[{" == setup.client.hget(keys.unacked, "broken")
    assert not setup.client.exists(keys.held, keys.due)


def test_the_visibility_timeout_spares_live_workers(setup: Any):
    """Even if a worker was too busy to refresh in time; a stock worker's message is restored."""
    keys = hold(setup, "living", owner="living")
    setup.client.set(keys.alive, "I live")
    hold(setup, "dead")
    hold(setup, "fresh")
    hold(setup, "stock")
    setup.client.hdel(keys.owner_of, "stock")
    setup.client.zadd(keys.index, {"living": 1, "dead": 1, "stock": 1})
    restored = Restorer(setup.channel, setup.client, keys).restore_expired(600, None)

    assert 2 == restored
    assert {"dead", "stock"} == {message["headers"]["id"] for message in queued(setup)}


def test_a_message_goes_to_either_end(setup: Any):
    """To the front when it is redelivered, to the end when it is put there on purpose."""
    for tag in ("front", "middle", "end"):
        keys = hold(setup, tag)
    restorer = Restorer(setup.channel, setup.client, keys)
    for tag, command in (("middle", "RPUSH"), ("front", "RPUSH"), ("end", "LPUSH")):
        restorer.restore([tag], "other", command=command)

    assert ["front", "middle", "end"] == [message["headers"]["id"] for message in queued(setup)]


def test_a_lease_takes_over_from_an_expired_one_and_leaves_nothing_behind(setup: Any):
    """Messages of another machine are restored once their lease expires; no key is left."""
    hold(setup, "orphan", flag="1")
    lease = Lease(setup.channel, "w1@here", 1.0)
    lease.open()
    alive = eventually(lambda: setup.client.get(lease.keys.alive), "the lease, which is short")
    wait_until(lambda: "" if queued(setup) else "not back", [], what="orphan", timeout=60)
    lease.end()

    assert describe_self("w1@here").encode() == alive
    assert [1] == [message["headers"]["batch_losses"] for message in queued(setup)]
    assert set() == left(setup)


def test_a_lease_that_expired_is_in_doubt(setup: Any):
    """Once its `alive` key is gone, others may have taken its messages."""
    lease = Lease(setup.channel, "w1@here", 30.0)
    lease.open()
    setup.client.delete(lease.keys.alive)
    wait_until(lambda: "" if lease.in_doubt else "no doubt", [], what="doubt", timeout=60)
    held = lease.renew()
    lease.end()

    assert set() == held
    assert not lease.in_doubt


def test_after_a_stop_of_all_workers_none_takes_the_others_messages(setup: Any):
    """Whose lease was over itself leaves the others time to renew theirs."""
    lease = Lease(setup.channel, "w1@here", 30.0)
    lease._expiry_counts_from = 0.0  # it has run for long; now its own lease is over as well
    keys = hold(setup, "running", flag="1")
    setup.client.zadd(keys.due, {keys.owner: 1.0})
    lease._renew_in_time()
    lease._search()
    lease.end()

    assert [] == queued(setup)


def test_one_worker_of_a_machine_searches_at_a_time(setup: Any):
    """When it ends, another one does; after the last one no key is left."""
    first, second = (Lease(setup.channel, f"w{n}@here", 30.0) for n in range(2))
    first._search_every = second._search_every = 60_000  # so that no lock is over meanwhile
    second.renew()  # as a worker does that starts, or connects again: it does not search then
    searches = [lease._renew_in_time() for lease in (first, second, first)]
    first.end()
    then = second._renew_in_time()
    second.end()

    assert [True, False, False] == searches
    assert then
    assert set() == left(setup)


def test_all_messages_of_a_worker_are_refreshed(setup: Any):
    """Even if there are many: it is done in parts."""
    tags = {f"m{n}": "0" for n in range(1500)}
    lease = Lease(setup.channel, "w1@here", 1.0)
    setup.client.hset(lease.keys.held, mapping=tags)
    setup.client.zadd(lease.keys.index, dict.fromkeys(tags, 1.0))
    lease.open()
    stale = lambda: setup.client.zcount(lease.keys.index, 1, 1)  # noqa: E731
    wait_until(lambda: f"{stale()} are stale" if stale() else "", [], what="all", timeout=60)
    lease._stopped.set()

    assert 1500 == setup.client.zcard(lease.keys.index)
