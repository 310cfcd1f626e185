"""What was measured, as docs/explanation/benchmarks.md shows it."""

from __future__ import annotations

import json
import os
import platform
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import celery
import psutil

from bench.plot import draw
from bench.tables import Case, Effort, goals_table
from bench.versions import commit
from celery_batch import __version__

__all__ = ["about", "write"]

_DOCS = Path(__file__).parents[1] / "docs"
_PAGE = _DOCS / "explanation" / "benchmarks.md"
_DATA = _DOCS / "benchmarks.json"
_BEGIN, _END = "<!-- measured: begin -->", "<!-- measured: end -->"


def about(effort: Effort) -> dict[str, Any]:
    """Return where, when and how thoroughly this is measured."""
    return {
        "date": datetime.now(tz=UTC).strftime("%Y-%m-%d"),
        "rounds": effort.rounds,
        "share": effort.share,
        "cores": os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30),
        "load": round(os.getloadavg()[0], 1),
        "python": platform.python_version(),
        "celery": celery.__version__,
        "celery_batch": __version__,
        "commit": commit(),
    }


def write(measured: dict[str, Any], cases: dict[str, Case]) -> None:
    """
    Renew the measured part of the page, its data and its plot.

    Args:
        measured: Cases that were not measured this time keep what they had.
        cases: How each becomes tables.
    """
    before = json.loads(_DATA.read_text()) if _DATA.exists() else {"cases": {}}
    stamped = {
        name: {"about": measured["about"], **data} for name, data in measured["cases"].items()
    }
    known = before["cases"] | stamped
    known = {name: known[name] for name in cases if name in known}
    _DATA.write_text(json.dumps({"cases": known}, indent=1) + "\n")
    draw(known, _DOCS / "img")
    head, _, rest = _PAGE.read_text().partition(_BEGIN)
    _, _, tail = rest.partition(_END)
    _PAGE.write_text(f"{head}{_BEGIN}\n{_body(known, cases)}\n{_END}{tail}")


def _body(known: dict[str, Any], cases: dict[str, Case]) -> str:
    goals = [goal for name, data in known.items() for goal in cases[name].goals(data)]
    parts = [goals_table(goals).markdown()] if goals else []
    if (_DOCS / "img" / "benchmarks.svg").exists():
        parts.append("![Items a second, ours and the peers'](../img/benchmarks.svg)")
    for name, data in known.items():
        parts += [f"### {name}", *(table.markdown() for table in cases[name].tables(data))]
        parts.append(_where(data["about"]))
    return "\n\n".join(["", *parts, ""])


def _where(about: dict[str, Any]) -> str:
    commit = f", commit {about['commit']}" if about.get("commit") else ""
    return (
        f"Measured {about['date']} on {about['cores']} cores with {about['memory_gib']} GiB,"
        f" load {about['load']} before; {about['rounds']} rounds,"
        f" {about['share']:.0%} of the items; Python {about['python']}, Celery {about['celery']}"
        f"{commit}."
    )
