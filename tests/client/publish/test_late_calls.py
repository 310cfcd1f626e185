"""Calls that are made when no thread can be started, as while the interpreter ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from threading import Thread
from typing import Any

import pytest
from celery import Celery

from celery_batch import BatchTask

#: Python 3.12 and later start no thread in what runs at exit; before, it is made to be so.
_PROGRAM = """
import asyncio, atexit, sys, threading
from celery import Celery, group
from celery_batch import BatchTask

app = Celery("late", broker={url!r}, backend={url!r})

@app.task(base=BatchTask, name="shout", max_queue={most})
def shout(text):
    return text

def refuse(*_, **__):
    raise RuntimeError("can't create new thread at interpreter shutdown")

@atexit.register
def late():
    if sys.version_info < (3, 12):
        threading._start_new_thread = refuse
    {send}
    with app.connection_for_read() as connection:
        print(connection.default_channel.client.llen("celery"))
"""

SENDS = {
    "delay": ("shout.delay('a')", 1),
    "delay_many": ("shout.delay_many(list('abc'))", 3),
    "group": ("group(shout.s(each) for each in 'abc').delay()", 3),
    "adelay": ("asyncio.run(shout.adelay('a'))", 1),
}


_THOROUGH = pytest.mark.thorough("each way of sending at exit to a limited queue")


@pytest.mark.parametrize(
    ("way", "most"),
    [
        *(pytest.param(way, None, id=f"{way}-unlimited") for way in SENDS),
        *(
            pytest.param(
                way, 100, id=f"{way}-max_queue", marks=() if way == "delay_many" else _THOROUGH
            )
            for way in SENDS
        ),
    ],
)
def test_the_first_call_may_come_at_exit(
    broker: str, in_python: Callable[..., str], way: str, most: int | None
) -> None:
    """A program's first call is sent, even from a function that runs when it ends."""
    send, number = SENDS[way]

    assert str(number) == in_python(_PROGRAM.format(url=broker, most=most, send=send))


def test_a_call_that_finds_no_thread_is_sent_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there are too many threads it is sent at once, and not again with the next one."""
    start, refused = Thread.start, []

    def refuse_once(self: Thread) -> None:
        if self.name.startswith("celery-batch-send") and not refused:
            refused.append(self)
            raise RuntimeError("can't start new thread")
        start(self)

    async def send(task: Any) -> None:
        """Send two calls."""
        for text in "ab":
            await task.adelay(text)

    monkeypatch.setattr(Thread, "start", refuse_once)
    with Celery("crowded", broker="memory://", set_as_current=False) as app:
        app.conf.task_default_queue = "crowded"  # kombu has one memory for the whole process
        task = app.task(base=BatchTask, name="shout", ignore_result=True)(_same)
        asyncio.run(send(task))
        with app.connection_for_read() as connection:
            waiting = connection.default_channel._size("crowded")

    assert refused
    assert 2 == waiting


def _same(text: list[str]) -> list[str]:
    return text
