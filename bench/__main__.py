"""``make bench``: latency, throughput and memory on this machine, as tables."""

from __future__ import annotations

import argparse
import sys

from rich.console import Console
from rich.table import Table

from bench import lone, loop, memory
from bench.stack import broker

_console = Console()


def main() -> int:
    """Run the benchmarks and print their tables."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--requests", type=int, default=50_000, help="for the memory (50,000)")
    parser.add_argument("only", nargs="*", help="lone, loop, memory; all unless named")
    options = parser.parse_args()
    chosen = options.only or ["lone", "loop", "memory"]
    with broker():
        if "lone" in chosen:
            _console.print(_lone(lone.measure()))
        if "loop" in chosen:
            _console.print(_loop(loop.measure()))
    if "memory" in chosen:
        _console.print(_memory(memory.measure(options.requests, _console.print)))
    return 0


def _table(title: str, *headings: str) -> Table:
    table = Table(title=title, title_justify="left")
    for heading in headings:
        table.add_column(heading, justify="left" if heading in ("pool", "task") else "right")
    return table


def _lone(rows: list[lone.Lone]) -> Table:
    table = _table(
        "A lone request to an idle worker, max_wait=0.1 (milliseconds)",
        *("pool", "task", "model's own", "p50", "p99", "p50 above the model"),
    )
    for row in rows:
        times = (row.own, row.p50, row.p99, row.p50 - row.own)
        table.add_row(row.pool, row.task, *(f"{1000 * seconds:.1f}" for seconds in times))
    return table


def _loop(rows: list[loop.Loop]) -> Table:
    table = _table(
        "64 threads in a closed loop, 10 ms + 0.1 ms per item (median of interleaved rounds)",
        *("task", "requests/s", "ratio", "p50 ms", "p99 ms", "mean batch", "why they formed"),
    )
    for row in rows:
        reasons = ", ".join(f"{count} {reason}" for reason, count in sorted(row.reasons.items()))
        table.add_row(
            row.task,
            f"{row.rate:.0f}",
            f"{row.rate / rows[0].rate:.1f}",
            f"{1000 * row.p50:.0f}",
            f"{1000 * row.p99:.0f}",
            f"{row.mean_batch:.1f}",
            reasons,
        )
    return table


def _memory(rows: list[memory.Memory]) -> Table:
    table = _table("Memory of its own (MiB)", "process", "after warm-up", "at the end", "growth")
    for row in rows:
        first, last = (f"{size / 2**20:.1f}" for size in (row.sizes[0], row.sizes[-1]))
        table.add_row(row.process, first, last, f"{row.growth:+.1%}")
    return table


if __name__ == "__main__":
    sys.exit(main())
