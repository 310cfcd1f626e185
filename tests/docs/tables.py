"""
The tables of the reference that the code determines: ``python -m tests.docs.tables [--write]``.

A page has ``<!-- table: NAME words -->``, the table and ``<!-- end of table -->``.  Without an
option this checks that the tables are those of the code.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from celery.worker.control import Panel
from packaging.requirements import Requirement
from sphinx.pycode import ModuleAnalyzer

import webapp.metrics
from celery_batch.client_methods import ClientMethods
from celery_batch.compat import fast_paths
from celery_batch.defaults import SETTINGS, Defaults
from celery_batch.serve.web import Metrics
from celery_batch.task import BatchTask
from celery_batch.telemetry.gpus import Gpus
from celery_batch.telemetry.prometheus import families
from celery_batch.worker.control import commands
from tests.rows.__main__ import Row
from tests.rows.skips import FILE

__all__ = ["commands_of_ours", "stale", "task_options"]

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
PACKAGE = ROOT / "celery_batch"
REFERENCE = ROOT / "docs" / "reference"

_TABLE = re.compile(r"(?<=<!-- table: )(?P<words>.+?) -->\n.*?(?=<!-- end of table -->)", re.DOTALL)

#: The headers of messages, by their names in the module of the protocol.
HEADERS = (
    "ROWS",
    "SENT",
    "NEEDS_ANSWER",
    "LOSSES",
    "REPLY_HEADER",
    "PAYLOADS",
    "READS_PAYLOADS",
    "TRACK_HEADER",
)

#: Public attributes of tasks that are no options.
_NO_OPTIONS = {"acks_late", "model", "traces_items"}

#: How the reference calls a type; other types have their own names.
_TYPES = {
    "Seconds": "seconds",
    "Rows": "rows",
    "Items": "items",
    "Bytes": "bytes",
    "float": "number",
    "int": "whole number",
    "bool": "boolean",
    "str": "text",
    "Any": "any value",
    "None": "None",
    "Sequence[Rows]": "list of rows",
    "Sequence[int]": "list of whole numbers",
    "Sequence[str]": "list of texts",
    "list[str]": "list of texts",
    "tuple[str, ...]": "tuple of texts",
    "Callable[..., Any]": "function",
    "Callable[[int], Any]": "function",
}


def main() -> int:
    """Check the tables, or write them; return 1 if they are not those of the code."""
    pages = stale()
    if "--write" in sys.argv[1:]:
        for page, text in pages.items():
            page.write_text(text)
        return 0
    for page in pages:
        print(f"{page}: has a table that is not the code's; run `make tables`")  # noqa: T201
    return 1 if pages else 0


def stale() -> dict[Path, str]:
    """Return the pages whose tables are not those of the code, with the text that they need."""
    pages = {page: page.read_text() for page in sorted(REFERENCE.glob("*.md"))}
    found = {page: _TABLE.sub(_written, text) for page, text in pages.items()}
    return {page: text for page, text in found.items() if text != pages[page]}


def _written(match: re.Match[str]) -> str:
    name, *words = match["words"].split()
    return "\n".join([match["words"] + " -->", *_TABLES[name](words), ""])


def task_options() -> dict[str, tuple[type, str]]:
    """Return every option of a batch task, with the class that declares it and its meaning."""
    declared = {
        name: (cls, text) for cls in (BatchTask, ClientMethods) for name, text in _said(cls).items()
    }
    return {name: found for name, found in declared.items() if name not in _NO_OPTIONS}


@cache
def _said(cls: type) -> dict[str, str]:
    """Return what the comments say of the public attributes of a class."""
    comments = ModuleAnalyzer.for_module(cls.__module__).find_attr_docs()
    return {
        name: " ".join(lines).strip()
        for (owner, name), lines in comments.items()
        if owner == cls.__name__ and not name.startswith("_")
    }


def _options(names: Iterable[str]) -> list[str]:
    known = task_options()
    rows = []
    for name in names:
        cls, text = known[name]
        setting = f"batch_{name}" if f"batch_{name}" in SETTINGS else _SETTING_OF.get(name)
        default = _code(getattr(cls, name))
        if setting is not None:
            default = f"{_code(SETTINGS[setting])} (`{setting}`)"
        unset = setting is not None and SETTINGS[setting] is not None  # None asks for the setting
        rows.append(_entry(name, _type(cls, name, "None" if unset else ""), default, text))
    return _table(["option", "meaning"], rows)


#: The option whose setting has another name.
_SETTING_OF = {"max_batch_size": "batch_max_size"}


def _settings(names: Iterable[str]) -> list[str]:
    said = _said(Defaults)
    rows = [
        _entry(name, _type(Defaults, name), _code(SETTINGS[name]), said[name]) for name in names
    ]
    return _table(["setting", "meaning"], rows)


def _entry(name: str, kind: str, default: str, meaning: str) -> list[str]:
    """Return a row of two cells, since a phone has no room for more."""
    return [f"`{name}`", f"*{kind}*, default {default}<br>{meaning}"]


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = [head, ["---"] * len(head), *rows]
    return ["| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines]


def _code(value: Any) -> str:
    return f"`{value!r}`"


def _type(cls: type, name: str, left_out: str = "") -> str:
    annotation = re.sub(r"^ClassVar\[(.*)\]$", r"\1", cls.__annotations__[name])
    parts = [part for part in annotation.split(" | ") if part != left_out]
    *others, last = [_TYPES[part] for part in parts]
    return f"{', '.join(others)} or {last}" if others else last


def _metrics(sources: Iterable[str]) -> list[str]:
    rows = [_metric_row(metric) for source in sources for metric in _METRICS[source]()]
    return _table(["metric", "type", "labels", "unit", "meaning"], rows)


def _worker_metrics() -> Iterator[Any]:
    labels = {"worker": "", "version": ""}
    yield from families({}, tasks={}, idle=0, processes=0, refused=0, depths={}, labels=labels)


#: Where metrics come from: the page's words for it, and what yields them.
_METRICS: dict[str, Callable[[], Iterable[Any]]] = {
    "worker": _worker_metrics,
    "gpus": lambda: Gpus(None, {}).families(),
    "serve": lambda: [metrics := Metrics(None), metrics._requests, metrics._seconds][1:],
    "fastapi": lambda: [webapp.metrics._REQUESTS, webapp.metrics._SECONDS],
}


def _metric_row(metric: Any) -> list[str]:
    (family,) = metric.describe() if hasattr(metric, "describe") else [metric]
    name = f"{family.name}_total" if family.type == "counter" else family.name
    labels = ", ".join(f"`{label}`" for label in metric._labelnames)
    units = (unit for ending, unit in _UNITS.items() if family.name.endswith(ending))
    return [f"`{name}`", family.type, labels, next(units, "number"), family.documentation]


#: The unit of a metric, by the end of its name, as Prometheus advises.
_UNITS = {"_seconds": "seconds", "_bytes": "bytes", "_ratio": "from 0 to 1"}


def _libraries(names: Iterable[str]) -> list[str]:
    wanted = [Requirement(each) for each in _project()["dependencies"]]
    ranges = {each.name: each.specifier for each in wanted}
    rows = []
    for name in names:
        oldest, above = fast_paths._TESTED[name]
        called = fast_paths._CALLED.get(name, name)
        chosen = ", ".join(sorted(map(str, ranges.get(name, "")), reverse=True))
        pip = f"`{chosen}`" if chosen else "what kombu allows"
        rows.append([called, pip, f"from {oldest} to below {above}"])
    return _table(["library", "pip installs", "fast paths"], rows)


def _rows(names: Sequence[str]) -> list[str]:
    releases = [Row(pins) for pins in tomllib.loads(FILE.read_text())["row"]]
    called = [fast_paths._CALLED.get(name, name) for name in names]
    head = ["row", *called]
    return _table(
        head, [[f"`{row.name}`", *(row.pins[name] for name in names)] for row in releases]
    )


def _project() -> dict[str, Any]:
    found: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return found


def commands_of_ours() -> set[str]:
    """Return the names of our remote control commands."""
    return {name for name, command in Panel.data.items() if command.__module__ == commands.__name__}


def _commands(names: Iterable[str]) -> list[str]:
    rows = []
    for name in names:
        meta = Panel.meta[name]
        words = [f"`{word}`" for word in re.split(r" (?=\[\w+=)", meta.signature or "") if word]
        rows.append([f"[`{name}`](#{name})", f"`{meta.type}`", " ".join(words), meta.help])
    return _table(["command", "sent with `celery`", "arguments", "meaning"], rows)


_TABLES: dict[str, Callable[[list[str]], list[str]]] = {
    "options": _options,
    "settings": _settings,
    "metrics": _metrics,
    "commands": _commands,
    "libraries": _libraries,
    "rows": _rows,
}


if __name__ == "__main__":
    sys.exit(main())
