"""What was measured, as the documents have it: records, pictures, figures and tables."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil

from bench.reports import figures
from bench.reports.plot import draw
from bench.reports.tables import Effort
from bench.reports.versions import commit, cpu_name, versions
from celery_batch import __version__

__all__ = ["about", "write"]

_IMAGES = Path(__file__).parents[2] / "docs" / "img"


def about(effort: Effort) -> dict[str, Any]:
    """Return where, when, with what and how thoroughly this is measured."""
    return {
        "date": datetime.now(tz=UTC).strftime("%Y-%m-%d"),
        "rounds": effort.rounds,
        "share": effort.share,
        "cores": os.cpu_count(),
        "cpu": cpu_name(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30),
        "load": round(os.getloadavg()[0], 1),
        **versions(peers=effort.peers),
        "celery_batch": __version__,
        "commit": commit(),
    }


def write(measured: dict[str, Any], names: list[str]) -> None:
    """Renew the records, the pictures and the figures of all pages."""
    path = figures.CASES_FILE
    before = json.loads(path.read_text()) if path.exists() else {"cases": {}}
    stamped = {
        name: {"about": measured["about"], **data} for name, data in measured["cases"].items()
    }
    known = before["cases"] | stamped
    known = {name: known[name] for name in names if name in known}
    path.write_text(json.dumps({"cases": known}, indent=1) + "\n")
    draw(known, _IMAGES)
    figures.write(figures.load())
