"""What supervisor says of the processes that it keeps alive."""

from __future__ import annotations

import re
import signal
import xmlrpc.client
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from supervisor.xmlrpc import Faults, SupervisorTransport

from celery_batch.errors import BatchError
from celery_batch.serve.programs import MARK, Program

__all__ = ["LOG", "READY", "Health", "SupervisorAway", "health", "restart", "table"]

#: Supervisor's own log, in which it tells of each start.
LOG = "supervisord.log"

#: The file whose time says when everything was seen to be ready.  Supervisor itself says of
#: a process that it runs only when some time has passed.
READY = "ready"

#: Bytes at the end of a log that are searched for an error.
_TAIL = 64_000

#: A line that tells of an error: Celery's and supervisor's words, or a traceback's last line.
_ERROR = re.compile(
    r"(.*\b(CRITICAL|ERROR)\b.*|Error: .+|(\w+\.)*\w+(Error|Exception|Failed|Exceeded)\b.*)"
)

#: What stands before an error's own words, and says nothing to whoever asks.
_PREFIX = re.compile(r"^(\[.*?\] |celery_batch\.errors\.\w+: )")

#: Supervisor's words for how a process has ended.
_END = re.compile(r"^(?:exit status (\d+)|terminated by (SIG\w+))")

#: What a shell adds to a signal's number, and so do keepers.
_SIGNALLED = 128

#: Supervisor's state -> what it means to whoever asks.
_WORDS = {
    "RUNNING": "running",
    "STARTING": "starting",
    "BACKOFF": "crashing",
    "EXITED": "crashing",
    "FATAL": "given up",
    "STOPPING": "stopping",
    "STOPPED": "stopped",
}

#: Characters of an error that a table has room for.
_WIDEST = 100


class SupervisorAway(BatchError):
    """Supervisor does not answer on its socket."""

    http = 503


@dataclass(frozen=True, slots=True)
class Health:
    """
    How one process fares.

    Args:
        program: What it is.
        state: ``"running"``, ``"starting"``, ``"crashing"`` (it has ended soon after its
            start, and is started again and again), ``"given up"``, ``"stopping"`` or
            ``"stopped"``.
        since: Seconds since it has last been started, or has ended.
        restarts: How often it was started after the first time.
        error: Why it has ended the last time, if it has.
        pid: Of the process that supervisor has started, 0 if it does not run.
    """

    program: Program
    state: str
    since: float
    restarts: int
    error: str
    pid: int


def health(running: Sequence[Program], folder: Path) -> list[Health]:
    """
    Ask supervisor how its processes fare.

    Args:
        running: What was started.
        folder: Where its socket and all logs are.

    Raises:
        SupervisorAway: It does not answer.
    """
    with _supervisor(folder) as supervisor:
        found = {each["name"]: each for each in supervisor.getAllProcessInfo()}
    told = (folder / LOG).read_text(errors="replace")
    return [_health(each, found[each.name], told, folder) for each in running]


def restart(group: str, folder: Path) -> None:
    """
    Stop the processes of a group, each when it has finished what it does, and start them again.

    Args:
        group: The group's name.
        folder: Where supervisor's socket is.

    Raises:
        SupervisorAway: It does not answer.
    """
    with _supervisor(folder) as supervisor:
        supervisor.stopProcessGroup(group)
        supervisor.startProcessGroup(group, False)  # noqa: FBT003 (do not wait)


@contextmanager
def _supervisor(folder: Path) -> Iterator[Any]:
    """Connect to supervisor's socket."""
    transport = SupervisorTransport(serverurl=f"unix://{folder / 'supervisor.sock'}")
    try:
        with closing(transport):
            proxy: Any = xmlrpc.client.ServerProxy("http://localhost", transport)
            yield proxy.supervisor
    except xmlrpc.client.Fault as error:
        if error.faultCode != Faults.SHUTDOWN_STATE:
            raise SupervisorAway(f"{folder}: supervisor does not answer: {error}") from error
        raise SupervisorAway(
            f"{folder}: everything that runs from here is being stopped"
        ) from error
    except (FileNotFoundError, ConnectionRefusedError) as error:
        raise SupervisorAway(f"{folder}: nothing runs from here: supervisor is gone") from error
    except (OSError, xmlrpc.client.Error) as error:
        raise SupervisorAway(f"{folder}: supervisor does not answer: {error}") from error


def _health(program: Program, info: dict[str, Any], told: str, folder: Path) -> Health:
    state = _WORDS.get(info["statename"], info["statename"].lower())
    began = info["start"] if info["pid"] else info["stop"] or info["start"]
    count = told.count(f"spawned: '{program.name}' with pid")
    of_late = told.rpartition(f"success: {program.name} entered RUNNING")[2]
    # In a loop it is being started most of the time; to be ended once is no loop.
    if state == "starting" and of_late.count(f"exited: {program.name} (") > 1:
        state = "crashing"
    elif state == "starting" and info["start"] <= _ready_since(folder):
        state = "running"
    return Health(
        program,
        state,
        max(0.0, info["now"] - began),
        max(0, count - 1),
        _why_it_ended(program.name, told, _lives(folder / f"{program.name}.log"), info["pid"]),
        info["pid"],
    )


def _ready_since(folder: Path) -> float:
    """Return when everything was ready; before all times, if it has not been."""
    try:
        return (folder / READY).stat().st_mtime
    except FileNotFoundError:
        return float("-inf")


def _lives(log: Path) -> list[str]:
    """Return what a process has logged of late, for each of its lives."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - _TAIL))
            return file.read().decode(errors="replace").split(f"{MARK} ")
    except FileNotFoundError:
        return [""]


def _why_it_ended(name: str, told: str, lives: Sequence[str], pid: int) -> str:
    """Return why a process has ended the last time: its own last words, or its exit code."""
    ends = _END.findall(told.rpartition(f"exited: {name} (")[2].partition("\n")[0])
    if not ends:
        return ""
    code, by_signal = ends[0]
    if by_signal or int(code) > _SIGNALLED:
        return f"killed by {by_signal or signal.Signals(int(code) - _SIGNALLED).name}"
    last = lives[-2] if pid and len(lives) > 1 else lives[-1]
    # With a critical error Celery's worker ends; what it says of requests comes before.
    lines = re.split(r"(?m)^(?=.* CRITICAL/)", last)[-1].splitlines()
    words = next((line.strip() for line in reversed(lines) if _ERROR.fullmatch(line)), "")
    return _PREFIX.sub("", words) or f"exit code {code}"


def table(rows: Sequence[Health]) -> str:
    """
    Write a table for people, one line for each process.

    Args:
        rows: How they fare.
    """
    heads = ("program", "device", "state", "since", "restarts", "last error")
    texts = [
        (
            row.program.name,
            row.program.device or "-",
            row.state,
            str(timedelta(seconds=int(row.since))),
            str(row.restarts),
            row.error[:_WIDEST] or "-",
        )
        for row in rows
    ]
    widths = [max(map(len, column)) for column in zip(heads, *texts, strict=True)]
    return "\n".join(
        "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip()
        for line in (heads, *texts)
    )
