"""Worker processes of a streamer, each with a thread that sends and one that receives."""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from multiprocessing import connection, process
from typing import Any

from celery_batch.errors import LoadFailed, ModelError
from celery_batch.processes.supervisor import restart_pause
from celery_batch.streamer import messages, worker_main
from celery_batch.streamer.base import GRACE
from celery_batch.streamer.messages import Message, pickled, unpickled
from celery_batch.streamer.model_adapters import Adapter
from celery_batch.streamer.request_queue import RequestQueue, Requests, Slot, broke_off
from celery_batch.streamer.spawn_hook import HookedName
from celery_batch.streamer.worker_main import Plan

__all__ = [
    "ProcessPool",
    "WorkerProcess",
]

logger = logging.getLogger(__name__)

#: Most seconds until a process that has ended has an exit code: another thread may wait for it.
_REAPED = 2.0

#: Batches a process may have: one runs, one waits behind it.
_BATCHES = 2

#: Seconds before a model that could not be loaded again is tried once more, at first.
_FIRST_PAUSE = 1.0

#: Failures in a row to load it after which requests fail; loading is tried further.
_TRIES = 4

_UNGUARDED = (
    "the main module uses a streamer while it is imported, which every worker process does"
    ' again; put what runs under `if __name__ == "__main__":`'
)

#: How the names of worker processes begin.
_NAME = "celery_batch-streamer-"


class _Replies:
    """A pipe from a process, which ends with the process: a fork may hold its other end open."""

    def __init__(self, pipe: Any, sentinel: int) -> None:
        self._pipe = pipe
        self._sentinel = sentinel

    def recv_bytes(self) -> bytes:
        self._wait()
        found: bytes = self._pipe.recv_bytes()
        return found

    def recv_bytes_into(self, buffer: bytearray) -> None:
        self._wait()
        self._pipe.recv_bytes_into(buffer)

    def _wait(self) -> None:
        if self._pipe not in connection.wait([self._pipe, self._sentinel]):
            raise EOFError


class WorkerProcess:
    """A process with one model, and the pipes to and from it."""

    def __init__(self, name: str, given: Adapter | bytes, plan: Plan, method: str) -> None:
        context: Any = multiprocessing.get_context(method)
        # Two pipes, since gevent's socket pairs, of which a duplex one is made, never block.
        batches, self._batches = context.Pipe(duplex=False)
        receiving, replies = context.Pipe(duplex=False)
        #: How many batches were sent, and how many were answered.
        self.sent = self.answered = 0
        self.process: process.BaseProcess = context.Process(
            target=worker_main.serve,
            args=(batches, replies, given, plan),
            name=HookedName(name, partial(worker_main.arrive, plan.env)),
        )
        self.process.start()
        self._replies = _Replies(receiving, self.process.sentinel)
        batches.close()
        replies.close()

    def wait_until_loaded(self) -> None:
        """Return when the model is loaded; raise LoadFailed if it cannot be."""
        error = self._read(self._replies.recv_bytes)
        if error is None:
            raise LoadFailed(self._why_it_ended())
        if error:
            raise LoadFailed(error.decode())

    def send(self, batch: Message) -> None:
        """Send a batch; an OSError if the process has ended."""
        messages.send(self._batches, batch)
        self.sent += 1

    def receive(self) -> Message | None:
        """Return the reply to the next batch; None if the process has ended."""
        reply: Message | None = self._read(partial(messages.receive, self._replies))
        self.answered += reply is not None
        return reply

    def stop(self, grace: float) -> None:
        """End the process after the batches that it has, or kill it after so many seconds."""
        if grace:
            with contextlib.suppress(OSError):
                self._batches.send_bytes(b"")
        if not connection.wait([self.process.sentinel], grace):
            self.process.kill()
        self.process.join(_REAPED)

    def _read(self, read: Callable[[], Any]) -> Any:
        """Read what the process has written; None if it has ended."""
        with contextlib.suppress(EOFError, OSError):
            return read()
        return None

    def _why_it_ended(self) -> str:
        deadline = time.monotonic() + _REAPED
        while (code := self.process.exitcode) is None and time.monotonic() < deadline:
            time.sleep(0.01)
        if code == worker_main.UNGUARDED:
            return _UNGUARDED
        return (
            f"the worker process ended with exit code {code} before its model was loaded;"
            " what it wrote to the standard error output says why"
        )


def _disown() -> None:
    """In a forked copy of this process: the processes are the parent's to wait for."""
    # There is no public way; at its exit this process would insist on joining them.
    children: set[process.BaseProcess] = getattr(process, "_children", set())
    children.difference_update([each for each in children if each.name.startswith(_NAME)])


os.register_at_fork(after_in_child=_disown)


