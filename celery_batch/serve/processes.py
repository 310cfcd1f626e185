"""The processes of a served handle: their commands, restarts and status."""

from __future__ import annotations

import itertools
import json
import math
import os
import re
import shutil
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path

from celery_batch.formatting import aligned
from celery_batch.processes.managed_process import ManagedProcess, end_of, signal_of
from celery_batch.processes.supervisor import STEADY, Supervised
from celery_batch.runtime.devices import usable_cores
from celery_batch.serve.config import ServeConfig

__all__ = [
    "DEVICE",
    "GRACE",
    "ProcessStatus",
    "ServedProcess",
    "environment",
    "processes",
    "read_status",
    "table",
    "write_status",
]

#: The environment variable that names a worker's device.
DEVICE = "CELERY_BATCH_SERVE_DEVICE"

#: Seconds a process gets to finish what it does.
GRACE = 10

#: How many early exits in a row a process may have; the pauses have then taken about 50 minutes.
_TRIES = 100

#: The file with the status of all processes.
_STATUS = "status.json"

#: Bytes of a log at which it is moved to ``.1`` and begun anew.
_LARGEST_LOG = 10 << 20

#: Bytes at the end of a log that are searched for an error.
_TAIL = 64_000

#: A line that reports an error: a log record of Celery's, or the last line of a traceback.
_ERROR = re.compile(
    r"(.*\b(CRITICAL|ERROR)\b.*|Error: .+|(\w+\.)*\w+(Error|Exception|Failed|Exceeded)\b.*)"
)

#: The first line of a traceback.
_TRACEBACK = "Traceback (most recent call last)"

#: What a worker's main process logs when a pool process ends, and before that at a hard limit.
_LOSS = re.compile(
    r"/MainProcess\] (?:(Hard time limit \S+ exceeded) for"
    r"|Process '.+' pid:\d+ exited with '(.+)')"
)

#: What precedes an error's message and does not help a reader.
_PREFIX = re.compile(r"^(\[.*?\] |celery_batch\.errors\.\w+: |Error: )")

#: Characters of an error that a table has room for.
_WIDEST = 100


