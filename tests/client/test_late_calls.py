"""Calls that are made while the interpreter ends, when no thread can be started any more."""

from __future__ import annotations

from collections.abc import Callable

import pytest

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
    "delay_many": ("shout.delay_many('abc')", 3),
    "group": ("group(shout.s(each) for each in 'abc').delay()", 3),
    "adelay": ("asyncio.run(shout.adelay('a'))", 1),
}


@pytest.mark.parametrize("most", [None, 100], ids=["unlimited", "max_queue"])
@pytest.mark.parametrize("way", SENDS)
def test_the_first_call_may_come_at_exit(
    broker: str, in_python: Callable[..., str], way: str, most: int | None
) -> None:
    """A program's first call is sent, even from a function that runs when it ends."""
    send, number = SENDS[way]

    assert str(number) == in_python(_PROGRAM.format(url=broker, most=most, send=send))
