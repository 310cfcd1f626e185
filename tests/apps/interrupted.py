"""An app whose worker is told to quit at the worst of moments, on its main thread."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from celery.concurrency.asynpool import ResultHandler
from celery.signals import worker_ready
from celery.worker import state
from kombu.asynchronous import hub

from celery_batch import BatchTask
from celery_batch.batching.batcher import Batcher
from tests.apps.small_app import remember, small_app

app = small_app("interrupted")
_told: list[str] = []


@app.task(base=BatchTask, name="interrupted.slow", max_batch_size=4, max_wait=0.05)
def slow(x):
    """Take a while."""
    remember("ran", *x)
    time.sleep(0.2)
    return x


def _quit_once() -> None:
    """Be told to quit while batches run, if this is the main thread."""
    on_main = threading.current_thread() is threading.main_thread()
    if on_main and not _told and state.active_requests:
        _told.append("quit")
        remember("told", "quit")
        signal.raise_signal(signal.SIGQUIT)


def _quitting(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **options: Any) -> Any:
        _quit_once()
        return function(*args, **options)

    return call


class _Talker(logging.Handler):
    def emit(self, _record: logging.LogRecord) -> None:
        _quit_once()


def _while_deciding() -> None:
    Batcher.next = _quitting(Batcher.next)


def _while_queueing() -> None:
    hub.threading = SimpleNamespace(get_ident=_quitting(threading.get_ident))


def _while_reading() -> None:
    receive = ResultHandler._recv_message
    *others, unpack_header, load = receive.__defaults__
    receive.__defaults__ = (*others, _quitting(unpack_header), load)


def _while_logging() -> None:
    logging.getLogger().addHandler(_Talker())


_MOMENTS = {
    "deciding": _while_deciding,
    "queueing": _while_queueing,
    "reading": _while_reading,
    "logging": _while_logging,
}


@worker_ready.connect(weak=False)
def _lie_in_wait(**_: Any) -> None:
    if moment := os.environ.get("QUIT_WHILE"):
        _MOMENTS[moment]()
