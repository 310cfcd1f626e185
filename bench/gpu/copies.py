"""A backlog of images that are picked and copied in `predict`, or in `collate`."""

from __future__ import annotations

from typing import Any

from bench.gpu.measuring import markdown, workers_of
from bench.gpu.models import CollatedImages, CopiedImages
from bench.gpu.networks import IS_TINY

__all__ = ["measure", "table"]


def measure(seconds: float) -> list[dict[str, Any]]:
    """Return the figures of both models."""
    numbers = range(128 if IS_TINY else int(4000 * seconds))
    rows = []
    with workers_of("copies") as place:
        for where, model in (("predict", CopiedImages), ("collate", CollatedImages)):
            task = f"gpu.{model.__name__}"
            place.drain(task, numbers[:256])
            rows.append({"copied in": where, **place.drain(task, numbers)})
    same = sum(map(int.__eq__, *(row.pop("answers") for row in rows))) / len(numbers)
    return [row | {"same": same} for row in rows]


def table(rows: list[dict[str, Any]]) -> str:
    """Return a table of the figures in Markdown."""
    lines = [
        [
            row["copied in"],
            f"{row['rate']:,.0f}",
            f"{row['busy']:.0%}",
            f"{row['mean_batch']:.1f}",
            format(row["same"], ".1%"),
        ]
        for row in rows
    ]
    return markdown("copied in,images/s,busy,mean batch,same", lines)
