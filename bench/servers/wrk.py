"""A web server under the load of wrk, the program that the seeds were measured with."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

from celery_batch.errors import BatchError, ConfigurationError

__all__ = ["Report", "WrkFailed", "find_wrk", "run_wrk"]

_SCRIPT = Path(__file__).parents[2] / "examples" / "infill.lua"

#: Seconds after which wrk counts a request as lost.
_TIMEOUT = 20

#: What wrk's units are in seconds.
_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0}


class WrkFailed(BatchError):
    """wrk could not measure."""


@dataclass(frozen=True, slots=True)
class Report:
    """What wrk has counted."""

    #: Answers a second.
    rate: float
    #: What went wrong, in wrk's words; "" for nothing.
    errors: str
    #: Seconds within which so many percent of the answers came.
    latency: dict[int, float] = field(default_factory=dict)


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


def run_wrk(url: str, *, clients: int, seconds: int, script: Path = _SCRIPT) -> Report:
    """
    Send requests from many clients in a closed loop.

    Raises:
        ConfigurationError: wrk is not installed.
        WrkFailed: It ended without a figure.
    """
    options = ["-t", "2", "-c", str(clients), "-d", f"{seconds}s", "--timeout", f"{_TIMEOUT}s"]
    done = subprocess.run(
        [find_wrk(), *options, "--latency", "-s", str(script), url],
        check=False,
        capture_output=True,
        text=True,
        timeout=seconds + 2 * _TIMEOUT,
    )
    rate = re.search(r"^Requests/sec: +([\d.]+)$", done.stdout, re.MULTILINE)
    if rate is None:
        raise WrkFailed(f"wrk on {url}: {done.stdout}{done.stderr}")
    errors = re.findall(r"^ *((?:Socket errors|Non-2xx).*)$", done.stdout, re.MULTILINE)
    shares = re.findall(r"^ +(\d+)% +([\d.]+)(us|ms|s|m) *$", done.stdout, re.MULTILINE)
    latency = {int(percent): float(value) * _UNITS[unit] for percent, value, unit in shares}
    return Report(float(rate[1]), "; ".join(errors), latency)
