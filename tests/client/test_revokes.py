"""Revokes that are collected and sent together, and never waited for."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from itertools import chain
from typing import Any

import pytest
from kombu.exceptions import OperationalError

from celery_batch.client.revoke import PIECE, Revokes, revoke_soon
from tests.client.conftest import Sender


@pytest.fixture
def broadcasts(sender: Callable[..., Sender], monkeypatch: pytest.MonkeyPatch) -> Any:
    """An app, and the lists of ids that it broadcasts."""
    app = sender().app
    sent: list[list[str]] = []
    monkeypatch.setattr(app.control, "revoke", lambda ids, **_told: sent.append(ids))
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


def test_a_broker_that_is_away_is_told_of_once(
    broadcasts: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What cannot be sent is dropped, with one warning for a loss."""
    app, sent = broadcasts
    with monkeypatch.context() as away, caplog.at_level(logging.WARNING, "celery_batch"):
        away.setattr(app.control, "revoke", _refuse)
        for task_id in "ab":
            revoke_soon(app, [task_id])
            assert Revokes.of(app).flush(10)
    revoke_soon(app, ["c"])

    assert Revokes.of(app).flush(10)
    assert [["c"]] == sent
    assert 1 == caplog.text.count("Cannot revoke")


def _refuse(_task_ids: list[str], **_told: Any) -> None:
    raise OperationalError("nobody is there")


def test_what_is_collected_is_sent_at_exit(
    sender: Callable[..., Sender], in_python: Callable[..., str], broker: str
) -> None:
    """A process that ends just then has its revokes heard."""
    here = sender()
    heard = here.redis.pubsub()
    heard.subscribe("/0.celery.pidbox")
    assert "subscribe" == heard.get_message(timeout=5)["type"]
    in_python(
        "from celery import Celery; from celery_batch.client.revoke import revoke_soon\n"
        f"app = Celery('x', broker={broker!r}, set_as_current=False)\n"
        "app.send_task('x'); revoke_soon(app, ['the-id'])"
    )
    message = heard.get_message(timeout=10)
    heard.close()

    assert message["type"] == "message"
