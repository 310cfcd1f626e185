"""The peers' own environment, made when it is first needed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

__all__ = ["peers_python"]

_HERE = Path(__file__).parent
_WANTED = _HERE / "peers.txt"
_VENV = _HERE.parent / ".venv-peers"


def peers_python() -> str:
    """
    Return the peers' Python, after making its environment if need be.

    Raises:
        subprocess.CalledProcessError: It could not be made, for want of a network perhaps.
    """
    python, stamp = _VENV / "bin" / "python", _VENV / "installed.txt"
    if not stamp.exists() or stamp.read_text() != _WANTED.read_text():
        print(f"Installing the peers into {_VENV.name} ...", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", str(_VENV)], check=True)
        pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, "-r", str(_WANTED)], check=True)
        stamp.write_text(_WANTED.read_text())
    return str(python)
