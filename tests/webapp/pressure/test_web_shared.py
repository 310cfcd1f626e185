"""Same inputs over HTTP: computed once while they are in flight, and known for a while."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from web_pressed_service import open_door
from web_pressed_tasks import SEEN


@pytest.mark.parametrize("kind", ["gthread", "parking", "uvicorn"])
def test_what_all_ask_is_computed_once(pressed, kind):
    """Many clients that ask the same have one answer; so have those who come later."""
    pressed.redis.delete(SEEN)
    with (
        open_door(pressed.servers, kind, WEBAPP_SHARE="1", WEBAPP_CACHE_SECONDS="60") as door,
        ThreadPoolExecutor(16) as clients,
    ):
        asking = [clients.submit(door.predict, "hold 0.5", str(n % 2)) for n in range(16)]
        replies = [each.result() for each in asking]
        later = door.predict("hold 0.5", "1", "another", "hold 0.5")

    assert [(200, {"outputs": ["hold 0.5", str(n % 2)]}) for n in range(16)] == [
        (each.status, each.body) for each in replies
    ]
    assert ["hold 0.5", "1", "another", "hold 0.5"] == later.body["outputs"]
    assert ["0", "1", "another", "hold 0.5"] == sorted(pressed.seen())


@pytest.mark.parametrize("kind", ["gthread", "parking", "uvicorn"])
def test_a_failure_to_send_is_told_to_all(pressed, kind):
    """Where nobody has the time to send, all who ask the same hear why."""
    with (
        open_door(pressed.servers, kind, WEBAPP_SHARE="1") as door,
        ThreadPoolExecutor(8) as clients,
    ):
        asking = [clients.submit(door.predict, "a", "b", X_Timeout="1e-6") for _ in range(8)]

        assert {(504, "DeadlineExceeded")} == {
            (each.result().status, each.result().error) for each in asking
        }
