"""The processes of a served handle, and their state as supervisor has it."""

from __future__ import annotations

import os
import re
import shlex
import signal
import sys
import xmlrpc.client
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from supervisor.xmlrpc import Faults, SupervisorTransport

from celery_batch.errors import BatchError
from celery_batch.runtime.devices import usable_cores
from celery_batch.serve.config import ServeConfig

__all__ = [
    "DEVICE",
    "GRACE",
    "LOG",
    "MARK",
    "READY",
    "WORKERS",
    "Health",
    "Program",
    "SupervisorAway",
    "environment",
    "health",
    "programs",
    "restart",
    "supervisor_conf",
    "table",
]


#: The environment variable that names a worker's device.
DEVICE = "CELERY_BATCH_SERVE_DEVICE"


#: The group of the workers, which are stopped at once and not in turn.
WORKERS = "workers"


#: Seconds a process gets to finish what it does.
GRACE = 10


#: Begins the line in a log with which a process begins.
MARK = "=== starts"


#: Seconds after which a process counts as started: one that ends sooner is started again
#: after a pause that grows by a second each time.
_START = 30


#: How often a process may end too soon, one time after the other, before it is given up;
#: by then the pauses have taken more than an hour.
_TRIES = 100


_RPC = "supervisor.rpcinterface:make_main_rpcinterface"


@dataclass(frozen=True, slots=True)
class Program:
    """
    A process that is kept alive.

    Args:
        name: As the status shows it.
        command: Its command line.
        rank: Those of a low rank are started first and stopped last.
        device: Where its handle lives, if it has one.
        node: What the worker is called in Celery, without its host.
    """

    name: str
    command: Sequence[str]
    rank: int
    device: str = ""
    node: str = ""


def programs(config: ServeConfig, folder: Path) -> Iterator[Program]:
    """
    Name all processes that serve a configuration.

    Args:
        config: As it was read: without a broker, a Redis of its own is among them.
        folder: Private, for sockets and logs.
    """
    celery = (sys.executable, "-m", "celery")
    if config.broker is None:
        yield Program("redis", (*celery, "batch", "redis", "--dir", str(folder / "redis")), 10)
    options = ("--concurrency=1", "--loglevel=WARNING", "--without-mingle", "--without-gossip")
    for device in config.devices:
        for slot in range(config.slots):
            name = f"{device.replace(':', '').replace('/', '-')}-{slot}"
            node = f"{config.queue}.{name}.{config.port}"
            worker = (*celery, "-A", "celery_batch.serve.worker", "worker", "-n", f"{node}@%h")
            yield Program(name, (*worker, *options), 20, device, node)
    for number in range(config.web_workers):
        name = "web" if config.web_workers == 1 else f"web-{number}"
        yield Program(name, (sys.executable, "-m", "celery_batch.serve.web"), 30)


def environment(
    config: ServeConfig, places: Sequence[Path], ours: Mapping[str, str]
) -> dict[str, str]:
    """
    Return the environment of supervisor and, inherited, of all programs.

    Args:
        config: What is served.
        places: Folders in which the handle's module is looked for.
        ours: This process's environment.
    """
    given = {**ours, **config.env}
    paths = [*map(str, places), *filter(None, [given.get("PYTHONPATH")])]
    # As many math threads as cores in every worker would only fight.
    workers = len(config.devices) * config.slots
    threads = str(max(usable_cores() // workers, 1))
    return {
        "OMP_NUM_THREADS": threads,
        **given,
        "CELERY_BATCH_KEEPER_GRACE": str(GRACE),
        "CELERY_BATCH_KEEPER_MARK": MARK,
        "PYTHONPATH": os.pathsep.join(paths),
        "PYTHONUNBUFFERED": "1",
    }


def supervisor_conf(running: Sequence[Program], folder: Path, reaper: Sequence[str]) -> str:
    """
    Write supervisor's configuration.

    Args:
        running: The programs.
        folder: Private, for its socket and all logs.
        reaper: A command line that runs the one after it, and ends it when supervisor
            is gone, killed or not.
    """
    workers = ",".join(program.name for program in running if program.device)
    sections = [
        ("unix_http_server", {"file": _plain(folder / "supervisor.sock"), "chmod": "0700"}),
        ("rpcinterface:supervisor", {"supervisor.rpcinterface_factory": _RPC}),
        (
            "supervisord",
            {
                "nodaemon": "true",
                "logfile": "/dev/null",  # it says everything on its standard output, too
                "logfile_maxbytes": "0",
                "pidfile": _plain(folder / "supervisord.pid"),
                "childlogdir": _plain(folder),
            },
        ),
        (f"group:{WORKERS}", {"programs": workers, "priority": "20"}),
        *((f"program:{each.name}", _program(each, folder, reaper)) for each in running),
    ]
    return "\n".join(
        "\n".join([f"[{name}]", *(f"{key} = {value}" for key, value in values.items()), ""])
        for name, values in sections
    )


def _program(program: Program, folder: Path, reaper: Sequence[str]) -> dict[str, str]:
    environment = {"environment": f'{DEVICE}="{program.device}"'} if program.device else {}
    return {
        "command": _plain(shlex.join([*reaper, *program.command])),
        "priority": str(program.rank),
        "autorestart": "true",
        "startsecs": str(_START),
        "startretries": str(_TRIES),
        "stopwaitsecs": str(GRACE + 2),  # the keeper kills first, and knows whom
        "redirect_stderr": "true",
        "stdout_logfile": _plain(folder / f"{program.name}.log"),
        "stdout_logfile_maxbytes": "10MB",
        "stdout_logfile_backups": "1",
        **environment,
    }


def _plain(text: object) -> str:
    """Write a text so that supervisor does not take parts of it for its own variables."""
    return str(text).replace("%", "%%")


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
