"""What supervisor keeps alive: the workers, the web server, and a Redis if need be."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from celery_batch.serve.config import ServeConfig
from celery_batch.serving.devices import usable_cores

__all__ = [
    "DEVICE",
    "GRACE",
    "MARK",
    "WORKERS",
    "Program",
    "environment",
    "programs",
    "supervisor_conf",
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


def supervisor_conf(running: Sequence[Program], folder: Path, keeper: Sequence[str]) -> str:
    """
    Write supervisor's configuration.

    Args:
        running: The programs.
        folder: Private, for its socket and all logs.
        keeper: A command line that runs the one after it, and ends it when supervisor
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
        *((f"program:{each.name}", _program(each, folder, keeper)) for each in running),
    ]
    return "\n".join(
        "\n".join([f"[{name}]", *(f"{key} = {value}" for key, value in values.items()), ""])
        for name, values in sections
    )


def _program(program: Program, folder: Path, keeper: Sequence[str]) -> dict[str, str]:
    environment = {"environment": f'{DEVICE}="{program.device}"'} if program.device else {}
    return {
        "command": _plain(shlex.join([*keeper, *program.command])),
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
