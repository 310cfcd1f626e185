"""What requests leave behind, in Redis and in the web process: nothing that stays."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

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
        lambda: door.post("/tasks", {"input": "say lamb [MASK]"}),
        lambda: door.form("/naive", "say lamb [MASK]", "sleep 1.5 [MASK]"),
    ]
    # Many quick requests for each that takes all of its time.
    return asks[number % 9 if number % 40 else 9]()


def settled(redis):
    """Return why requests are still on their way, "" when none is."""
    busy = [key for key in QUEUES if redis.exists(key)]
    replies = redis.keys("*.reply.*")
    waiting = redis.pubsub_channels("celery-task-meta-*")
    return f"{busy} {replies} {waiting}" if busy or replies or waiting else ""


@pytest.mark.parametrize("kind", ["flask", "flask-parking", "fastapi"])
def test_requests_leave_nothing_in_redis_but_expiring_results(own_servers, kind):
    """After hundreds of requests of all kinds, every new key is a result with an expiry."""
    redis = own_servers.client()
    with own_servers.worker(), own_servers.door(kind, ready="/readyz", WEBAPP_TIMEOUT="1") as door:

        def wait_for_calm():
            wait_until(lambda: settled(redis), [door.child], what="calm", timeout=30)

        for number in range(41):
            ask_something(door, number)
        wait_for_calm()
        keys = set(redis.keys("*"))
        channels = set(redis.pubsub_channels())

        with ThreadPoolExecutor(16) as clients:
            replies = list(clients.map(lambda number: ask_something(door, number), range(200)))
        wait_for_calm()
        new = set(redis.keys("*")) - keys

        assert {200, 202, 400, 404, 422, 504} == {reply.status for reply in replies}
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
        wait_until(lambda: settled(redis), [door.child], what="calm", timeout=60)

        assert {200} == {reply.status for reply in replies}
        assert not [key for key in redis.keys("*") if "reply" in key and redis.type(key) == "list"]


def workers_of(door):
    """Return the names of the workers that a door knows of."""
    return door.ask("GET", "/readyz").body.get("workers", {}).get("standin.answer", ())


CODE = """
import asyncio, gc, json, threading, time
from concurrent.futures import ThreadPoolExecutor
from celery.result import AsyncResult
from celery_batch.client.inbox import inbox_of
from web_standin_tasks import answer, answer_one, app
from webapp.contract import Contract
from webapp.messages import Ask
from webapp.settings import Settings

# One connection from the start: the pool's growth is none of the requests' doing.
app.conf.broker_pool_limit = 1
contract = Contract(answer, answer_one, Settings(timeout=0.2))
headers = {"content-type": "application/json"}
ask = Ask(method="POST", path="/predict", body=b'{"inputs": ["a", "b"]}', headers=headers)

def in_threads(count):
    with ThreadPoolExecutor(16) as clients:
        answers = clients.map(lambda _: contract.answer(ask), range(count))
        return [int(answer.status) for answer in answers]

def in_a_loop(count):
    async def all_of_them():
        return await asyncio.gather(*(contract.aanswer(ask) for _ in range(count)))
    return [int(answer.status) for answer in loop.run(all_of_them())]

def held():
    # Results must go by themselves, not when the garbage collector finds them.
    return [len(inbox_of(app)), sum(isinstance(thing, AsyncResult) for thing in gc.get_objects())]

def settle(most=0):
    # Who revokes ends some seconds after the last one.
    deadline = time.monotonic() + 20
    while any(held()) or most and threading.active_count() > most:
        if time.monotonic() > deadline:
            break
        loop.run(asyncio.sleep(0.05))  # what was on its way to it, arrives
    left = held()
    gc.collect()
    return left, len(gc.get_objects()), threading.active_count()

with asyncio.Runner() as loop:
    gc.disable()
    loop.get_loop().set_default_executor(ThreadPoolExecutor(1))  # which grows no more
    contract.answer(Ask(method="GET", path="/readyz"))
    in_threads(32), in_a_loop(32)
    _, objects_before, threads_before = settle()
    statuses = in_threads(100) + in_a_loop(400)
    left, objects, threads = settle(threads_before)
    more = max(0, threads - threads_before)
    print({*statuses} <= {503, 504}, left, objects - objects_before < 500, more)
"""


def test_requests_given_up_leave_nothing_in_the_web_process(own_servers):
    """Time-outs leave no waiting result, no thread and no object behind, in threads and loops."""
    environ = own_servers.environ({})
    output = subprocess.check_output([sys.executable, "-c", CODE], env=environ, text=True)

    assert "True [0, 0] True 0" == output.strip()