class ProcessPool:
    """The worker processes of a streamer."""

    def __init__(
        self,
        request_queue: RequestQueue,
        given: Adapter | bytes,
        plans: Sequence[Plan],
        method: str,
    ) -> None:
        self._request_queue = request_queue
        self._lock = threading.Lock()
        self._feeders = [
            _Feeder(self, request_queue, name, partial(WorkerProcess, name, given, plan, method))
            for name, plan in ((f"{_NAME}{index}", plan) for index, plan in enumerate(plans))
        ]
        for feeder in self._feeders:
            feeder.sender.start()

    def wait_until_loaded(self, seconds: float) -> bool:
        """Say whether all models are loaded, after so many seconds at most."""
        deadline = time.monotonic() + seconds
        for feeder in self._feeders:
            if not feeder.has_tried.wait(max(deadline - time.monotonic(), 0)):
                return False
            if feeder.error is not None:
                raise LoadFailed(str(feeder.error)) from feeder.error
        return True

    def update(self, error: LoadFailed | None = None) -> None:
        """Fail requests while no process can load its model, for ever if none ever could."""
        with self._lock:  # so that no thread suspends the queue after another has resumed it
            left = [feeder for feeder in self._feeders if feeder.error is None]
            if left and not all(feeder.is_down for feeder in left):
                self._request_queue.resume()
            elif error is not None:
                (self._request_queue.suspend if left else self._request_queue.close)(error)

    def stop(self, grace: float) -> None:
        """End them all, after what they are running or so many seconds."""
        deadline = time.monotonic() + grace
        for feeder in self._feeders:
            feeder.stop(max(deadline - time.monotonic(), 0))


class _Feeder:
    """The threads of one worker process and its successors: one sends, one receives."""

    def __init__(
        self, pool: ProcessPool, request_queue: RequestQueue, name: str, make: Any
    ) -> None:
        self._pool = pool
        self._request_queue = request_queue
        self._make = make
        self._process: WorkerProcess | None = None
        #: Set when its first process has loaded its model, or could not.
        self.has_tried = threading.Event()
        #: Why it could not.
        self.error: LoadFailed | None = None
        #: Whether later processes could not, several times in a row.
        self.is_down = False
        self.sender = threading.Thread(target=self._work, name=name, daemon=True)
        self._receiver: threading.Thread | None = None

    def stop(self, grace: float) -> None:
        """End the process after what was taken; the queue is closed, which ends the threads."""
        current, process = threading.current_thread(), self._process
        if current is self.sender and process is not None:  # in a callback
            process.stop(grace)
        deadline = time.monotonic() + grace
        threads = [each for each in (self.sender, self._receiver) if each not in (None, current)]
        for thread in threads:
            thread.join(max(deadline - time.monotonic(), 0))
        if (process := self._process) is not None:
            process.process.kill()
        for thread in threads:
            thread.join(_REAPED)

    def _work(self) -> None:
        idle_deaths = failures = 0
        while self._request_queue.is_open:
            self._process = None
            try:
                self._process = self._make()
                if self._request_queue.is_open:  # else `stop` may not have seen this one
                    self._process.wait_until_loaded()
            except BaseException as error:  # noqa: BLE001 (whatever it is, requests fail with it)
                failures += 1
                if self._is_hopeless(error, failures):
                    break
            else:
                self.has_tried.set()
                self.is_down, failures = False, 0
                self._pool.update()
                idle_deaths = 0 if self._feed(self._process) else idle_deaths + 1
            finally:
                if self._process is not None:
                    self._process.stop(0.0 if self._request_queue.is_open else GRACE)
            # One idle death may be chance; several in a row have a cause.
            if pause := restart_pause(failures or max(idle_deaths - 1, 0), _FIRST_PAUSE):
                self._request_queue.wait_until_closed(pause)
        self._process = None  # which closes its pipes: nothing else has it

    def _is_hopeless(self, error: BaseException, failures: int) -> bool:
        """Say whether the model cannot be loaded even once."""
        if not self._request_queue.is_open:
            return True
        load_failed = error if isinstance(error, LoadFailed) else LoadFailed(f"{error!r}")
        if self.has_tried.is_set():
            logger.error("The model of a new worker process is not loaded: %s", load_failed)
            self._request_queue.fail_late()
            if failures >= _TRIES:
                self.is_down = True
                self._pool.update(load_failed)
            return False
        self.error = load_failed
        self._pool.update(load_failed)
        self.has_tried.set()
        return True

    def _feed(self, process: WorkerProcess) -> bool:
        """Send batches to a process until it ends; return whether it was sent any."""
        slot = self._request_queue.slot(_BATCHES)
        name = f"{self.sender.name}-receiver"
        receiver = threading.Thread(
            target=self._receive, args=(process, slot), name=name, daemon=True
        )
        receiver.start()
        self._receiver = receiver  # `stop` joins it, which has to be started
        while (requests := self._request_queue.take(slot)) is not None:
            items = [item for request in requests for item in request.item.items]
            batch = pickled((items, len(requests) == 1))
            if batch is None:
                error = ModelError("the request cannot be pickled for its way to a worker process")
                self._request_queue.finish(slot, requests, error)
                continue
            try:
                process.send(batch)
            except OSError:  # the process has ended, and the receiver puts the batch back
                self._request_queue.retire(slot)
        return process.sent > 0

    def _receive(self, process: WorkerProcess, slot: Slot) -> None:
        """Settle batches, in the order in which they were sent, until the process ends."""
        while (reply := process.receive()) is not None:
            self._settle(slot, slot.out[0], reply)
        self._request_queue.lose(slot, has_run=process.sent > process.answered)

    def _settle(self, slot: Slot, requests: Requests, reply: Message) -> None:
        try:
            outputs, broken, call = unpickled(reply)
        except BaseException as error:  # noqa: BLE001 (the thread has to live on)
            outputs, broken, call = broke_off("the model", error), None, None
        if broken is not None:
            logger.error("A worker process is replaced, since its device is broken: %s", broken)
            self._request_queue.retire(slot)
        self._request_queue.finish(slot, requests, outputs, call)
