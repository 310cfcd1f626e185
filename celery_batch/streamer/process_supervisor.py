"""

Keeps worker processes running.

Rule 1: Whoever dies is replaced; those that die young again and again, with growing pauses.
Rule 2: Whoever cannot even begin, or load its model, is not replaced, if nobody in its place
        ever could: the next one could not either.  That ends us all, as a worker of
        Celery's ends.  So it does if later nobody is left who can load, time after time.
Rule 3: Whoever's function returns is done.
Rule 4: All of them end when we end, however we end.
"""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import connection
from pickle import PicklingError
from types import FrameType
from typing import Any, NoReturn

from celery_batch.errors import ConfigurationError, LoadFailed
from celery_batch.streamer.parent_death import end_with_manager
from celery_batch.streamer.spawn_hook import HookedName, set_environment

__all__ = ["LOADED", "UNLOADED", "Job", "keep_running", "tell"]

logger = logging.getLogger(__name__)

#: Seconds after which a process has not died young; starting is part of its life.
STEADY = 60.0

#: Seconds before a successor starts: at first, and at most.
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 30.0

#: Seconds to finish running batches when all of them are to end.
GRACE = 30.0

#: What a shell calls a program's exit that Ctrl-C has asked for.
_INTERRUPTED = 130

#: How often in a row nobody's model may be loaded before we end.
TRIES = 10

_BEGUN, _RETURNED = "begun", "returned"

#: What a worker says to who keeps it running: it has its model, or cannot have it.
LOADED, UNLOADED = "loaded", "unloaded"

_STOPPING = tuple(
    number for name in ("SIGTERM", "SIGHUP") if (number := getattr(signal, name, None))
)


@dataclass(frozen=True, slots=True)
class Job:
    """
    What one worker process does.

    Args:
        name: The process' name.
        target: Called in it; a function that can be imported there.
        args: Its arguments.
        env: Its environment beside ours, in place before it imports anything.
    """

    name: str
    target: Callable[..., object]
    args: tuple[Any, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)


def keep_running(jobs: list[Job], start_method: str = "spawn") -> None:
    """
    Run each job in a process of its own, replaced when it dies, until all have returned.

    Args:
        jobs: At least one.
        start_method: Of `multiprocessing`.

    Raises:
        ConfigurationError: We are being imported by such a process ourselves.
        LoadFailed: A process could not begin, or its model could not be loaded; or later
            nobody's could, ten times in a row.
        SystemExit: SIGINT, SIGTERM or SIGHUP was sent to this process.
    """
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise ConfigurationError(
            "worker processes import the main program, and it starts worker processes again;"
            " put the call under: if __name__ == '__main__':"
        )
    supervised = [_Supervised(job, multiprocessing.get_context(start_method)) for job in jobs]
    with _signals_raise():
        try:
            _keep(supervised)
        except KeyboardInterrupt:
            raise SystemExit(_INTERRUPTED) from None  # it is how this is stopped, and no fault
        finally:
            _end(supervised)


def _keep(supervised: list[_Supervised]) -> None:
    while open_supervised := [post for post in supervised if not post.is_done]:
        for post in open_supervised:
            post.look()
        if all(post.failures >= TRIES for post in open_supervised):
            raise LoadFailed(f"given up after {TRIES} tries: {open_supervised[0].trouble}")
        for post in open_supervised:
            post.start_when_due()
        running = [post.process.sentinel for post in open_supervised if post.process is not None]
        due = [post.due for post in open_supervised if post.process is None and not post.is_done]
        pause = max(min(due) - time.monotonic(), 0.0) if due else None
        if running:
            connection.wait(running, pause)
        elif pause:
            time.sleep(pause)


def _end(supervised: list[_Supervised]) -> None:
    running = [post.process for post in supervised if post.process is not None]
    try:
        for process in running:
            process.terminate()
        deadline = time.monotonic() + GRACE
        for process in running:
            process.join(max(deadline - time.monotonic(), 0.0))
    finally:  # somebody may not want to wait for so long
        for process in running:
            process.kill()
            process.join()