def environment(
    config: ServeConfig, places: Sequence[Path], inherited: Mapping[str, str]
) -> dict[str, str]:
    """Return the environment of all processes."""
    given = {**inherited, **config.env}
    paths = [*map(str, places), *filter(None, [given.get("PYTHONPATH")])]
    # As many math threads as cores in every worker would only fight.
    workers = len(config.devices) * config.slots
    threads = str(max(usable_cores() // workers, 1))
    return {
        "OMP_NUM_THREADS": threads,
        **given,
        "PYTHONPATH": os.pathsep.join(paths),
        "PYTHONUNBUFFERED": "1",
    }


@dataclass(frozen=True, slots=True)
class ProcessStatus:
    """The status of one process."""

    name: str
    #: Where its handle lives, if it has one.
    device: str
    #: ``"running"``, ``"starting"``, ``"crashing"`` (it ended soon after its start, and is started
    #: again and again) or ``"given up"``.
    state: str
    #: When it was last started, or ended; in seconds since the epoch.
    since: float
    #: How often it, or the pool process of a worker, was started after the first time.
    restarts: int
    #: Why it, or the pool process, ended the last time; empty if none has.
    error: str
    #: Of its reaper; 0 if it does not run.
    pid: int


class ServedProcess(Supervised):
    """A process of a served handle, and its successors."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        rank: int,
        log: Path,
        env: Mapping[str, str],
        device: str = "",
        node: str = "",
    ) -> None:
        super().__init__(name)
        self.command = command
        #: Those of a low rank are started first and stopped last.
        self.rank = rank
        self.log = log
        self.device = device
        #: A worker's name in Celery, without its host.
        self.node = node
        #: Whether the process that runs was seen to serve.
        self.is_ready = False
        #: Whether another one is started after its end.
        self.is_replaced = True
        #: Why the last process ended, and the end of its log.
        self.error = self.last_lines = ""
        self._env = {**env, DEVICE: device} if device else env
        self._since = time.time()
        self._log_begin = 0
        #: Pool processes that the worker has replaced, and why the last of them ended.
        self._losses, self._loss, self._limit = 0, "", ""
        #: Up to where they were read in the log.
        self._log_read = 0

    def check(self) -> None:
        """Start a process where none runs and the pause is over; keep the log small."""
        super().check()
        with suppress(OSError):  # the log was removed, or the disk is full
            if self.device:
                self._read_losses()
            if self.log.stat().st_size > _LARGEST_LOG:
                # The processes write at its end, wherever that is.
                shutil.copyfile(self.log, f"{self.log}.1")
                os.truncate(self.log, 0)
                self._log_begin = self._log_read = 0

    def _read_losses(self) -> None:
        """Count the pool processes that the worker has replaced since the last look."""
        with self.log.open("rb") as file:
            file.seek(self._log_read)
            lines = [line for line in file if line.endswith(b"\n")]
        self._log_read += sum(map(len, lines))
        for found in map(_LOSS.search, (line.decode(errors="replace") for line in lines)):
            if found is None:
                continue
            limit, end = found.groups()
            if end:
                self._losses += 1
                self._loss = f"pool process: {self._limit or end}"
            self._limit = limit or ""

    @property
    def state(self) -> str:
        """How it is, as the status shows it."""
        if self.process is None:
            return "crashing" if self.due < math.inf else "given up"
        if time.monotonic() - self.started >= STEADY or self.is_ready:
            return "running"
        return "crashing" if self.early_exits > 1 else "starting"

    def status(self) -> ProcessStatus:
        """Return its status."""
        return ProcessStatus(
            self.name,
            self.device,
            self.state,
            self._since,
            max(0, self.starts - 1) + self._losses,
            self._loss or self.error,
            self.process.pid if self.process else 0,
        )

    def how_it_ended(self) -> str:
        """Return why the last process ended, with the end of its log."""
        words = f"{self.name} ended while it started: {self.error}"
        return f"{words}\n{self.last_lines}" if self.last_lines else words

    def _start(self) -> ManagedProcess:
        self.is_ready, self._since = False, time.time()
        self._log_begin = self.log.stat().st_size if self.log.exists() else 0
        return ManagedProcess(self.command, self.log, env=self._env, orphan_grace=GRACE)

    def _exit_code(self) -> int | None:
        code: int | None = self.process.exit_code
        return code

    def _ended(self, code: int) -> None:
        if self.device:
            with suppress(OSError):
                self._read_losses()  # what follows them is the worker's own end
        self._since, self._loss = time.time(), ""
        self.error, says_all = self._why_ended(code)
        self.last_lines = "" if says_all else self.process.tail()
        self.process.stop()  # which closes its pipe
        if self.early_exits >= _TRIES or not self.is_replaced:
            self.due = math.inf

    def _why_ended(self, code: int) -> tuple[str, bool]:
        """Return the signal that ended it, the last error in its log, or its exit code.

        The second value says whether that is all that its log has of it.
        """
        if killed := signal_of(code):
            return killed, False
        text = end_of(self.log, _TAIL, self._log_begin)
        # Celery's worker ends after a critical error; its errors before that concern requests.
        lines = re.split(r"(?m)^(?=.* CRITICAL/)", text)[-1].splitlines()
        message = next((line.strip() for line in reversed(lines) if _ERROR.fullmatch(line)), "")
        says_all = message.startswith("[") and "CRITICAL/" in message and _TRACEBACK not in text
        return _PREFIX.sub("", message) or f"exit code {code}", says_all


def processes(config: ServeConfig, folder: Path, env: Mapping[str, str]) -> Iterator[ServedProcess]:
    """Yield all processes that serve a configuration as it was read, not started."""
    celery = (sys.executable, "-m", "celery")
    if config.broker is None:
        redis = (*celery, "batch", "redis", "--dir", str(folder / "redis"))
        yield ServedProcess("redis", redis, 10, folder / "redis.log", env)
    options = ("--concurrency=1", "--loglevel=WARNING", "--without-mingle", "--without-gossip")
    for device, slot in itertools.product(config.devices, range(config.slots)):
        name = f"{device.replace(':', '').replace('/', '-')}-{slot}"
        node = f"{config.queue}.{name}.{config.port}"
        worker = (*celery, "-A", "celery_batch.serve.worker", "worker", "-n", f"{node}@%h")
        yield ServedProcess(
            name, (*worker, *options), 20, folder / f"{name}.log", env, device, node
        )
    web = (sys.executable, "-m", "celery_batch.serve.web")
    for number in range(config.web_workers):
        name = "web" if config.web_workers == 1 else f"web-{number}"
        yield ServedProcess(name, web, 30, folder / f"{name}.log", env)


def write_status(folder: Path, title: str, rows: Sequence[ProcessStatus]) -> None:
    """Write the status of all processes for `read_status`."""
    new = folder / f"{_STATUS}.new"
    new.write_text(json.dumps([title, *map(asdict, rows)]), encoding="utf-8")
    new.replace(folder / _STATUS)


def read_status(folder: Path) -> tuple[str, list[ProcessStatus]] | None:
    """Return the title and the status of the processes that run from a folder, if any do."""
    try:
        title, *rows = json.loads((folder / _STATUS).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    return title, [ProcessStatus(**row) for row in rows]


def table(rows: Sequence[ProcessStatus]) -> str:
    """Write a table for people, one line for each process."""
    heads = ("program", "device", "state", "since", "restarts", "last error")
    now = time.time()
    texts = [
        (
            row.name,
            row.device or "-",
            row.state,
            str(timedelta(seconds=max(0, int(now - row.since)))),
            str(row.restarts),
            row.error[:_WIDEST] or "-",
        )
        for row in rows
    ]
    return aligned([heads, *texts])
