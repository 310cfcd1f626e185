"""A real Prometheus for the tests, with the configuration we ship."""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.parse import urlencode
from urllib.request import urlopen

import yaml

from celery_batch.cli.child import Child, wait_until
from celery_batch.errors import ConfigurationError
from tests.services.tls import free_port

__all__ = ["SHIPPED", "Prometheus", "find_prometheus", "scrape"]

SHIPPED = Path(__file__).parents[2] / "deploy" / "prometheus"

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
    """
    A Prometheus in a folder of its own, that looks once a second.

    Args:
        folder: Its folder.
        targets: Whom to scrape, by the job of the shipped configuration.
    """

    def __init__(self, folder: Path, targets: Mapping[str, Sequence[str]]) -> None:
        self.port = free_port()
        (folder / "prometheus.yml").write_text(yaml.safe_dump(_configuration(targets)))
        shutil.copy(SHIPPED / "alerts.yml", folder)
        command = [
            find_prometheus(),
            f"--config.file={folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{self.port}",
            "--log.level=warn",
        ]
        self.child = Child(command, folder / "prometheus.log")
        wait_until(self._why_not_ready, [self.child], what="prometheus", timeout=60)

    def ask(self, path: str, **parameters: str) -> Any:
        """Return the data of an answer of its API."""
        url = f"http://127.0.0.1:{self.port}/api/v1/{path}?{urlencode(parameters)}"
        with urlopen(url, timeout=30) as answer:
            return json.load(answer)["data"]

    def values(self, query: str) -> list[float]:
        """Return the numbers that a query finds now, none of which is not a number."""
        found = self.ask("query", query=query)["result"]
        return [value for each in found if not math.isnan(value := float(each["value"][1]))]

    def _why_not_ready(self) -> str:
        try:
            with urlopen(f"http://127.0.0.1:{self.port}/-/ready", timeout=5):
                return ""
        except (URLError, OSError) as error:
            return str(error)


def scrape(url: str) -> dict[str, float]:
    """Return a worker's numbers as it tells them, by name and labels."""
    with urlopen(url, timeout=30) as answer:  # noqa: S310 (ours, on loopback)
        lines = answer.read().decode().splitlines()
    pairs = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    return {name: float(value) for name, value in pairs}


def _configuration(targets: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    shipped = yaml.safe_load((SHIPPED / "prometheus.yml").read_text())
    shipped["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    for job in shipped["scrape_configs"]:
        job.pop("dns_sd_configs", None)
        job["static_configs"] = [{"targets": list(targets.get(job["job_name"], ()))}]
    return shipped
