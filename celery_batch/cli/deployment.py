"""The processes of `celery batch serve`, and their restart when files change."""

from __future__ import annotations

import os
import shutil
import socket
import sys
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Self

from kombu.exceptions import OperationalError

from celery_batch.cli.run_folder import ASKED, clear
from celery_batch.config import Settings
from celery_batch.errors import ConfigurationError
from celery_batch.processes import reaper
from celery_batch.processes.managed_process import ManagedProcess, ServerFailed, wait_until
from celery_batch.processes.redis_server import RedisServer, find_redis_server
from celery_batch.serve.app import CONFIG, make_app
from celery_batch.serve.config import ServeConfig
from celery_batch.serve.processes import (
    GRACE,
    LOG,
    READY,
    WORKERS,
    Health,
    SupervisorAway,
    environment,
    health,
    programs,
    restart,
    supervisor_conf,
)
from celery_batch.serve.readiness import warm_workers
from celery_batch.serve.sockets import listening

__all__ = [
    "Deployment",
    "Reloader",
    "source_of",
]


#: Seconds in which the web server has to say that it is there.
_HEALTHZ = 5.0


#: Variables that Celery would heed more than our configuration; a shell may have them for others.
_ELSEWHERE = (
    *("CELERY_BROKER_URL", "CELERY_BROKER_READ_URL", "CELERY_BROKER_WRITE_URL"),
    "CELERY_RESULT_BACKEND",
)


#: States of a process that has ended soon after its start.
_FAILED = ("crashing", "given up")


#: Lines of a log that are shown when its process ends too soon.
_LINES = 20


