"""The charts of what was measured, for the documents."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

from celery_batch.formatting import figure as figure_of

__all__ = ["draw"]

_OURS, _LIMIT, _OTHERS = "#b03a2e", "#7f8c8d", "#aeb6bf"

#: Systems whose workers may be on other machines, from the fastest to the slowest, and their bars.
_SYSTEMS = {
    "pure": "the model alone",
    "ours": "celery_batch",
    "RedisStreamer": "service-streamer",
    "celery-batches": "celery-batches",
    "celery": "Celery",
}

_MODEL = """10 ms a call and 0.1 ms an item, in batches of 64.
In brackets the share of the model's rate;
lines: slowest to fastest round."""

#: Rules to draw; they differ in their marks too, for colour-blind readers.
_RULES = {
    "first come, 32 rows": (_LIMIT, "o:"),
    "TEI, 2,048 tokens": (_OTHERS, "^--"),
    "BentoML, 32 rows": (_OTHERS, "x-"),
    "infinity, 32 rows": ("#34495e", "s-"),
    "ours, 2,048 tokens": (_OURS, "o-"),
}


def draw(cases: dict[str, Any], folder: Path) -> list[Path]:
    """
    Draw what was measured, as SVG and as PNG; return the files.

    There are none if matplotlib is not installed or there is nothing to draw.
    """
    if "cost" not in cases or importlib.util.find_spec("matplotlib") is None:
        print("No chart: it needs matplotlib.", file=sys.stderr)
        return []
    import matplotlib as mpl  # noqa: PLC0415 - an extra

    mpl.use("Agg")
    mpl.rcParams["svg.hashsalt"] = "bench"  # the same figures give the same file
    from matplotlib import pyplot as plt  # noqa: PLC0415 - likewise

    figure, axes = plt.subplots(figsize=(5.4, 3.4))
    _bars(axes, cases["cost"]["rows"])
    paths = _save(figure, folder / "benchmarks")
    if "policies" in cases:
        by_load: dict[str, list[dict[str, Any]]] = {}
        for row in cases["policies"]["rows"]:
            by_load.setdefault(row["load"], []).append(row)
        # One above the other, so that its text can be read on a telephone.
        size = (4.8, 2.5 * len(by_load))
        figure, axes = plt.subplots(len(by_load), figsize=size, sharex=True, sharey=True)
        for panel, (load, rows) in zip(axes, by_load.items(), strict=True):
            _lines(panel, f"p99, {load} arrivals", rows)
        place = {"loc": "upper left", "borderaxespad": 0, "labelspacing": 0.2}
        axes[0].legend(fontsize=10, frameon=False, reverse=True, **place)
        axes[-1].set_xlabel("requests/s", fontsize=11)
        axes[-1].set_xlim(left=0)  # of all: they share the axis
        paths += _save(figure, folder / "policies")
    return paths


def _save(figure: Any, path: Path) -> list[Path]:
    figure.tight_layout()
    kinds = {".svg": {"Date": None}, ".png": {"Software": None}}
    for suffix, metadata in kinds.items():
        figure.savefig(path.with_suffix(suffix), dpi=120, metadata=metadata)
    figure.clear()
    return [path.with_suffix(suffix) for suffix in kinds]


def _lines(axes: Any, title: str, rows: list[dict[str, Any]]) -> None:
    """Draw the p99 of each rule against the rate, as far as the rule can serve it."""
    for rule, (colour, style) in _RULES.items():
        served = [row for row in rows if row["rule"] == rule and row["keeps_up"]]
        rates, p99 = [row["offered"] for row in served], [row["p99"] for row in served]
        axes.plot(
            rates,
            p99,
            style,
            color=colour,
            label=rule.replace("ours", "celery_batch"),
            markersize=5,
        )
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(lambda seconds, _: figure_of(seconds))
    axes.set_title(title, fontsize=11, loc="left", weight="bold")
    axes.xaxis.set_major_formatter(lambda rate, _: f"{rate:,.0f}")
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=10)


def _bars(axes: Any, rows: list[dict[str, Any]]) -> None:
    """Draw the best call of each system, with its share of the model's own rate."""
    best = {
        kind: max((row for row in rows if row["kind"] == kind), key=lambda row: row["rate"])
        for kind in reversed(_SYSTEMS)
        if any(row["kind"] == kind for row in rows)
    }
    rates = [row["rate"] for row in best.values()]
    spreads = [
        [row["rate"] - min(row["rates"]) for row in best.values()],
        [max(row["rates"]) - row["rate"] for row in best.values()],
    ]
    names = [_SYSTEMS[kind] for kind in best]
    bars = axes.barh(names, rates, xerr=spreads, color=[_colour(kind) for kind in best], height=0.7)
    labels = [f"{rate:,.0f}  ({rate / best['pure']['rate']:.0%})" for rate in rates]
    axes.bar_label(bars, labels=labels, padding=6, fontsize=11)
    axes.set_title("Items a second, the same model", fontsize=12, loc="left", weight="bold")
    axes.set_xlabel(_MODEL, fontsize=10, loc="left", labelpad=8)
    axes.set_xlim(right=max(rates) * 1.5)
    axes.set_xticks([])
    axes.spines[["top", "right", "bottom"]].set_visible(False)
    axes.tick_params(labelsize=11, length=0)


def _colour(kind: str) -> str:
    return {"pure": _LIMIT, "ours": _OURS}.get(kind, _OTHERS)
