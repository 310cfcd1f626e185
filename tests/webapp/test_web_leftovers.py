"""What requests leave behind, in Redis and in the web process: nothing that stays."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

from celery_batch.cli.child import wait_until

#: Redis keys that hold messages on their way; they are empty, and so gone, between requests.
QUEUES = ("standin", "unacked", "unacked_index", "unacked_mutex")


def ask_something(door, number):
    """Send one of every kind of request there is, good and bad."""
    asks = [
        lambda: door.predict("say lamb [MASK]", "say star [MASK]"),
        lambda: door.form("/stream", "say lamb [MASK]"),
        lambda: door.form("/naive", "say lamb [MASK]"),
        lambda: door.predict("say lamb [MASK]", "no mask", "crash now"),
        lambda: door.predict("no mask"),
        lambda: door.predict(""),
        lambda: door.ask("GET", "/readyz"),
        lambda: door.ask("GET", "/nowhere"),
        lambda: door.predict("say lamb [MASK]", "sleep 1.5 [MASK]"),
    ]
    # Many quick requests for each that takes all of its time.
    return asks[number % 8 if number % 40 else 8]()


def settled(redis):
    """Return why requests are still on their way, "" when none is."""
    busy = [key for key in QUEUES if redis.exists(key)]
    replies = redis.keys("*.reply.*")
    waiting = redis.pubsub_channels("celery-task-meta-*")
    return f"{busy} {replies} {waiting}" if busy or replies or waiting else ""


def test_requests_leave_nothing_in_redis_but_expiring_results(own_servers):
    """After hundreds of requests of all kinds, every new key is a result with an expiry."""
    redis = own_servers.client()
    with own_servers.worker(), own_servers.door(ready="/readyz", WEBAPP_TIMEOUT="1") as door:

        def wait_for_calm():
            wait_until(lambda: settled(redis), [door.child], what="calm", timeout=30)

        for number in range(9):
            ask_something(door, number)
        wait_for_calm()
        keys = set(redis.keys("*"))
        channels = set(redis.pubsub_channels())

        with ThreadPoolExecutor(16) as clients:
            replies = list(clients.map(lambda number: ask_something(door, number), range(200)))
        wait_for_calm()
        new = set(redis.keys("*")) - keys

        assert {200, 400, 404, 422, 504} == {reply.status for reply in replies}
        assert len(new) > 100
        assert not [key for key in new if not key.startswith("celery-task-meta-")]
        assert not [key for key in new if not 0 < redis.ttl(key) <= 600]
        assert channels == set(redis.pubsub_channels())


def test_readiness_probes_leave_nothing_in_redis(own_servers):
    """However many ask at once and however many workers reply, no reply queue stays."""
    redis = own_servers.client()
    with (
        own_servers.worker(),
        own_servers.worker(),
        own_servers.worker(),
        own_servers.door(ready="/readyz") as door,
    ):
        wait_until(
            lambda: "" if len(workers_of(door)) == 3 else "starting",
            [door.child],
            what="three workers",
            timeout=60,
        )
        with ThreadPoolExecutor(16) as clients:
            replies = list(clients.map(lambda _: door.ask("GET", "/readyz"), range(600)))
        wait_until(lambda: settled(redis), [door.child], what="calm", timeout=10)

        assert {200} == {reply.status for reply in replies}
        assert not [key for key in redis.keys("*") if "reply" in key and redis.type(key) == "list"]


def workers_of(door):
    """Return the names of the workers that a door knows of."""
    return door.ask("GET", "/readyz").body.get("workers", {}).get("standin.answer", ())


CODE = """
import gc, sys, threading, time
from concurrent.futures import ThreadPoolExecutor
from celery.result import AsyncResult
from web_standin_tasks import answer, answer_one, app
from webapp.contract import Contract
from webapp.settings import Settings

# One connection from the start: the pool's growth is none of the requests' doing.
app.conf.broker_pool_limit = 1
contract = Contract(answer, answer_one, Settings(timeout=0.2))

def ask(_):
    return contract.predict(b'{"inputs": ["a", "b"]}', "application/json")

def give_up(count):
    with ThreadPoolExecutor(32) as clients:
        return [int(answer.status) for answer in clients.map(ask, range(count))]

def held():
    # Results must go by themselves, not when the garbage collector finds them.
    backend = app.backend
    results = sum(isinstance(thing, AsyncResult) for thing in gc.get_objects())
    waited_for = [len(part) for part in (*backend._pending_results, backend._pending_messages)]
    return [*waited_for, len(backend.result_consumer.subscribed_to), results]

def settle():
    deadline = time.monotonic() + 10
    while any(held()) and time.monotonic() < deadline:
        time.sleep(0.05)
    left = held()
    gc.collect()
    return left, len(gc.get_objects()), threading.active_count()

gc.disable()
contract.ready()
give_up(50)
_, objects_before, threads_before = settle()
statuses = give_up(800)
left, objects, threads = settle()
print(sorted(set(statuses)), left, objects - objects_before < 500, threads - threads_before)
"""


def test_requests_given_up_leave_nothing_in_the_web_process(own_servers):
    """Time-outs leave no subscription, no waiting result, no thread and no object behind."""
    environ = own_servers.environ({})
    output = subprocess.check_output([sys.executable, "-c", CODE], env=environ, text=True)

    assert "[503] [0, 0, 0, 0, 0] True 0" == output.strip()
