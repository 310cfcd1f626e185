"""The web tier under pressure: too much work, clients that go, servers that break."""

from __future__ import annotations

import asyncio
import socket
import time
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest
from web_pressed import COMMANDS, Clients, closed, read_answer, request
from web_pressed_service import CAPACITY
from web_pressed_tasks import BATCH, SEEN, UNTIL_TOLD

KINDS = tuple(COMMANDS)


@pytest.mark.parametrize(
    "kind",
    [
        "gthread",
        "parking",
        "uvicorn",
        pytest.param(
            "gevent", marks=pytest.mark.thorough("web servers under pressure at full size")
        ),
    ],
)
def test_too_many_requests_are_refused_and_cost_no_work(pressed, kind):
    """Of many more requests than may wait, the excess is refused and the rest is answered."""
    clients = Clients(pressed.door(kind).port)
    pressed.redis.delete(SEEN)
    load = asyncio.run(clients.open_loop(1000, 0.3))

    assert {200, 429} == set(load.counts)
    assert 0 == load.unhelpful
    assert load.counts[200] == len(pressed.seen())
    assert load.counts[200] > 2 * BATCH


@pytest.mark.parametrize("kind", ["gthread", "uvicorn"])
def test_what_never_fits_is_too_large(pressed, kind):
    """Who asks for more at once than may ever wait is not told to come again."""
    reply = pressed.door(kind).predict(*(str(number) for number in range(17)))
    expected = "17 inputs are more than the 16 that may wait: send fewer"

    assert (413, "TooLarge") == (reply.status, reply.error)
    assert expected == reply.body["error"]["message"]


@pytest.mark.thorough("web servers under pressure at full size")
@pytest.mark.parametrize("kind", KINDS)
def test_goodput_under_ten_times_the_load(pressed, kind, capsys):
    """At ten times what the model can do, it does no work in vain, and the excess is refused."""
    clients = Clients(pressed.door(kind).port)
    peak = asyncio.run(clients.closed_loop(2 * BATCH, int(10 * CAPACITY)))
    pressed.redis.delete(SEEN)
    load = asyncio.run(clients.open_loop(10 * CAPACITY, 30.0))
    goodput, best = load.goodput(), peak.goodput()
    with capsys.disabled():
        print(f"\n{kind}: goodput {best:.1f}/s alone, {goodput:.1f}/s at 10x; {load}")  # noqa: T201

    assert {200, 429} == set(load.counts)
    assert load.counts[200] == len(pressed.seen())


@pytest.mark.parametrize("kind", KINDS)
def test_who_hangs_up_is_called_back(pressed, kind):
    """A client that goes while its input waits in the queue costs the model nothing."""
    door = pressed.door(kind)
    pressed.redis.delete(SEEN)
    known = len(pressed.ask("revoked"))
    with ThreadPoolExecutor(3) as clients:
        running = clients.submit(door.predict, UNTIL_TOLD)
        pressed.until_seen(UNTIL_TOLD)
        ready = clients.submit(door.predict, *map(str, range(BATCH)))
        pressed.until_held(running=2, waiting=0)
        with socket.create_connection(("127.0.0.1", door.port)) as client:
            client.sendall(request("unwanted"))
            pressed.until_held(running=2, waiting=1)
        pressed.until_answered("revoked", lambda ids: len(ids) > known)
        pressed.let_go()
        assert [200, 200] == [running.result().status, ready.result().status]
        assert 200 == door.predict("last").status

    assert "last" == pressed.seen()[-1]
    assert "unwanted" not in pressed.seen()


@pytest.mark.parametrize("kind", ["gthread", "parking"])
def test_who_pipelines_has_not_hung_up(pressed, kind):
    """A client that sends its next request ahead gets both answers."""
    door = pressed.door(kind)

    async def ask():
        """Ask once."""
        reader, writer = await asyncio.open_connection(port=door.port)
        writer.write(request("hold 0.5") + request("and another"))
        answers = [await read_answer(reader) for _ in range(2)]
        await closed(writer)
        return [status for status, _, _ in answers]

    assert [200, 200] == asyncio.run(ask())


@pytest.mark.parametrize("kind", ["gthread", "parking"])
def test_a_half_closed_connection_counts_as_gone(pressed, kind):
    """A client that closes its half is told so, if it still reads."""
    door = pressed.door(kind)
    with socket.create_connection(("127.0.0.1", door.port)) as client:
        client.sendall(request("hold 1"))
        client.shutdown(socket.SHUT_WR)
        said = b""
        while piece := client.recv(4096):
            said += piece

    assert b"HTTP/1.1 499" == said[:12]


def test_a_killed_worker_costs_time_and_no_answer(own_pressed):
    """What a worker held that was killed is answered by the next one."""
    doors = [own_pressed.door(kind) for kind in ("gthread", "parking", "uvicorn")]
    with ThreadPoolExecutor(3) as clients:
        waiting = [clients.submit(door.predict, f"hold 1.{door.port}") for door in doors]
        for door in doors:
            own_pressed.until_seen(f"hold 1.{door.port}")
        main = psutil.Process(own_pressed.worker.pid).children()[0]
        for process in [main, *main.children(recursive=True)]:
            process.kill()
        own_pressed.worker = own_pressed.start_worker()

        assert [200] * 3 == [each.result().status for each in waiting]


def test_a_restart_of_redis_under_load(own_pressed):
    """While Redis is away requests are refused and none is an internal error; then all is well."""
    doors = [own_pressed.door(kind) for kind in ("gthread", "parking", "uvicorn")]
    redis = own_pressed.servers.redis

    def restart():
        time.sleep(0.5)  # under load
        redis.stop()
        redis.start()

    async def ask():
        """Ask once."""
        clients = [Clients(door.port) for door in doors]
        asking = [each.open_loop(20, 3.0) for each in clients]
        *loads, _ = await asyncio.gather(*asking, asyncio.to_thread(restart))
        return loads

    for load in asyncio.run(ask()):
        assert set(load.counts) <= {200, 429, 503, 504}
        assert load.counts[200]
        assert 0 == load.unhelpful
    for door in doors:
        door.until("/readyz")
        assert 200 == door.predict("again").status
