"""All cases of the benchmarks, by name."""

from __future__ import annotations

from typing import Any

from bench.cases import (
    arrays,
    backfill,
    cache,
    calls,
    clients,
    drains,
    forecast,
    gaps,
    keys,
    lengths,
    policies,
    scale,
    seeds,
    serve,
    shapes,
    share,
    streamers,
    target,
    web,
)
from bench.reports.tables import Case, Effort

__all__ = ["CASES", "measure"]

_ALL = (
    *drains.CASES,
    *calls.CASES,
    clients.CASE,
    scale.CASE,
    streamers.CASE,
    gaps.CASE,
    backfill.CASE,
    seeds.CASE,
    serve.CASE,
    web.CASE,
    forecast.CASE,
    lengths.CASE,
    keys.CASE,
    target.CASE,
    shapes.CASE,
    share.CASE,
    policies.CASE,
    cache.CASE,
    arrays.CASE,
)
#: By their names, in the order in which they are measured.
CASES: dict[str, Case] = {case.name: case for case in _ALL}


def measure(name: str, effort: Effort) -> dict[str, Any]:
    """Measure a case, in whatever process."""
    return CASES[name].measure(effort)
