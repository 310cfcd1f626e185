"""The chart of docs/benchmarks.md: items a second of each system beside the pure loop."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

__all__ = ["draw"]

_OURS, _LIMIT, _OTHERS = "#b03a2e", "#7f8c8d", "#aeb6bf"

#: Cases with rates to draw, and the title of each chart.
_CHARTS = {
    "cost": '"cost": 10 ms a call, 0.1 ms an item',
    "noop": '"noop": messages alone',
    "bert": '"bert": 20 ms a call, 2.05 ms an item',
}


def draw(cases: dict[str, Any], folder: Path) -> list[Path]:
    """
    Draw what was measured, as SVG and as PNG.

    Args:
        cases: What was measured, by case.
        folder: Where the files go.

    Returns:
        The files; none if matplotlib is not installed or there is nothing to draw.
    """
    charts = {name: cases[name]["rows"] for name in _CHARTS if name in cases}
    if not charts or importlib.util.find_spec("matplotlib") is None:
        print('No chart: it needs pip install "celery-batch[bench]".', file=sys.stderr)
        return []
    import matplotlib as mpl  # noqa: PLC0415 - an extra

    mpl.use("Agg")
    mpl.rcParams["svg.hashsalt"] = "bench"  # the same figures give the same file
    from matplotlib import pyplot as plt  # noqa: PLC0415 - likewise

    figure, axes = plt.subplots(1, len(charts), figsize=(5 * len(charts), 4), squeeze=False)
    for panel, (name, rows) in zip(axes[0], charts.items(), strict=True):
        _bars(panel, _CHARTS[name], rows)
    figure.tight_layout()
    paths = [folder / f"benchmarks.{kind}" for kind in ("svg", "png")]
    for path in paths:
        metadata = {"Date": None} if path.suffix == ".svg" else {"Software": None}
        figure.savefig(path, dpi=120, metadata=metadata)
    plt.close(figure)
    return paths


def _bars(axes: Any, title: str, rows: list[dict[str, Any]]) -> None:
    several = len({row["workers"] for row in rows}) > 1
    names = [f"{row['kind']} ({row['workers']})" if several else row["kind"] for row in rows]
    rates = [row["rate"] for row in rows]
    colours = [_colour(row["kind"]) for row in rows]
    bars = axes.barh(names[::-1], rates[::-1], color=colours[::-1])
    axes.bar_label(bars, labels=[f"{rate:,.0f}" for rate in rates[::-1]], padding=3, fontsize=8)
    axes.set_title(title, fontsize=10)
    axes.set_xlabel("items/s (workers in brackets)" if several else "items/s")
    axes.margins(x=0.18)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=8)


def _colour(kind: str) -> str:
    if kind == "pure":
        return _LIMIT
    return _OURS if kind.startswith("our") else _OTHERS
