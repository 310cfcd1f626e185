"""Waits in the worker until every pool process has loaded its models."""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from celery.worker import state

from celery_batch.compat.billiard import pool_processes
from celery_batch.errors import LoadFailed
from celery_batch.worker.executor.loader import Plan, load_failed

__all__ = ["WarmUp", "end_loading"]

logger = logging.getLogger(__name__)

#: Seconds between checks whether a process died or the worker is to stop.
_POLL_INTERVAL = 0.2

#: Seconds for which processes that are told to end while they load may clean up.
_GRACE = 5.0

#: Characters; a socket's path has at most 104 bytes on macOS, 108 on Linux.
_LONGEST_FOLDER = 80


class WarmUp:
    """Receives the reports of pool processes about loading their models."""

    def __init__(self, tasks: list[str], processes: int, timeout: float) -> None:
        parent = tempfile.gettempdir()
        if len(parent) > _LONGEST_FOLDER:
            parent = "/tmp"  # noqa: S108 (the folder in it is private)
        self._folder = tempfile.TemporaryDirectory(prefix="cb-", dir=parent)
        address = str(Path(self._folder.name) / "loading")
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(address)
        self._socket.settimeout(_POLL_INTERVAL)
        self._timeout = timeout
        #: The ids of the processes that have loaded their models.
        self.warm: set[int] = set()
        #: For how long the processes have loaded, at the worker's start.
        self.seconds = 0.0
        self._plan = Plan(tasks, processes, address, os.getpid())
        self._plan.publish()

    @property
    def folder(self) -> Path:
        """The folder of the sockets of this worker and its pool processes."""
        return Path(self._folder.name)

    def wait(self, pool: Any) -> None:
        """Return when every process of the pool is warm; end the pool if one cannot be."""
        began = time.monotonic()
        try:
            self._wait(pool)
            self.seconds = time.monotonic() - began
        except BaseException:  # or the worker is told to stop
            end_loading(pool)
            raise

    def _wait(self, pool: Any) -> None:
        deadline = time.monotonic() + self._timeout
        processes = pool_processes(pool)
        while not {process.pid for process in processes} <= self.warm:
            state.maybe_shutdown()
            self._receive()
            self._require_alive(processes)
            if time.monotonic() > deadline:
                raise LoadFailed(
                    f"not loaded after {self._timeout:g} s;"
                    f" raise batch_load_timeout if the model needs longer"
                )

    def watch(self, hub: Any) -> None:
        """Receive reports on the event loop, of processes that replace others."""
        self._socket.settimeout(0)
        hub.add_reader(self._socket.fileno(), self._on_report)

    def add(self, task: str) -> None:
        """Have processes that start from now on load one more task's model."""
        self._plan = replace(self._plan, tasks=[*self._plan.tasks, task])
        self._plan.publish()

    def close(self) -> None:
        """Receive no more reports."""
        Plan.withdraw()
        self._socket.close()
        self._folder.cleanup()

    def _receive(self) -> None:
        try:
            report = json.loads(self._socket.recv(1 << 16))
        except (TimeoutError, BlockingIOError):
            return
        if report["error"]:
            raise LoadFailed(report["error"])
        self.warm.add(report["pid"])

    def _on_report(self) -> None:
        try:
            self._receive()
        except LoadFailed as error:
            # The pool would replace the process for ever.  A worker that stops can be
            # restarted by its supervisor, and its messages go to workers that can serve.
            logger.critical("A replaced pool process could not load its models: %s", error)
            load_failed.send(sender=None, error=str(error))
            state.should_stop = os.EX_SOFTWARE

    def _require_alive(self, processes: list[Any]) -> None:
        for process in processes:
            if process.pid not in self.warm and process.exitcode is not None:
                self._receive()  # its report may still be unread
                raise LoadFailed(
                    f"pool process {process.pid} ended with status {process.exitcode}"
                    f" while loading its models"
                )


def end_loading(pool: Any) -> None:
    """End a pool whose processes may still load."""
    # Until a process has set its own signal handlers, it has the worker's, and misses SIGTERM.
    killer = threading.Timer(_GRACE, _kill, [pool_processes(pool)])
    killer.daemon = True
    killer.start()
    try:
        pool.on_terminate()
    finally:
        killer.cancel()


def _kill(processes: Iterable[Any]) -> None:
    for process in processes:
        if process.exitcode is None:
            with suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
