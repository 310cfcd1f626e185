"""A real Prometheus on loopback, with the configuration we ship."""

from __future__ import annotations

import json
import math
import os
import shutil
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from urllib.request import urlopen

import yaml

from celery_batch.errors import ConfigurationError
from celery_batch.processes.managed_process import ManagedProcess, wait_until
from demo.http_client import why_not

__all__ = ["SHIPPED", "Prometheus", "find_prometheus"]

#: The configuration that we ship.
SHIPPED = Path(__file__).parents[3] / "deploy" / "prometheus"

#: Seconds for it to get ready, and for an answer of it.
_READY, _ANSWER = 60.0, 30.0

_NONE_FOUND = """no Prometheus found. To get one:
  say "apt install prometheus" or "brew install prometheus" (its service need not run),
  or name its program in the environment variable PROMETHEUS."""


def find_prometheus() -> str:
    """
    Return the path of Prometheus' program.

    Raises:
        ConfigurationError: There is none, or ``$PROMETHEUS`` is not a program.
    """
    if program := shutil.which(os.environ.get("PROMETHEUS", "prometheus")):
        return program
    raise ConfigurationError(_NONE_FOUND)


class Prometheus:
    """A Prometheus in a folder of its own, which scrapes once a second."""

    def __init__(self, folder: Path, targets: Mapping[str, Sequence[str]]) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.address = f"127.0.0.1:{free.getsockname()[1]}"
        (folder / "prometheus.yml").write_text(yaml.safe_dump(_configuration(targets)))
        shutil.copy(SHIPPED / "alerts.yml", folder)
        command = [
            find_prometheus(),
            f"--config.file={folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address={self.address}",
            "--log.level=warn",
        ]
        self.child = ManagedProcess(command, folder / "prometheus.log")
        ready = f"http://{self.address}/-/ready"
        wait_until(lambda: why_not(ready), [self.child], what="prometheus", timeout=_READY)

    def ask(self, path: str, **parameters: str) -> Any:
        """Return the data of an answer of its API; the path is that after ``/api/v1/``."""
        url = f"http://{self.address}/api/v1/{path}?{urlencode(parameters)}"
        with urlopen(url, timeout=_ANSWER) as answer:
            return json.load(answer)["data"]

    def values(self, query: str) -> list[float]:
        """Return the values that a query finds now, without NaN."""
        found = self.ask("query", query=query)["result"]
        return [value for each in found if not math.isnan(value := float(each["value"][1]))]


def _configuration(targets: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    shipped: dict[str, Any] = yaml.safe_load((SHIPPED / "prometheus.yml").read_text())
    shipped["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    for job in shipped["scrape_configs"]:
        job.pop("dns_sd_configs", None)
        job["static_configs"] = [{"targets": list(targets.get(job["job_name"], ()))}]
    return shipped
