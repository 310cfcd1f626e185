"""The processes of `celery batch serve`, and their restart when files change."""

from __future__ import annotations

import itertools
import os
import shutil
import socket
import sys
import time
import urllib.request
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from importlib.machinery import PathFinder
from pathlib import Path
from typing import IO, Any, Self

import click
from kombu.exceptions import OperationalError

from celery_batch.cluster.control_client import ControlClient
from celery_batch.config import Settings
from celery_batch.errors import ConfigurationError
from celery_batch.processes.managed_process import ServerFailed, wait_until
from celery_batch.processes.redis_server import RedisServer, find_redis_server
from celery_batch.runtime.devices import shown, why_doubtful
from celery_batch.serve.app import CONFIG, make_app
from celery_batch.serve.config import ServeConfig, devices_of, make_config, read_config
from celery_batch.serve.processes import (
    GRACE,
    ProcessStatus,
    ServedProcess,
    environment,
    processes,
    write_status,
)
from celery_batch.serve.run_folder import CONFIG_FILE, clear, lock, usual_folder
from celery_batch.serve.sockets import listening

__all__ = ["Deployment", "configured", "run", "source_of", "warm_workers"]

#: Seconds between two looks at the processes and, with --reload, at the files.
_POLL = 0.2

#: Seconds without a further reply after which all workers have said what they have loaded.
_LISTEN = 1.0

#: Most seconds for a response of the web server to a health check.
_HEALTHZ = 5.0

#: Variables that override our configuration of Celery; a shell may have them for another app.
_OVERRIDES = (
    "CELERY_BROKER_URL",
    "CELERY_BROKER_READ_URL",
    "CELERY_BROKER_WRITE_URL",
    "CELERY_RESULT_BACKEND",
)


class Deployment:
    """All processes of a served handle."""

    def __init__(self, config: ServeConfig, folder: Path) -> None:
        #: For sockets and logs: made, private, and removed after a good end.
        self.folder = folder.absolute()
        self._given = config
        #: What is served, with the URL of its broker.
        self.config = replace(
            config, broker=config.broker or RedisServer(self.folder / "redis").url
        )
        self.processes: list[ServedProcess] = []
        self._status: list[ProcessStatus] = []
        self._lock: IO[str] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, _trace: object) -> None:
        if self._lock is None:
            return
        # The web server first, then the workers, then Redis.
        for _, group in itertools.groupby(reversed(self.processes), lambda each: each.rank):
            _stop(group)
        if kind is None or not issubclass(kind, Exception):
            shutil.rmtree(self.folder, ignore_errors=True)
        self._lock.close()

    @property
    def url(self) -> str:
        """Where clients on this machine post to."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.config.host, self.config.host)  # noqa: S104
        return f"http://{f'[{host}]' if ':' in host else host}:{self.config.port}/predict"

    def start(self, beside: Path) -> None:
        """Start everything; `wait_until_ready` returns when it serves."""
        for variable in _OVERRIDES:
            os.environ.pop(variable, None)
        _refuse_taken_port(self.config)
        if self._given.broker is None:
            find_redis_server()
        else:
            _refuse_missing_broker(self.config)
        clear(self.folder)
        self._lock = lock(self.folder)
        path = self.folder / CONFIG_FILE
        path.write_text(self.config.to_json(), encoding="utf-8")
        env = environment(self._given, [Path.cwd(), beside.absolute()], os.environ)
        env |= {CONFIG: str(path), "TMPDIR": str(self.folder)}
        self.processes = list(processes(self._given, self.folder, env))
        for each in self.processes:
            each.is_replaced = False  # until all serve: an end before that ends the command
        self.check()

    def wait_until_ready(self) -> None:
        """Return when every worker has its handle loaded and the web server answers."""
        with make_app(self.config) as app:
            timeout = Settings.of(app).load_timeout
        wait_until(
            self._why_not_ready,
            [],  # it raises itself if one has ended
            what=f"serving {self.config.handle}",
            timeout=timeout,
        )
        for each in self.processes:
            each.is_ready = each.is_replaced = True
        self.check()

    def check(self) -> None:
        """Restart the processes that have ended; to be called several times a second."""
        for each in self.processes:
            each.check()
        status = [each.status() for each in self.processes]
        if status != self._status:
            title = f"{self.config.handle} at {self.url} (logs in {self.folder})"
            with suppress(OSError):  # the disk is full: the next call tries again
                write_status(self.folder, title, status)
                self._status = status

    def restart_workers(self) -> None:
        """Have each worker finish what it runs, and start again."""
        workers = [each for each in self.processes if each.device]
        _stop(workers)
        for each in workers:
            each.reset()
        self.check()

    def why_crashing(self) -> str:
        """Return why a worker ends soon after its start; empty if none does."""
        crashing = (each for each in self.processes if each.state in ("crashing", "given up"))
        return next((each.how_it_ended() for each in crashing if each.device), "")

    def why_not_loaded(self) -> str:
        """Return which workers have not loaded their handle; empty if all have."""
        host = socket.gethostname()  # others may serve the same queue
        wanted = {f"{each.node}@{host}" for each in self.processes if each.node}
        try:
            with make_app(self.config) as app:
                warm = warm_workers(app, self.config.task_name)
        except OperationalError as error:
            return f"the broker cannot be reached: {error}"
        cold = sorted(wanted - warm)
        return f"no handle yet in {', '.join(cold)}" if cold else ""

    def warnings(self) -> list[str]:
        """Return the warnings that were logged while the handle was loaded."""
        first = next(each for each in self.processes if each.device)
        lines = first.log.read_text(errors="replace").splitlines()
        return [line.partition("] ")[2] for line in lines if "WARNING/ForkPoolWorker" in line]

    def _why_not_ready(self) -> str:
        self.check()
        for each in self.processes:
            if each.error:
                raise ServerFailed(each.how_it_ended())
        return self.why_not_loaded() or self._why_no_web()

    def _why_no_web(self) -> str:
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            opener.open(f"{self.url.removesuffix('predict')}healthz", timeout=_HEALTHZ).close()
        except OSError as error:
            return f"the web server does not answer: {error}"
        return ""


def warm_workers(app: Any, task: str) -> set[str]:
    """Return the names of an app's workers that take a task and have loaded its model."""
    with closing(ControlClient(app)) as client:
        answers = client.ask_batch_workers("batch_status", _LISTEN)
    return {
        name
        for name, tasks in answers.items()
        if (state := tasks.get(task)) and state["warm"] and not state["paused"]
    }


