"""What was measured: the commit, the processor, and the versions of what has a part in it."""

from __future__ import annotations

import json
import platform
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from bench.servers.peers import peers_python
from celery_batch.processes.redis_server import find_redis_server

__all__ = ["commit", "cpu_name", "server_versions", "versions"]

_ROOT = Path(__file__).parents[2]

_LIBRARIES = ("celery", "kombu", "redis")

#: What runs web servers.
_SERVERS = (
    "celery",
    "kombu",
    "redis",
    "fastapi",
    "uvicorn",
    "flask",
    "django",
    "gunicorn",
    "gevent",
)

#: By the names of the peers' environments.
_PEERS = {"peers": ("service-streamer",), "peers-http": ("litserve", "mosec")}

_ASK = (
    "import importlib.metadata, json, sys;"
    "print(json.dumps({name: importlib.metadata.version(name) for name in sys.argv[1:]}))"
)


def commit() -> str:
    """Return the short hash of the commit, with a + if files differ from it; "" outside of git."""
    command = ["git", "describe", "--always", "--exclude=*", "--dirty=+"]
    done = subprocess.run(command, cwd=_ROOT, check=False, capture_output=True, text=True)
    return done.stdout.strip()


def cpu_name() -> str:
    """Return the processor's name; "" if the system does not say."""
    cpus = Path("/proc/cpuinfo")
    named = re.search(r"model name\s*: (.+)", cpus.read_text()) if cpus.exists() else None
    return named[1].strip() if named else platform.processor()


def versions(*, peers: bool) -> dict[str, Any]:
    """Return the versions of Python, the Redis server and the libraries on the message path."""
    server = subprocess.run([find_redis_server(), "--version"], check=True, capture_output=True)
    number = re.search(rb"v=([\d.]+)", server.stdout)
    found: dict[str, Any] = {
        "python": platform.python_version(),
        "redis_server": number[1].decode() if number else "",
        **_installed(sys.executable, _LIBRARIES),
    }
    if peers:
        libraries = (*_LIBRARIES, "celery-batches", "service-streamer")
        found["peers"] = _installed(peers_python(), libraries)
    return found


def server_versions(*, servers_of_peers: bool) -> dict[str, str]:
    """Return the versions of the libraries that web servers are made with."""
    found = _installed(sys.executable, _SERVERS)
    for name, libraries in _PEERS.items() if servers_of_peers else ():
        found |= _installed(peers_python(name), libraries)
    return found


def _installed(python: str, libraries: tuple[str, ...]) -> dict[str, str]:
    said = subprocess.run([python, "-c", _ASK, *libraries], check=True, capture_output=True)
    found: dict[str, str] = json.loads(said.stdout)
    return found
