"""
``make test-paused``: tests while one process of theirs after the other stands still for a moment.

A busy machine does that to any process: to one of pytest's, a worker, a pool process or a server.
What a test itself has stopped is left alone.
"""

from __future__ import annotations

import argparse
import random
import secrets
import signal
import subprocess
import sys
from contextlib import suppress
from time import sleep

import psutil
from rich.console import Console

#: Seconds for which a process stands still, and between two of them.
PAUSES = (0.1, 0.3, 0.6, 1.0, 1.5)
BETWEEN = (0.02, 0.1, 0.3)

_console = Console()


def main() -> int:
    """Run pytest with some arguments, and return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.pauses", description=__doc__)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(1_000_000))
    parser.add_argument("pytest", nargs="+", help="pytest's arguments, after a --")
    options = parser.parse_args()
    _console.print(f"seed of the pauses: {options.seed}")
    chance, pauses = random.Random(options.seed), 0  # noqa: S311 (a test's)
    with subprocess.Popen([sys.executable, "-m", "pytest", *options.pytest]) as tests:
        while tests.poll() is None:
            pauses += _pause_one(psutil.Process(tests.pid), chance)
            sleep(chance.choice(BETWEEN))
    _console.print(f"pauses: {pauses}")
    return tests.returncode


def _pause_one(tests: psutil.Process, chance: random.Random) -> int:
    """Have one process stand still for a moment; return how many there were to do so."""
    with suppress(psutil.Error):
        found = tests.children(recursive=True)
        chosen = chance.choice(found) if found else None
        if chosen is not None and chosen.status() != psutil.STATUS_STOPPED:
            chosen.suspend()
            try:
                sleep(chance.choice(PAUSES))
            finally:
                chosen.send_signal(signal.SIGCONT)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
