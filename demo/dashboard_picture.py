"""
The dashboard's picture in ``docs/img``, drawn anew: ``python -m demo.dashboard_picture``.

Grafana's panels, with what a real Prometheus answers to their questions about a real
worker under load; so their numbers are this machine's.
"""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sysconfig
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import matplotlib as mpl
from celery import Celery
from matplotlib import pyplot as plt
from matplotlib.ticker import FuncFormatter

from demo.pictures import keep
from demo.prometheus import SHIPPED, Prometheus
from demo.servers import Servers

__all__ = ["main"]

_DASHBOARD = SHIPPED.parent / "grafana" / "dashboards" / "celery_batch.json"

#: What Grafana fills in.
_FILLED_IN = {"$task": "workers.infill", "$instance": ".+", "$__rate_interval": "10s"}

#: Left out where nothing of it is to be seen here.
_ABSENT = re.compile("GPU|main process")

#: A program that asks: a trickle, a crowd, more than can be answered at once, some of it bad.
_LOAD = """
import random, time
from workers.infill import infill
chance = random.Random(7)
good, bad = "twinkle twinkle [MASK] star.", "no blank here"
def ask(seconds, count, pause):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        infill.delay_many([good if chance.random() > 0.01 else bad for _ in range(count())])
        time.sleep(pause())
ask(15, lambda: 1, lambda: chance.random() / 10)
ask(25, lambda: chance.choice((4, 16, 60)), lambda: chance.random() / 8)
infill.delay_many([good] * 6000)
infill.apply_many([((good,), {})] * 300, expires=0.5)
ask(25, lambda: chance.choice((4, 16)), lambda: chance.random() / 8)
"""

_COLOURS = ("#3274d9", "#e0752d", "#299c46", "#a352cc", "#b8a02b", "#c4162a")

_UNITS: dict[str, Callable[[float], str]] = {
    "percentunit": lambda value: f"{value:.0%}",
    "s": lambda value: f"{value:.1f} s" if value >= 1 else f"{value * 1000:.3g} ms",
    "bytes": lambda value: f"{value / 1e6:.0f} MB",
}


def main() -> None:
    """Start everything, load it, draw, stop everything."""
    os.environ["CELERY_BATCH_METRICS"] = "127.0.0.1:0"
    with Servers() as servers:
        servers.start(print)
        prometheus = Prometheus(servers.folder, {"celery_batch": [_address(servers.redis.url)]})
        began = time.time()
        python = str(Path(sysconfig.get_path("scripts")) / "python")
        urls = dict.fromkeys(("CELERY_BROKER_URL", "CELERY_RESULT_BACKEND"), servers.redis.url)
        subprocess.run([python, "-c", _LOAD], env={**os.environ, **urls}, check=True)  # noqa: S603
        try:
            keep("dashboard.png", _draw(partial(_look, prometheus, began + 16, time.time())))
        finally:
            prometheus.child.stop()


def _address(broker: str) -> str:
    """Ask the worker where it is to be scraped."""
    with Celery(broker=broker, set_as_current=False) as app:
        (reply,) = app.control.broadcast("batch_stats", reply=True, timeout=10.0, limit=1)
    (stats,) = reply.values()
    return urlsplit(str(stats["metrics"])).netloc


def _look(prometheus: Prometheus, start: float, end: float, query: str) -> list[dict[str, Any]]:
    """Return the series that a query of the dashboard finds, each with its points."""
    for name, value in _FILLED_IN.items():
        query = query.replace(name, value)
    span = {"start": str(start), "end": str(end), "step": "1"}
    found: list[dict[str, Any]] = prometheus.ask("query_range", query=query, **span)["result"]
    for series in found:
        series["points"] = [(float(at) - start, float(value)) for at, value in series["values"]]
    return found


