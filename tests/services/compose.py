"""The compose file, read as `docker compose` reads it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

__all__ = ["COMPOSE_FILE", "aliases_of", "in_order", "ports_of", "read_compose"]

COMPOSE_FILE = Path(__file__).parents[2] / "docker-compose.yml"

_VARIABLE = re.compile(r"\$(?:(\$)|\{(\w+)(?::?-([^}]*))?\})")


def read_compose(environ: Mapping[str, str]) -> dict[str, Any]:
    """
    Return what the file says in an environment.

    Args:
        environ: Its variables, and no others.
    """
    return _filled(yaml.safe_load(COMPOSE_FILE.read_text()), environ)


def _filled(value: Any, environ: Mapping[str, str]) -> Any:
    if isinstance(value, dict):
        return {key: _filled(each, environ) for key, each in value.items()}
    if isinstance(value, list):
        return [_filled(each, environ) for each in value]
    if not isinstance(value, str):
        return value

    def fill(found: re.Match[str]) -> str:
        dollar, name, otherwise = found.groups()
        return dollar or environ.get(name) or otherwise or ""

    return _VARIABLE.sub(fill, value)


def ports_of(service: Mapping[str, Any]) -> list[int]:
    """Return the ports on which a container listens."""
    published = [each.rpartition(":")[2] for each in service.get("ports", ())]
    return sorted({int(port) for port in (*service.get("expose", ()), *published)})


def aliases_of(services: Mapping[str, Any]) -> dict[str, str]:
    """Return which service each name in the networks stands for; the first of several."""
    names = {name: name for name in services}
    for name, service in services.items():
        networks = service.get("networks", ())
        for network in networks if isinstance(networks, list) else networks.values():
            for alias in network.get("aliases", ()) if isinstance(network, dict) else ():
                names.setdefault(alias, name)
    return names


def in_order(services: Mapping[str, Any]) -> list[str]:
    """Return the names of the services, each after those that it waits for."""
    order: list[str] = []

    def visit(name: str) -> None:
        for other in services[name].get("depends_on", ()):
            if other in services:
                visit(other)
        if name not in order:
            order.append(name)

    for name in services:
        visit(name)
    return order
