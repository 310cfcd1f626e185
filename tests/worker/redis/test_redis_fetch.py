"""Fetching messages in bulk on a real Redis, step by step."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from celery.utils.functional import noop
from kombu import Connection, Consumer, Queue
from kombu.asynchronous import Hub
from redis import Redis

from celery_batch.worker.redis.fetch import BulkFetch
from celery_batch.worker.redis.lease import Lease


def test_what_redis_has_sent_at_the_end_goes_back_in_order(broker: str, hub: Hub):
    """Nobody reads a reply that is on its way when a worker is told to stop."""
    limits = SimpleNamespace(usable=lambda *_: [10, 0, 0, 0], guaranteed=lambda *_: [0] * 4)
    scheduler: Any = SimpleNamespace(fetch_limits=limits)
    ordinary: Any = SimpleNamespace(left=lambda: None)
    with Connection(broker) as connection:
        channel = connection.default_channel
        queue = Queue("fetched", channel=channel)
        with connection.Producer() as producer:
            for n in range(3):
                producer.publish({"n": n}, routing_key="fetched", declare=[queue])
        client = Redis(connection_pool=channel.pool)
        sent = client.lrange("fetched", 0, -1)
        lease = Lease(channel, "node", 5.0)
        lease.open()
        validator: Any = None  # nothing is delivered
        fetch = BulkFetch(channel, hub, lease, scheduler, validator, ordinary)
        with Consumer(channel, [queue], callbacks=[noop]):
            connection.transport.register_with_event_loop(connection.connection, hub)
            for on_tick in list(hub.on_tick):  # a pass of the loop begins: kombu asks Redis
                on_tick()
            fetch.end()
            fetch.end()  # there is nothing more to read
            queued, held = client.lrange("fetched", 0, -1), client.hgetall(lease.keys.held)
        lease.end()

    assert 3 == len(sent)
    assert (sent, {}) == (queued, held)
