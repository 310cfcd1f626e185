"""
``python -m celery_batch.cli.health``: the health of this machine's worker, for probes.

A probe runs many times a minute, and importing Celery takes a second or two of a
processor: so this is no command of Celery's, and reads a file that the worker writes.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

from celery_batch.worker.metrics.health import VARIABLE, HealthState

__all__ = ["main"]


def main(argv: list[str] | None = None) -> int:
    """Print the worker's health; return 0 if it is healthy, else 1."""
    options = _parser().parse_args(argv)
    if options.file is None:
        print(f"name the worker's file, or set {VARIABLE}")  # noqa: T201 (a command's output)
        return 1
    state = HealthState.read(options.file)
    if state is None:
        reason = f"no worker has written {options.file}"
    else:
        now = time.monotonic()
        reason = state.why_not_alive(now) or ("" if options.live else state.why_not_ready(now))
    print(reason or ("alive" if options.live else "ready"))  # noqa: T201 (a command's output)
    return 1 if reason else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m celery_batch.cli.health",
        description="Say whether the worker takes tasks; 0 if it does, else 1.",
    )
    parser.add_argument(
        "--live",
        action="store_true",
        help="only whether it lives: one that loads models, or waits for its broker, does",
    )
    named = os.environ.get(VARIABLE)
    parser.add_argument(
        "file",
        type=Path,
        nargs="?",
        default=Path(named) if named else None,
        help=f"what the worker writes, by default ${VARIABLE}",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
