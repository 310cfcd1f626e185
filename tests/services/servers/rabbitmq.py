"""A real RabbitMQ for the tests: found, started, stopped with us, apart from the system's."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
from pathlib import Path
from typing import Self

from kombu import Connection

from celery_batch.errors import ConfigurationError
from celery_batch.processes.managed_process import ManagedProcess, wait_until
from tests.services.servers.ports import quiet_port
from tests.services.servers.tls import Papers

__all__ = ["RabbitMQServer", "find_rabbitmq_server"]

#: Debian's program on the PATH changes the user, and refuses others than root and its own.
_UNWRAPPED = ("/usr/lib/rabbitmq/bin", "/usr/local/sbin", "/opt/homebrew/sbin", "/usr/sbin")

_NONE_FOUND = """no RabbitMQ server found. To get one:
  say "apt install rabbitmq-server" or "brew install rabbitmq" (its service need not run),
  or name its program in the environment variable RABBITMQ_SERVER."""

#: Seconds from the start to the first answer, on a slow machine under load.
_READY_TIMEOUT = 90.0
#: Seconds it gets to write its queues down before it is killed.
_STOP_GRACE = 20.0


def find_rabbitmq_server() -> str:
    """
    Return the path of a RabbitMQ server's program, one that any user may run.

    Raises:
        ConfigurationError: There is none, or ``$RABBITMQ_SERVER`` is not a program.
    """
    if named := os.environ.get("RABBITMQ_SERVER"):
        if program := shutil.which(named):
            return program
        raise ConfigurationError(f"RABBITMQ_SERVER: no such program: {named}")
    program = shutil.which("rabbitmq-server", path=os.pathsep.join(_UNWRAPPED))
    if program is None or shutil.which("epmd") is None:
        raise ConfigurationError(_NONE_FOUND)
    return program


class RabbitMQServer:
    """
    A RabbitMQ in a folder of its own, for as long as this process lives.

    It listens on loopback only, with a port mapper (epmd), a cookie and a home of
    its own.  After ``stop`` it can be started again, on the same port and with its
    durable queues, where a folder was given.

    Args:
        directory: Its folder: made if missing, never removed.  By default a
            temporary one, which goes when the server goes.
        papers: With these it has a second port, for TLS.
    """

    def __init__(
        self, directory: Path | str | None = None, *, papers: Papers | None = None
    ) -> None:
        self.directory = None if directory is None else Path(directory).absolute()
        self.port, self._epmd_port, self._distribution_port = (quiet_port() for _ in range(3))
        self.tls_port = quiet_port() if papers else None
        self._papers = papers
        self._is_temporary = directory is None
        self._epmd: ManagedProcess | None = None
        self._managed: ManagedProcess | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_exception: object) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"<RabbitMQServer in {self.directory}, {self._managed or 'stopped'}>"

    @property
    def url(self) -> str:
        """What to give Celery as the broker."""
        return f"amqp://guest:guest@127.0.0.1:{self.port}//"

    @property
    def child(self) -> ManagedProcess:
        """The running server process."""
        if self._managed is None:
            raise ConfigurationError("this RabbitMQ server is not running: call start() first")
        return self._managed

    def start(self) -> None:
        """
        Start the server; return when it answers.

        Raises:
            ConfigurationError: No server was found, or this one runs already.
            ServerFailed: It ended at once; with the last lines of its log.
        """
        if self._managed is not None:
            raise ConfigurationError(f"this RabbitMQ server is running, in {self.directory}")
        program = find_rabbitmq_server()
        folder = self._make_directory()
        try:
            env = self._environment(folder)
            epmd = ["epmd", "-port", str(self._epmd_port), "-address", "127.0.0.1"]
            self._epmd = ManagedProcess(epmd, folder / "epmd.log", env=env)
            wait_until(self._why_no_epmd, [self._epmd], what="epmd", timeout=_READY_TIMEOUT)
            temporary = folder if self._is_temporary else None
            self._managed = ManagedProcess(
                [program], folder / "rabbitmq.log", env=env, folder=temporary
            )
            servers = [self._epmd, self._managed]
            wait_until(self._why_not_ready, servers, what="rabbitmq", timeout=_READY_TIMEOUT)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Stop the server and return when it is gone, its temporary folder with it."""
        for child in (self._managed, self._epmd):
            if child is not None:
                child.stop(_STOP_GRACE)
        self._managed = self._epmd = None
        if self._is_temporary and self.directory is not None:
            shutil.rmtree(self.directory)
            self.directory = None

    def control(self, *words: str) -> str:
        """Return what ``rabbitmqctl`` answers to a command."""
        program = Path(find_rabbitmq_server()).with_name("rabbitmqctl")
        if self.directory is None:
            raise ConfigurationError("this RabbitMQ server is not running: call start() first")
        done = subprocess.run(
            [str(program), "--quiet", *words],
            env=self._environment(self.directory),
            capture_output=True,
            text=True,
            check=True,
            timeout=100,
        )
        return done.stdout

    def _make_directory(self) -> Path:
        if self.directory is None:
            self.directory = Path(tempfile.mkdtemp(prefix="celery-batch-rabbitmq-"))
        folder = self.directory
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        (folder / "enabled_plugins").write_text("[].\n")
        lines = [
            f"listeners.tcp.default = 127.0.0.1:{self.port}",
            "log.file = false",
            "log.console = true",
            "disk_free_limit.absolute = 50MB",
        ]
        if self._papers:
            lines += [
                f"listeners.ssl.default = 127.0.0.1:{self.tls_port}",
                f"ssl_options.cacertfile = {self._papers.authority}",
                f"ssl_options.certfile = {self._papers.cert}",
                f"ssl_options.keyfile = {self._papers.key}",
                "ssl_options.verify = verify_none",
            ]
        (folder / "rabbitmq.conf").write_text("\n".join([*lines, ""]))
        return folder

    def _environment(self, folder: Path) -> dict[str, str]:
        """Return an environment in which nothing points outside the folder."""
        foreign = ("RABBITMQ_", "ERL_")
        return {
            **{name: x for name, x in os.environ.items() if not name.startswith(foreign)},
            "HOME": str(folder),  # where Erlang keeps the cookie
            "ERL_EPMD_PORT": str(self._epmd_port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODENAME": "rabbit@localhost",
            "RABBITMQ_DIST_PORT": str(self._distribution_port),
            "RABBITMQ_CONF_ENV_FILE": str(folder / "none.conf"),
            "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq.conf"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "enabled_plugins"),
            "RABBITMQ_MNESIA_BASE": str(folder / "mnesia"),
            "RABBITMQ_LOG_BASE": str(folder / "log"),
            "RABBITMQ_GENERATED_CONFIG_DIR": str(folder / "config"),
            # The script becomes the server, which then hears the signals itself.
            "RABBITMQ_ALLOW_INPUT": "1",
            # Erlang's threads would spin before they sleep, on cores that other tests want.
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": (
                "-noinput -kernel inet_dist_use_interface {127,0,0,1}"
                " +sbwt none +sbwtdcpu none +sbwtdio none"
            ),
        }

    def _why_no_epmd(self) -> str:
        with socket.socket() as client:
            return "" if client.connect_ex(("127.0.0.1", self._epmd_port)) == 0 else "no answer"

    def _why_not_ready(self) -> str:
        try:
            with Connection(self.url, connect_timeout=5) as connection:
                connection.connect()
        except OSError as error:
            return str(error)
        return ""
