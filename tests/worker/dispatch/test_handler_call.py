"""What becomes of a request whose end cannot be told."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from celery.worker import state
from kombu.exceptions import EncodeError

from celery_batch.worker.dispatch.follow_up import HandlerCall
from tests.worker.doubles import Call


def told(error: Exception) -> tuple[bool, list[Any]]:
    """Tell a request of its end, in vain; return whether it has ended, and what it heard."""
    heard: list[Any] = []
    call = Call("one", heard)

    def fail(*_: Any, **__: Any) -> None:
        raise error

    call.task = SimpleNamespace(backend=SimpleNamespace(mark_as_failure=fail))
    has_ended = HandlerCall(call, fail, ()).call()
    state.task_ready(call)
    return has_ended, heard


@pytest.mark.parametrize("error", [ConnectionError("gone"), RuntimeError("down")])
def test_who_cannot_be_told_now_runs_again(error: Exception):
    """What keeps its end from being stored may pass, and nobody may wait for ever."""
    assert (False, []) == told(error)


@pytest.mark.parametrize(
    "error", [UnicodeEncodeError("utf-8", "\ud800", 0, 1, "surrogates"), EncodeError("no JSON")]
)
def test_who_can_never_be_told_runs_no_more(error: Exception):
    """What cannot be written down now cannot be the next time: its message is done with."""
    has_ended, heard = told(error)

    assert has_ended
    assert [("one", "acknowledged")] == heard
