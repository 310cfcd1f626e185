"""What supervisor says of the processes that it keeps alive."""

from __future__ import annotations

import re
import xmlrpc.client
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from supervisor.xmlrpc import SupervisorTransport

from celery_batch.errors import BatchError
from celery_batch.serve.programs import Program

__all__ = ["LOG", "Health", "SupervisorAway", "health", "table"]

#: Supervisor's own log, in which it tells of each start.
LOG = "supervisord.log"

#: Bytes at the end of a log that are searched for an error.
_TAIL = 64_000

#: A line that tells of an error: Celery's and supervisor's words, or a traceback's last line.
_ERROR = re.compile(
    r"(.*\b(CRITICAL|ERROR)\b.*|Error: .+|(\w+\.)*\w+(Error|Exception|Failed|Exceeded)\b.*)"
)

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
        state: ``"running"``, ``"starting"``, ``"crashing"`` (it ends soon after each
            start, and is started again after a pause), ``"given up"``, ``"stopping"``
            or ``"stopped"``.
        since: Seconds since it has last been started, or has ended.
        restarts: How often it was started after the first time.
        error: The last line in its log that tells of an error, if any.
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
    transport = SupervisorTransport(serverurl=f"unix://{folder / 'supervisor.sock'}")
    try:
        with closing(transport):
            proxy: Any = xmlrpc.client.ServerProxy("http://localhost", transport)
            found = {each["name"]: each for each in proxy.supervisor.getAllProcessInfo()}
    except (OSError, xmlrpc.client.Error) as error:
        raise SupervisorAway(f"{folder}: supervisor does not answer: {error}") from error
    starts = (folder / LOG).read_text(errors="replace")
    return [_health(each, found[each.name], starts, folder) for each in running]


def _health(program: Program, info: dict[str, Any], starts: str, folder: Path) -> Health:
    state = _WORDS.get(info["statename"], info["statename"].lower())
    began = info["start"] if info["pid"] else info["stop"] or info["start"]
    count = starts.count(f"spawned: '{program.name}' with pid")
    return Health(
        program,
        state,
        max(0.0, info["now"] - began),
        max(0, count - 1),
        _last_error(folder / f"{program.name}.log"),
        info["pid"],
    )


def _last_error(log: Path) -> str:
    try:
        with log.open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - _TAIL))
            lines = file.read().decode(errors="replace").splitlines()
    except FileNotFoundError:
        return ""
    return next((line.strip() for line in reversed(lines) if _ERROR.fullmatch(line)), "")


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