def _draw(look: Callable[[str], list[dict[str, Any]]]) -> bytes:
    mpl.use("Agg")
    panels = json.loads(_DASHBOARD.read_text())["panels"]
    stats = [panel for panel in panels if panel["type"] == "stat"]
    charts = [
        panel for panel in panels if panel["type"] != "stat" and not _ABSENT.search(panel["title"])
    ]
    rows = -(-len(charts) // 3)
    figure = plt.figure(figsize=(13, 1.1 + 2.35 * rows), facecolor="#f4f5f5")
    grid = figure.add_gridspec(rows + 1, 1, height_ratios=[0.45, *[1.0] * rows], hspace=0.5)
    for place, panel in zip(_places(figure, grid[0], len(stats)), stats, strict=True):
        _stat(place, panel, look(panel["targets"][0]["expr"]))
    for row in range(rows):
        shown = charts[3 * row : 3 * row + 3]
        for place, panel in zip(_places(figure, grid[row + 1], 3), shown, strict=False):
            _chart(place, panel, look)
    figure.subplots_adjust(left=0.045, right=0.985, top=0.97, bottom=0.035)
    drawn = io.BytesIO()
    figure.savefig(drawn, dpi=100, facecolor=figure.get_facecolor())
    plt.close(figure)
    return drawn.getvalue()


def _places(figure: Any, cell: Any, count: int) -> list[Any]:
    inner = cell.subgridspec(1, count, wspace=0.2)
    return [figure.add_subplot(inner[0, column]) for column in range(count)]


def _stat(place: Any, panel: dict[str, Any], found: list[dict[str, Any]]) -> None:
    """Show one number, that of the moment in the middle of the load."""
    points = found[0]["points"] if found else []
    shown = _formatted(panel, points[len(points) * 2 // 3][1]) if points else "no data"
    place.set(xticks=[], yticks=[], facecolor="white")
    place.spines[:].set_visible(False)
    place.set_title(panel["title"], fontsize=9, loc="left")
    place.text(0.5, 0.45, shown, ha="center", va="center", fontsize=20, color=_COLOURS[2])


def _chart(place: Any, panel: dict[str, Any], look: Callable[[str], list[dict[str, Any]]]) -> None:
    place.set_facecolor("white")
    place.set_title(panel["title"], fontsize=9, loc="left")
    place.tick_params(labelsize=7, length=2)
    place.spines[["top", "right"]].set_visible(False)
    place.grid(visible=True, color="#e3e5e8", linewidth=0.5)
    place.xaxis.set_major_formatter(FuncFormatter(lambda at, _: f"{at:.0f} s"))
    if panel["type"] == "heatmap":
        _heatmap(place, look(panel["targets"][0]["expr"]))
        return
    series = [
        (_label(target["legendFormat"], each["metric"]), each["points"])
        for target in panel["targets"]
        for each in look(target["expr"])
        if any(value == value and value for _, value in each["points"])  # noqa: PLR0124 (not a number)
    ]
    for (label, points), colour in zip(series, _COLOURS * 2, strict=False):
        place.plot(*zip(*points, strict=True), label=label, color=colour, linewidth=1.2)
    highest = max((value for _, points in series for _, value in points), default=0.0)
    place.set_ylim(0, highest * 1.3 or 1.0)  # with room for the legend
    place.yaxis.set_major_formatter(FuncFormatter(lambda value, _: _formatted(panel, value)))
    if series:
        place.legend(fontsize=6.5, frameon=False, loc="upper left", ncols=2)
    else:
        place.set(xticks=[], yticks=[])
        place.text(0.5, 0.5, "none", ha="center", va="center", color="#8e8e8e", fontsize=9)


def _heatmap(place: Any, found: list[dict[str, Any]]) -> None:
    """Show how many batches were in each bucket: each series counts those below as well."""
    found = sorted(found, key=lambda each: float(each["metric"]["le"]))[:-1]
    rows = [[value for _, value in each["points"]] for each in found]
    least = min(map(len, rows))
    counts = [
        [max(upper - lower, 0.0) for upper, lower in zip(row[:least], below[:least], strict=True)]
        for row, below in zip(rows, [[0.0] * least, *rows], strict=False)
    ]
    times = [at for at, _ in found[0]["points"][:least]]
    shown = [[value**0.5 for value in row] for row in counts]
    place.pcolormesh(times, range(len(shown)), shown, cmap="Oranges", shading="nearest")
    place.set_yticks(range(len(found)), [each["metric"]["le"] for each in found])
    place.grid(visible=False)


def _label(form: str, labels: dict[str, str]) -> str:
    return re.sub(r"\{\{(\w+)\}\}", lambda found: labels.get(found[1], ""), form)


def _formatted(panel: dict[str, Any], value: float) -> str:
    unit = panel["fieldConfig"]["defaults"]["unit"]
    return _UNITS[unit](value) if unit in _UNITS else f"{value:,.4g}"


if __name__ == "__main__":
    main()