def _stop(group: Iterable[ServedProcess]) -> None:
    running = [each.process for each in group if each.process is not None]
    for process in running:
        process.terminate(GRACE)
    for process in running:
        process.stop(GRACE)


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


def source_of(handle: str, folders: Sequence[str]) -> Path:
    """Return the file of a handle's module, without importing it."""
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
    """Restarts the workers when Python files beside a handle's module change."""

    def __init__(self, deployment: Deployment, source: Path) -> None:
        self._deployment = deployment
        self._folder = source.parent
        self._times = dict(self._modification_times())
        self._is_loading = False

    def step(self) -> str:
        """Look at the files once; return a message for the user, or nothing."""
        times = dict(self._modification_times())
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

    def _modification_times(self) -> Iterator[tuple[Path, int]]:
        for path in self._folder.glob("*.py"):
            try:
                yield path, path.stat().st_mtime_ns
            except FileNotFoundError:  # it is being replaced
                continue


def run(
    config: ServeConfig, beside: Path, directory: Path | None = None, *, reload: bool = False
) -> None:
    """Serve a handle, whose module is here or in `beside`, until Ctrl-C."""
    path = config.env.get("PYTHONPATH", "").split(os.pathsep)
    folders = [str(Path.cwd()), str(beside.absolute()), *filter(None, path), *sys.path]
    source = source_of(config.handle, folders) if reload else None
    with Deployment(config, directory or usual_folder(config.port)) as deployment:
        _start(deployment, beside)
        reloader = Reloader(deployment, source) if source else None
        while True:
            time.sleep(_POLL)
            deployment.check()
            if reloader and (message := reloader.step()):
                click.echo(message, err=True)


def configured(given: str | Path, options: Mapping[str, Any]) -> ServeConfig:
    """Return what a handle or a configuration file says, with the options that are not None."""
    fields = {name: value for name, value in options.items() if value is not None}
    if "devices" in fields:
        try:
            fields["devices"] = devices_of(fields["devices"])
        except ValueError as error:
            raise click.BadParameter(str(error), param_hint="--gpus") from error
    config = read_config(given) if isinstance(given, Path) else make_config(given)
    return replace(config, **fields)


def _start(deployment: Deployment, beside: Path) -> None:
    """Start everything, and print when it is ready."""
    config = deployment.config
    if doubt := why_doubtful(config.devices):
        click.echo(f"Warning: GPUs: {doubt}; write GPUs: cpu to serve without", err=True)
    click.echo(f"Starting {config.handle}; logs in {deployment.folder}", err=True)
    deployment.start(beside)
    deployment.wait_until_ready()
    workers = len(config.devices) * config.slots
    click.echo(deployment.url)
    click.echo(
        f"{config.handle} is ready on {shown(config.devices)}:"
        f" {workers} {'worker' if workers == 1 else 'workers'}, queue {config.queue}."
        f"  `celery batch status` shows their status; Ctrl-C stops them.",
        err=True,
    )
    for warning in deployment.warnings():
        click.echo(f"Warning: {warning}", err=True)