class _Supervised:
    """The place of one process, whoever it is at the moment."""

    def __init__(self, job: Job, context: Any) -> None:
        self.process: Any = None
        self.is_done = False
        self.due = 0.0
        #: How often in a row the model could not be loaded, and why.
        self.failures, self.trouble = 0, ""
        self._job = job
        self._context = context
        self._words: Any = None
        self._has_begun = self._has_loaded = self._has_returned = False
        self._since = 0.0
        self._pause = FIRST_PAUSE / 2

    def look(self) -> None:
        """Hear what the process says, and see whether it has ended."""
        if self.process is not None:
            has_ended = self.process.exitcode is not None
            self._receive()
            if has_ended:
                self._reap()

    def start_when_due(self) -> None:
        """Start a process if one is due."""
        if self.process is None and not self.is_done and time.monotonic() >= self.due:
            self._start()

    def _start(self) -> None:
        self._words, theirs = self._context.Pipe(duplex=False)
        job, env = self._job, dict(self._job.env)
        name = HookedName(job.name, partial(set_environment, env))
        process = self._context.Process(
            target=_work, args=(theirs, env, job.target, job.args), name=name
        )
        try:
            process.start()
        except (PicklingError, AttributeError, TypeError) as error:
            raise ConfigurationError(
                f"{self._job.name} cannot be sent to a process: {error}; define the model at the"
                f" top of a module, or choose mp_start_method='fork'"
            ) from error
        self.process = process  # not before it runs: who does not cannot be ended
        theirs.close()
        self._since = time.monotonic()

    def _receive(self) -> None:
        for word, more in _received(self._words):
            self._has_returned |= word == _RETURNED
            self._has_begun |= word == _BEGUN
            self._has_loaded |= word == LOADED
            if word == UNLOADED:
                self.failures, self.trouble = self.failures + 1, more
            elif word == LOADED:
                self.failures = 0

    def _reap(self) -> None:
        process, self.process = self.process, None
        process.join()
        self._words.close()
        if self._has_returned:
            self.is_done = True
            return
        if not self._has_begun:
            raise LoadFailed(
                f"{self._job.name} ended with exit code {process.exitcode} before it could begin;"
                f" its own words stand above"
            )
        if self.failures and not self._has_loaded:
            raise LoadFailed(self.trouble)
        lived = time.monotonic() - self._since
        self._pause = min(2 * self._pause, LONGEST_PAUSE) if lived < STEADY else FIRST_PAUSE
        self.due = time.monotonic() + self._pause
        logger.error(
            "%s (pid %d) ended with exit code %s after %.1f s; the next one starts in %g s",
            *(self._job.name, process.pid, process.exitcode, lived, self._pause),
        )


def _work(
    words: Any, env: Mapping[str, str], target: Callable[..., object], args: tuple[Any, ...]
) -> None:
    global _supervisor  # noqa: PLW0603 (one process, one keeper)
    set_environment(env)  # a fork has had no name to unpickle, and a main module may have its own
    for number in (*_STOPPING, signal.SIGINT):  # a fork has those of the process that keeps us
        signal.signal(number, signal.SIG_DFL)
    end_with_manager()
    _supervisor = words
    tell(_BEGUN)
    target(*args)
    tell(_RETURNED)


#: The way to who keeps this process running, if anybody does.
_supervisor: Any = None


def tell(word: str, more: str = "") -> None:
    """
    Say something to who keeps this process running, if anybody does.

    Args:
        word: `LOADED` or `UNLOADED`.
        more: Why not.
    """
    if _supervisor is not None:
        with contextlib.suppress(OSError):  # it is gone, and so are we soon
            _supervisor.send((word, more))


def _received(words: Any) -> Iterator[tuple[str, str]]:
    with contextlib.suppress(EOFError, OSError):
        while words.poll():
            yield words.recv()


@contextlib.contextmanager
def _signals_raise() -> Iterator[None]:
    """Have signals that end this process raise, so that it can end its workers first."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, _stop) for number in _STOPPING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _stop(_number: int, _frame: FrameType | None) -> NoReturn:
    raise SystemExit(0)
