"""Revokes that are collected and sent together, and never waited for."""

from __future__ import annotations

import base64
import json
import logging
import threading
from collections.abc import Callable
from itertools import chain
from typing import Any

import pytest
import redis
from kombu.exceptions import OperationalError

from celery_batch.client import revoke
from celery_batch.client.revoke import PIECE, Revokes, revoke_soon
from celery_batch.processes.redis_server import RedisServer
from celery_batch.web.prepare import prepare
from tests.client.conftest import Sender
from tests.client.test_max_queue import stopped


@pytest.fixture
def broadcasts(sender: Callable[..., Sender], monkeypatch: pytest.MonkeyPatch) -> Any:
    """An app, and the lists of ids that it broadcasts."""
    app = sender().app
    sent: list[list[str]] = []
    monkeypatch.setattr(app.control, "revoke", lambda ids, **_options: sent.append(ids))
    return app, sent


def test_revokes_of_many_threads_go_together(broadcasts: Any) -> None:
    """Ids of many threads are sent once each, in few broadcasts of bounded size."""
    app, sent = broadcasts
    names = [[f"{thread}-{number}" for number in range(100)] for thread in range(8)]
    threads = [threading.Thread(target=revoke_soon, args=(app, each)) for each in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert Revokes.of(app).flush(10)
    assert sorted(chain(*names)) == sorted(chain(*sent))
    assert max(map(len, sent)) <= PIECE
    assert len(sent) <= 8


def test_what_comes_later_is_sent_later(broadcasts: Any) -> None:
    """The thread goes on after a broadcast; nothing is sent for nothing."""
    app, sent = broadcasts
    for task_ids in (["a"], [], ["b", "c"]):
        revoke_soon(app, task_ids)
        assert Revokes.of(app).flush(10)

    assert [["a"], ["b", "c"]] == sent


def test_one_warning_for_an_outage(
    broadcasts: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A broadcast that fails twice is dropped with all that wait, with one warning."""
    app, sent = broadcasts
    monkeypatch.setattr(revoke, "RETRY_PAUSE", 0.0)
    tried: list[list[str]] = []

    def refuse(task_ids: list[str], **_options: Any) -> None:
        tried.append(task_ids)
        raise OperationalError("no broker")

    first, second = [f"{number}" for number in range(2 * PIECE)], ["b"]
    with monkeypatch.context() as away, caplog.at_level(logging.WARNING, "celery_batch"):
        away.setattr(app.control, "revoke", refuse)
        for task_ids in (first, second):
            revoke_soon(app, task_ids)
            assert Revokes.of(app).flush(10)
    revoke_soon(app, ["c"])

    assert Revokes.of(app).flush(10)
    assert [first[:PIECE], first[:PIECE], second, second] == tried
    assert [["c"]] == sent
    assert 1 == caplog.text.count("Cannot revoke")


def test_a_program_that_has_closed_its_connections_is_warned_of_nothing(
    sender: Callable[..., Sender],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """As a web server does that ends, and cancels its views: nobody is left to revoke them."""
    monkeypatch.setattr(revoke, "RETRY_PAUSE", 0.0)
    app = sender().app
    app.pool.force_close_all()
    revoke_soon(app, ["a"])

    assert Revokes.of(app).flush(10)
    assert not caplog.messages


def test_ids_are_sent_when_redis_goes_on(
    sender: Callable[..., Sender],
    redis_server: RedisServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A Redis that stops for one broadcast receives its ids once it goes on, and later ones too."""
    app = sender(
        broker_transport_options={"socket_timeout": 1.0, "max_retries": 0},
        task_publish_retry_policy={"max_retries": 0},
    ).app
    prepare(app)
    failed, goes_on, broadcast = threading.Event(), threading.Event(), Revokes._broadcast

    def watched(self: Revokes, task_ids: list[str]) -> None:
        assert goes_on.wait(60) if failed.is_set() else True  # a second failure would drop them
        try:
            broadcast(self, task_ids)
        except Exception:
            failed.set()
            raise

    monkeypatch.setattr(Revokes, "_broadcast", watched)
    first, later = {f"first-{number}" for number in range(2 * PIECE)}, {"later"}
    path = str(redis_server.directory / "redis.sock")
    with redis.Redis(unix_socket_path=path) as client, client.pubsub() as pubsub:
        pubsub.subscribe("/0.celery.pidbox")
        assert "subscribe" == pubsub.get_message(timeout=60)["type"]
        with stopped(redis_server):
            revoke_soon(app, first)
            assert failed.wait(30)
            revoke_soon(app, later)
        goes_on.set()
        assert Revokes.of(app).flush(60)
        received = set[str]()
        # The last second shows that nothing else comes.
        while message := pubsub.get_message(timeout=1 if received >= first | later else 30):
            received.update(ids_of(message["data"]))

    assert first | later == received


def ids_of(data: bytes) -> list[str]:
    """Return the ids of a broadcast."""
    body = json.loads(base64.b64decode(json.loads(data)["body"]))
    task_ids: list[str] = body["arguments"]["task_id"]
    return task_ids


def test_a_stopped_redis_does_not_block_the_exit(
    redis_server: RedisServer, in_python: Callable[..., str], broker: str
) -> None:
    """A process whose broker does not answer waits for its revokes for 2 s at most."""
    with stopped(redis_server):
        seconds = in_python(
            "import atexit, time\n"
            "atexit.register(lambda: print(time.monotonic() - began))\n"
            "from celery import Celery; from celery_batch.client.revoke import revoke_soon\n"
            f"app = Celery('x', broker={broker!r}, set_as_current=False)\n"
            "app.connection_for_write().get_transport_cls()\n"  # imported before the exit
            "revoke_soon(app, ['the-id']); began = time.monotonic()"
        )

    assert 1.5 < float(seconds) < 30.0


@pytest.mark.parametrize("before", ["app.send_task('x'); ", ""], ids=["after a call", "at first"])
def test_what_is_collected_is_sent_at_exit(
    sender: Callable[..., Sender], in_python: Callable[..., str], broker: str, before: str
) -> None:
    """A process that ends just then sends its revokes, even if it has not connected before."""
    here = sender()
    heard = here.redis.pubsub()
    heard.subscribe("/0.celery.pidbox")
    assert "subscribe" == heard.get_message(timeout=60)["type"]
    log = in_python(
        "import logging, sys; logging.basicConfig(stream=sys.stdout)\n"
        "from celery import Celery; from celery_batch.client import revoke\n"
        "revoke._AT_EXIT = 60.0\n"  # a busy machine may take longer than 2 s to connect
        f"app = Celery('x', broker={broker!r}, set_as_current=False)\n"
        f"{before}revoke.revoke_soon(app, ['the-id'])"
    )
    message = heard.get_message(timeout=60)
    heard.close()

    assert message, log
    assert message["type"] == "message"
