"""What was measured: the commit, and the versions of the libraries that have a part in it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from bench.peers import peers_python

__all__ = ["commit", "versions"]

_ROOT = Path(__file__).parents[1]

_OURS = ("celery", "kombu", "redis", "fastapi", "uvicorn", "flask", "django", "gunicorn", "gevent")

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


def versions(*, servers_of_peers: bool) -> dict[str, str]:
    """
    Return the versions of the libraries that web servers are made with.

    Args:
        servers_of_peers: Those of the peers, too.
    """
    found = _installed(sys.executable, _OURS)
    for name, libraries in _PEERS.items() if servers_of_peers else ():
        found |= _installed(peers_python(name), libraries)
    return found


def _installed(python: str, libraries: tuple[str, ...]) -> dict[str, str]:
    said = subprocess.run([python, "-c", _ASK, *libraries], check=True, capture_output=True)
    found: dict[str, str] = json.loads(said.stdout)
    return found
