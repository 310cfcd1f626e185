"""
The mother of workers: has imported Celery once, and forks a process for each worker.

``python -m tests.services.mother FD`` is started and spoken to by
`tests.services.forked`.  A request names a command line, an environment and a folder,
and brings three descriptors: standard input, the log, and where to write the reaper's
process id and, in the end, its exit code.

For each request it forks a reaper, which does what `celery_batch.processes.reaper` does, but
forks the worker where that one executes a program.  A worker so has its own process,
session, environment and output, imports our code and the app itself, and differs from
one that was executed in what it need not import: Celery and its libraries.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import signal
import socket
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NoReturn

from celery_batch.processes import reaper

#: What every worker imports; nothing of ours, which each worker has to import itself.
_LIBRARIES = (
    "celery.bin.celery",
    "celery.__main__",
    "celery.app.events",
    "celery.app.log",
    "celery.app.trace",
    "celery.apps.worker",
    "celery.backends.redis",
    "celery.concurrency.asynpool",
    "celery.concurrency.prefork",
    "celery.concurrency.solo",
    "celery.concurrency.thread",
    "celery.fixups.django",
    "celery.loaders.app",
    "celery.worker.autoscale",
    "celery.worker.components",
    "celery.worker.consumer",
    "celery.worker.control",
    "celery.worker.strategy",
    "kombu.asynchronous.timer",
    "kombu.transport.pyamqp",
    "kombu.transport.redis",
    "kombu.utils.eventio",
)

_TO_DEFAULT = (signal.SIGCHLD, signal.SIGTERM, signal.SIGHUP)


class _WorkerBegins(BaseException):
    """Leads a new worker out of its reaper's code."""


class _Server:
    """What a reaper runs: a fork of itself, with as much of Popen as it uses."""

    def __init__(self, _command: list[str], **_options: Any) -> None:
        self.pid = os.fork()
        self._code: int | None = None
        if not self.pid:
            os.setpgid(0, 0)
            raise _WorkerBegins
        with contextlib.suppress(OSError):  # it may have done so itself, or be gone
            os.setpgid(self.pid, self.pid)

    def poll(self, options: int = os.WNOHANG) -> int | None:
        """Return -n if it ended by signal n, its exit code if it ended, else None."""
        if self._code is None:
            pid, status = os.waitpid(self.pid, options)
            self._code = os.waitstatus_to_exitcode(status) if pid else None
        return self._code

    def wait(self) -> int | None:
        """Return the same once it has ended."""
        return self.poll(0)

    def terminate(self) -> None:
        """Ask it to stop."""
        if self.poll() is None:
            os.kill(self.pid, signal.SIGTERM)


def _run_reaper(request: dict[str, Any], descriptors: list[int]) -> None:
    """Be a reaper; return in its worker only."""
    stdin, log, said = descriptors
    os.setsid()
    os.dup2(stdin, 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(stdin)
    os.close(log)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.write(said, b"%d\n" % os.getpid())
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["folder"])
    reaper.subprocess = SimpleNamespace(DEVNULL=None, Popen=_Server)
    try:
        code = reaper.run(request["command"])
    except _WorkerBegins:
        os.close(said)
        return
    os.write(said, b"%d\n" % code)
    os._exit(0)


def _work(command: list[str]) -> NoReturn:
    """Be what ``celery`` is, called with this command line."""
    reaper._end_with_reaper()
    signal.set_wakeup_fd(-1)
    for number in _TO_DEFAULT:
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with open(os.devnull) as nothing:  # noqa: PTH123
        os.dup2(nothing.fileno(), 0)
    for folder in reversed(os.environ.get("PYTHONPATH", "").split(os.pathsep)):
        if folder and folder not in sys.path:
            sys.path.insert(0, folder)
    sys.argv = command
    sys.exit(importlib.import_module("celery.__main__").main())


def _reap(options: int) -> None:
    """Wait for reapers, so that the time they took is counted as ours."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, options)[0]:
            pass


def _listen(line: socket.socket) -> Callable[[], NoReturn]:
    """Fork for each request until the line is closed; return, in a worker, what it is to do."""
    while True:
        text, descriptors, _flags, _address = socket.recv_fds(line, 1 << 20, 3)
        if not text:
            _reap(0)
            sys.exit()
        request = json.loads(text)
        if not os.fork():
            line.close()
            _run_reaper(request, descriptors)
            return lambda: _work(request["command"])
        for each in descriptors:
            os.close(each)


def main() -> NoReturn:
    """Import, then listen."""
    for name in _LIBRARIES:
        importlib.import_module(name)
    signal.signal(signal.SIGCHLD, lambda _number, _frame: _reap(os.WNOHANG))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.collect()
    gc.freeze()  # what is shared stays shared
    _listen(socket.socket(fileno=int(sys.argv[1])))()


if __name__ == "__main__":
    main()