class Deployment:
    """
    All processes of a served handle.

    Args:
        config: What is served.
        folder: For its sockets and logs; made, private, and removed after a good end.
    """

    def __init__(self, config: ServeConfig, folder: Path) -> None:
        self.folder = folder.absolute()
        self._asked = config
        self.programs = list(programs(config, self.folder))
        self._managed: ManagedProcess | None = None

    @classmethod
    def running_in(cls, folder: Path) -> Self:
        """
        Look at one that another process runs.

        Args:
            folder: Its folder.

        Raises:
            ConfigurationError: There is none.
        """
        try:
            config = ServeConfig.from_json((folder / ASKED).read_text(encoding="utf-8"))
        except OSError as error:
            raise ConfigurationError(f"{folder}: nothing is served from here: {error}") from error
        return cls(config, folder)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, _trace: object) -> None:
        if self._managed is None:
            return
        # In turn: the web server, the workers, Redis; each has its own time to end.
        self._managed.stop(3 * GRACE)
        if kind is None or not issubclass(kind, Exception):
            shutil.rmtree(self.folder, ignore_errors=True)

    @cached_property
    def config(self) -> ServeConfig:
        """What is served, with the URL of its broker."""
        broker = self._asked.broker or RedisServer(self.folder / "redis").url
        return replace(self._asked, broker=broker)

    @property
    def url(self) -> str:
        """Where clients on this machine post to."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.config.host, self.config.host)  # noqa: S104
        return f"http://{f'[{host}]' if ':' in host else host}:{self.config.port}/predict"

    def start(self, beside: Path) -> None:
        """
        Start everything; `wait_until_ready` says when it serves.

        Args:
            beside: The folder of the configuration file, where the handle's module is
                looked for after the current one.

        Raises:
            ConfigurationError: The folder or the port is in use, or there is no Redis.
        """
        for variable in _ELSEWHERE:
            os.environ.pop(variable, None)
        _refuse_taken_port(self.config)
        if self._asked.broker is None:
            find_redis_server()
        else:
            _refuse_missing_broker(self.config)
        clear(self.folder)
        (self.folder / ASKED).write_text(self._asked.to_json(), encoding="utf-8")
        served = self.folder / "serve.json"
        served.write_text(self.config.to_json(), encoding="utf-8")
        keep = [sys.executable, "-I", "-S", reaper.__file__, ""]
        conf = self.folder / "supervisord.conf"
        conf.write_text(supervisor_conf(self.programs, self.folder, keep), encoding="utf-8")
        env = environment(self._asked, [Path.cwd(), beside.absolute()], os.environ)
        self._managed = ManagedProcess(
            [sys.executable, "-m", "supervisor.supervisord", "-n", "-c", str(conf)],
            self.folder / LOG,
            env={**env, CONFIG: str(served), "TMPDIR": str(self.folder)},
        )

    def wait_until_ready(self) -> None:
        """
        Return when every worker has its handle loaded and the web server answers.

        Raises:
            ServerFailed: A process ended meanwhile; with the last lines of its log.
        """
        with make_app(self.config) as app:
            timeout = Settings.of(app).load_timeout
        wait_until(
            self._why_not_ready,
            [self._require_child()],
            what=f"serving {self.config.handle}",
            timeout=timeout,
        )
        (self.folder / READY).touch()

    def restart_workers(self) -> None:
        """
        Have each worker finish what it runs, and start again.

        Raises:
            SupervisorAway: Supervisor does not answer.
        """
        restart(WORKERS, self.folder)

    def why_crashing(self) -> str:
        """
        Return why a worker ends soon after its start; empty if none does.

        Raises:
            SupervisorAway: Supervisor does not answer.
        """
        for row in self.health():
            if row.program.device and row.state in _FAILED:
                return _last_words(row, self.folder)
        return ""

    def why_not_loaded(self) -> str:
        """Return which workers have not loaded their handle; empty if all have."""
        host = socket.gethostname()  # others may serve the same queue
        wanted = {f"{program.node}@{host}" for program in self.programs if program.node}
        try:
            with make_app(self.config) as app:
                warm = warm_workers(app, self.config.task_name)
        except OperationalError as error:
            return f"the broker cannot be reached: {error}"
        cold = sorted(wanted - warm)
        return f"no handle yet in {', '.join(cold)}" if cold else ""

    def warnings(self) -> list[str]:
        """Return what the handle, or what we say of it, has warned of while it was loaded."""
        first = next(program for program in self.programs if program.device)
        lines = (self.folder / f"{first.name}.log").read_text(errors="replace").splitlines()
        return [line.partition("] ")[2] for line in lines if "WARNING/ForkPoolWorker" in line]

    def ended(self, seconds: float) -> bool:
        """Wait for supervisor to end, this many seconds at most; say whether it has."""
        return self._require_child().wait(seconds)

    def check(self) -> None:
        """
        Do nothing while supervisor runs.

        Raises:
            ServerFailed: It has ended; with the last lines of its log.
        """
        self._require_child().check()

    def health(self) -> list[Health]:
        """
        Return how each process fares.

        Raises:
            SupervisorAway: Supervisor does not answer.
        """
        return health(self.programs, self.folder)

    def _why_not_ready(self) -> str:
        try:
            rows = self.health()
        except SupervisorAway as error:
            return str(error)
        for row in rows:
            if row.restarts or row.state in _FAILED:
                raise ServerFailed(_last_words(row, self.folder))
        return self.why_not_loaded() or self._why_no_web()

    def _why_no_web(self) -> str:
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            opener.open(f"{self.url.removesuffix('predict')}healthz", timeout=_HEALTHZ).close()
        except OSError as error:
            return f"the web server does not answer: {error}"
        return ""

    def _require_child(self) -> ManagedProcess:
        if self._managed is None:
            raise ConfigurationError("nothing is served yet: call start() first")
        return self._managed


def _refuse_taken_port(config: ServeConfig) -> None:
    try:
        for each in listening(config.host, config.port):
            each.close()
    except OSError as error:
        where = f"{config.host}, port {config.port}"
        raise ConfigurationError(f"the web server cannot listen on {where}: {error}") from error


def _refuse_missing_broker(config: ServeConfig) -> None:
    with make_app(config) as app, app.connection_for_write() as connection:
        try:
            connection.ensure_connection(max_retries=2, interval_start=0.2, interval_step=0.2)
        except OperationalError as error:
            where = connection.as_uri()  # without its password
            raise ConfigurationError(f"Broker: {where} cannot be reached: {error}") from error


def _last_words(row: Health, folder: Path) -> str:
    log = folder / f"{row.program.name}.log"
    lines = log.read_text(errors="replace").splitlines()[-_LINES:]
    return "\n".join(
        [f"{row.program.name} ended while it started: {row.error}", f"--- the end of {log}", *lines]
    )


def source_of(handle: str, folders: Sequence[str]) -> Path:
    """
    Return the file of a handle's module, which is not imported.

    Args:
        handle: As in the configuration.
        folders: Where modules are looked for.

    Raises:
        ConfigurationError: There is no such module, or it has no file.
    """
    module = handle.rpartition(":")[0] or "handle"
    origin, places = None, list(folders)
    for part in module.split("."):
        spec = PathFinder.find_spec(part, places)
        if spec is None:
            raise ConfigurationError(f"Handle: no module {module} for {handle}")
        origin, places = spec.origin, list(spec.submodule_search_locations or ())
    if origin is None:
        raise ConfigurationError(f"--reload: {module} is a folder without an __init__.py")
    return Path(origin)


class Reloader:
    """
    Looks at the Python files beside a handle's module, and restarts the workers.

    Args:
        deployment: Running.
        source: The module's file.
    """

    def __init__(self, deployment: Deployment, source: Path) -> None:
        self._deployment = deployment
        self._folder = source.parent
        self._times = dict(self._look())
        self._is_loading = False

    def step(self) -> str:
        """Look once; return what the user is told of it, if anything."""
        times = dict(self._look())
        changed = sorted(path.name for path, _ in times.items() ^ self._times.items())
        if changed:
            self._times, self._is_loading = times, True
            self._deployment.restart_workers()
            return f"{changed[0]} has changed: the workers have been restarted"
        if not self._is_loading:
            return ""
        failure = self._deployment.why_crashing()
        if failure or not self._deployment.why_not_loaded():
            self._is_loading = False
            return failure or f"{self._deployment.config.handle} is ready again"
        return ""

    def _look(self) -> Iterator[tuple[Path, int]]:
        for path in self._folder.glob("*.py"):
            try:
                yield path, path.stat().st_mtime_ns
            except FileNotFoundError:  # it is being written anew
                continue
