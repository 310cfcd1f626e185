"""A real nginx for the tests, with the configuration we ship: found, started, stopped with us."""

from __future__ import annotations

import os
import re
import shutil
import socket
from collections.abc import Sequence
from pathlib import Path

from celery_batch.errors import ConfigurationError
from celery_batch.processes.managed_process import ManagedProcess, wait_until
from tests.services.servers.ports import quiet_port

__all__ = ["Nginx", "find_nginx"]

SHIPPED = Path(__file__).parents[3] / "deploy" / "nginx" / "celery_batch.conf"

_NONE_FOUND = """no nginx found. To get one:
  say "apt install nginx-light" or "brew install nginx" (its service need not run),
  or name its program in the environment variable NGINX."""

#: What a packaged nginx has around our file; all of it in the folder, nothing from the system.
_AROUND = """{user}
daemon off;
worker_processes 2;
pid nginx.pid;
error_log stderr warn;
events {{ worker_connections 256; }}
http {{
    client_body_temp_path body;
    proxy_temp_path proxy;
    fastcgi_temp_path fastcgi;
    uwsgi_temp_path uwsgi;
    scgi_temp_path scgi;
    log_format ways '$http_x_number $status $upstream_addr';
    access_log access.log ways;
    include {shipped};
}}
"""


def find_nginx() -> str:
    """
    Return the path of nginx' program.

    Raises:
        ConfigurationError: There is none, or ``$NGINX`` is not a program.
    """
    if named := os.environ.get("NGINX"):
        if program := shutil.which(named):
            return program
        raise ConfigurationError(f"NGINX: no such program: {named}")
    path = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"])
    if program := shutil.which("nginx", path=path):
        return program
    raise ConfigurationError(_NONE_FOUND)


class Nginx:
    """
    An nginx in a folder of its own, before servers on loopback.

    Args:
        folder: Its folder.
        servers: The ports of the servers.
    """

    def __init__(self, folder: Path, servers: Sequence[int]) -> None:
        self.folder = folder
        self.port = quiet_port()
        (folder / "shipped.conf").write_text(self._shipped(servers))
        user = "user root;" if os.geteuid() == 0 else ""  # the folder is nobody else's
        around = _AROUND.format(user=user, shipped=folder / "shipped.conf")
        (folder / "nginx.conf").write_text(around)
        command = [find_nginx(), "-p", str(folder), "-c", "nginx.conf", "-e", "stderr"]
        self.child = ManagedProcess(command, folder / "nginx.log")
        wait_until(self._why_not_ready, [self.child], what="nginx", timeout=60)

    def ways(self) -> dict[int, tuple[int, list[str]]]:
        """Return each request's status and the ports that it was sent or offered to, in order."""
        lines = (self.folder / "access.log").read_text().splitlines()
        parts = [line.split(" ", 2) for line in lines]
        return {
            int(number): (int(status), re.findall(r":(\d+)", servers))
            for number, status, servers in parts
            if number != "-"
        }

    def _shipped(self, servers: Sequence[int]) -> str:
        text = SHIPPED.read_text().replace("listen 8080;", f"listen 127.0.0.1:{self.port};")
        for number, port in enumerate(servers, 1):
            text = text.replace(f"server gpu-host-{number}:9876 ", f"server 127.0.0.1:{port} ")
        return text

    def _why_not_ready(self) -> str:
        with socket.socket() as client:
            return "" if client.connect_ex(("127.0.0.1", self.port)) == 0 else "no answer"
