"""
The process from which workers and commands are forked: it has imported Celery and our code.

``python -m tests.services.fork_server FD`` is started and spoken to by
`tests.services.forked`.  A request names a command line, an environment and a folder, and
brings the process's streams and, last, where to write a process id and then an exit code.

For a worker, whose streams are standard input and the log, it forks a reaper, which does what
`celery_batch.processes.reaper` does, but forks the worker where that one executes a program.  A
worker so has its own process, session, environment and output, imports the app itself, and
differs from one that was executed in what it need not import.

Two of their waits that only take time are shorter: for billiard a second before a pool process
ends, for Celery half a second each while the pool's processes end.

A program for ``python -m`` is forked as a worker is, with descriptors that it is to have.

A command with three streams is forked without a reaper, as `subprocess` would start it; it may
be a program for ``python -c``, and the request may name libraries to import before.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import importlib
import json
import os
import resource
import runpy
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, NoReturn

import redis.utils
from celery.utils.imports import load_extension_class_names

from celery_batch.processes import reaper

#: What every worker imports but its app; nothing here may depend on the environment.
_LIBRARIES = (
    "billiard.popen_fork",
    "billiard.sharedctypes",
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
    "celery.worker.consumer.delayed_delivery",
    "celery.worker.control",
    "celery.worker.strategy",
    "celery_batch.cli.main",
    "celery_batch.task",
    "celery_batch.worker.bootsteps",
    "kombu.asynchronous.timer",
    "kombu.transport.pyamqp",
    "kombu.transport.redis",
    "kombu.utils.eventio",
)

#: No process has so many descriptors.
_MANY = 500

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
    stdin, log, *others = descriptors
    *passed, said = (fcntl.fcntl(each, fcntl.F_DUPFD_CLOEXEC, _MANY) for each in others)
    for each in others:
        os.close(each)
    os.setsid()
    os.dup2(stdin, 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(stdin)
    os.close(log)
    for each, number in zip(passed, request["passed"], strict=True):
        os.dup2(each, number)
        os.close(each)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.write(said, b"%d\n" % os.getpid())
    _enter(request)
    reaper.subprocess = SimpleNamespace(DEVNULL=None, Popen=_Server)
    try:
        code = reaper.run(request["command"])
    except _WorkerBegins:
        os.close(said)
        return
    os.write(said, b"%d\n" % code)
    os._exit(0)


def _run_command(request: dict[str, Any], descriptors: list[int]) -> None:
    """Fork a command and wait for it; return in the command only."""
    *streams, said = descriptors
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # the server's handler would wait for it first
    pid = os.fork()
    if pid:
        os.write(said, b"%d\n" % pid)
        os.write(said, b"%d\n" % os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        os._exit(0)
    os.close(said)
    for number, each in enumerate(streams):
        os.dup2(each, number)
        os.close(each)
    _enter(request)
    if request["largest"] is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (request["largest"], request["largest"]))


def _enter(request: dict[str, Any]) -> None:
    """Go to the environment and the folder that a request names."""
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["folder"])


def _work(command: list[str]) -> NoReturn:
    """Be a worker with a reaper, as ``celery`` is when called with this command line."""
    reaper._end_with_reaper()
    with open(os.devnull) as nothing:  # noqa: PTH123
        os.dup2(nothing.fileno(), 0)
    _be_program(command)


def _be_program(command: list[str]) -> NoReturn:
    """Be what ``celery``, ``python -c`` or ``python -m`` is, called with this command line."""
    signal.set_wakeup_fd(-1)
    for number in _TO_DEFAULT:
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for folder in reversed(os.environ.get("PYTHONPATH", "").split(os.pathsep)):
        if folder and folder not in sys.path:
            sys.path.insert(0, folder)
            for file in Path(folder).glob("*.py"):  # torch, for one, has imported the real pynvml
                sys.modules.pop(file.stem, None)
    if command[1] == "-c":
        _be_python(command[2])
    sys.argv = command
    if command[1] == "-m":
        sys.argv = command[2:]
        runpy.run_module(command[2], run_name="__main__", alter_sys=True)
        sys.exit()
    sys.exit(importlib.import_module("celery.__main__").main())


def _be_python(code: str) -> NoReturn:
    """Be what ``python -c`` is, called with this code."""
    sys.argv = ["-c"]
    sys.modules["__main__"] = ModuleType("__main__")
    exec(compile(code, "<string>", "exec"), vars(sys.modules["__main__"]))  # noqa: S102 (a test's)
    sys.exit()


def _reap(options: int) -> None:
    """Wait for reapers, so that the time they took is counted as ours."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, options)[0]:
            pass


def _listen(line: socket.socket) -> Callable[[], NoReturn]:
    """Fork for each request until the line is closed; return, in a worker, what it is to do."""
    while True:
        text, descriptors, _flags, _address = socket.recv_fds(line, 1 << 20, 8)
        if not text:
            _reap(0)
            sys.exit()
        request = json.loads(text)
        if request.get("imports"):
            _import(request["imports"])
        if not os.fork():
            line.close()
            is_worker = "passed" in request
            (_run_reaper if is_worker else _run_command)(request, descriptors)
            return lambda: (_work if is_worker else _be_program)(request["command"])
        for each in descriptors:
            os.close(each)


def _import(names: Sequence[str]) -> None:
    """Import what is to be there in each fork from now on."""
    if any(name not in sys.modules for name in names):
        for name in names:
            importlib.import_module(name)
        gc.collect()
        gc.freeze()  # what is shared stays shared


def _shorten_waits() -> None:
    """Shorten the waits of pool processes that end, and of a worker for them."""
    for name, longest in (("billiard.pool", 0.2), ("celery.concurrency.prefork", 0.05)):
        own = SimpleNamespace(**vars(time))
        own.sleep = lambda seconds, longest=longest: time.sleep(min(seconds, longest))
        importlib.import_module(name).time = own  # type: ignore[attr-defined]


def main() -> NoReturn:
    """Import, then listen."""
    _import(_LIBRARIES)
    _shorten_waits()
    # What each would read from the metadata of all packages, a sixth of its start.
    for namespace in ("celery.commands", "celery.result_backends"):
        load_extension_class_names(namespace)
    redis.utils.get_lib_version = cache(redis.utils.get_lib_version)
    signal.signal(signal.SIGCHLD, lambda _number, _frame: _reap(os.WNOHANG))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _listen(socket.socket(fileno=int(sys.argv[1])))()


if __name__ == "__main__":
    main()
