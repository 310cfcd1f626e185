"""The compose files, read and merged as `docker compose -f ... -f ...` does."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

__all__ = ["OVERRIDES", "ROOT", "read_compose"]

ROOT = Path(__file__).parents[3]
COMPOSE_FILE = ROOT / "docker-compose.yml"

#: The files of deploy/compose/, by their stems.
OVERRIDES = {path.stem: path for path in sorted((ROOT / "deploy" / "compose").glob("*.yml"))}

_VARIABLE = re.compile(r"\$(?:(\$)|\{(\w+)(?::?([-?])([^}]*))?\})")

#: Sequences that an override replaces; it adds to all others.
_REPLACED = {"command", "entrypoint", "test"}

_RESET = object()


class _Loader(yaml.SafeLoader):
    """YAML with the tag `!reset`, which removes what the files before have."""


_Loader.add_constructor("!reset", lambda _loader, _node: _RESET)


def read_compose(*overrides: str, environ: Mapping[str, str] | None = None) -> dict[str, Any]:
    """
    Return what docker-compose.yml and these overrides come to.

    Args:
        overrides: Stems of files in deploy/compose/, in order.
        environ: The variables that the files are read with.

    Raises:
        KeyError: A variable is not set that has to be, as in `${NAME:?why}`.
    """
    merged: dict[str, Any] = {}
    for path in (COMPOSE_FILE, *(OVERRIDES[name] for name in overrides)):
        said = yaml.load(path.read_text(), _Loader)  # noqa: S506 (a SafeLoader)
        merged = _merged(merged, _filled(said, environ or {}))
    return {key: value for key, value in merged.items() if not key.startswith("x-")}


def _merged(below: Any, above: Any, key: str = "") -> Any:
    if isinstance(below, dict) and isinstance(above, dict):
        both = {name: _merged(below.get(name), value, name) for name, value in above.items()}
        return {name: value for name, value in (below | both).items() if value is not _RESET}
    if isinstance(below, list) and isinstance(above, list) and key not in _REPLACED:
        return [*below, *above]
    return above


def _filled(value: Any, environ: Mapping[str, str]) -> Any:
    if isinstance(value, dict):
        return {key: _filled(each, environ) for key, each in value.items()}
    if isinstance(value, list):
        return [_filled(each, environ) for each in value]
    if not isinstance(value, str):
        return value

    def fill(found: re.Match[str]) -> str:
        dollar, name, operator, otherwise = found.groups()
        if dollar:
            return "$"
        if operator == "?" and not environ.get(name):
            raise KeyError(f"{name} {otherwise}")
        return environ.get(name) or otherwise or ""

    return _VARIABLE.sub(fill, value)
