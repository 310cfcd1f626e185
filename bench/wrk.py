"""A web server under the load of wrk, the program that the seeds were measured with."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from celery_batch.errors import BatchError, ConfigurationError

__all__ = ["Report", "WrkFailed", "find_wrk", "run_wrk"]

_SCRIPT = Path(__file__).parents[1] / "examples" / "infill.lua"

#: Seconds after which wrk counts a request as lost.
_TIMEOUT = 20


class WrkFailed(BatchError):
    """wrk could not measure."""


@dataclass(frozen=True, slots=True)
class Report:
    """
    What wrk has counted.

    Args:
        rate: Answers a second.
        errors: What went wrong, in wrk's words; "" for nothing.
    """

    rate: float
    errors: str


def find_wrk() -> str:
    """
    Return the path of wrk.

    Raises:
        ConfigurationError: There is none.
    """
    program = shutil.which("wrk")
    if program is None:
        raise ConfigurationError("wrk is not installed: on Debian, apt install wrk")
    return program


def run_wrk(url: str, *, clients: int, seconds: int) -> Report:
    """
    Ask the examples' sentences, one a request, from many clients in a closed loop.

    Args:
        url: Where to post them.
        clients: How many ask at the same time.
        seconds: For how long.

    Raises:
        ConfigurationError: wrk is not installed.
        WrkFailed: It ended without a figure.
    """
    options = ["-t", "2", "-c", str(clients), "-d", f"{seconds}s", "--timeout", f"{_TIMEOUT}s"]
    done = subprocess.run(
        [find_wrk(), *options, "-s", str(_SCRIPT), url],
        check=False,
        capture_output=True,
        text=True,
        timeout=seconds + 2 * _TIMEOUT,
    )
    rate = re.search(r"^Requests/sec: +([\d.]+)$", done.stdout, re.MULTILINE)
    if rate is None:
        raise WrkFailed(f"wrk on {url}: {done.stdout}{done.stderr}")
    errors = re.findall(r"^ *((?:Socket errors|Non-2xx).*)$", done.stdout, re.MULTILINE)
    return Report(float(rate[1]), "; ".join(errors))
