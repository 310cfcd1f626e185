"""The peers' own environments, made when they are first needed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

__all__ = ["peers_python"]

_HERE = Path(__file__).parent


def peers_python(name: str = "peers") -> str:
    """
    Return the Python of an environment of peers, after making it if need be.

    Raises:
        subprocess.CalledProcessError: It could not be made, for want of a network perhaps.
    """
    wanted, venv = _HERE / f"{name}.txt", _HERE.parents[1] / f".venv-{name}"
    python, stamp = venv / "bin" / "python", venv / "installed.txt"
    if not stamp.exists() or stamp.read_text() != wanted.read_text():
        print(f"Installing the peers into {venv.name} ...", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
        pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, "-r", str(wanted)], check=True)
        stamp.write_text(wanted.read_text())
    return str(python)
