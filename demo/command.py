"""Exit code, signals and error output of the commands in this folder."""

from __future__ import annotations

import signal
from collections.abc import Callable

from rich.console import Console

from celery_batch.cli.errors import INTERRUPTED
from celery_batch.errors import BatchError

__all__ = ["run_command"]


def run_command(action: Callable[[Console], object]) -> int:
    """
    Run a command until it ends, fails or is interrupted; return its exit code.

    SIGTERM ends it as Ctrl-C does.  An error that we expect is printed without a
    traceback, with its notes.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    console = Console(soft_wrap=True)
    try:
        action(console)
    except KeyboardInterrupt:
        console.print("Everything is stopped.")
        return INTERRUPTED
    except (BatchError, OSError, ValueError) as error:
        lines = ["Failed:", str(error), *getattr(error, "__notes__", [])]
        Console(stderr=True, soft_wrap=True).print(*lines, sep="\n", markup=False, highlight=False)
        return 1
    console.print("Everything is stopped.")
    return 0
