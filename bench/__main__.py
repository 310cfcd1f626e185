"""``make bench``: ours and the peers on this machine, as tables, JSON, a plot and a document."""

from __future__ import annotations

import argparse
import json
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from rich.console import Console

from bench.all_cases import CASES, measure
from bench.reports import document
from bench.reports.tables import Effort, goals_table

#: Columns in a file or a pipe, so that no cell is cut.
_WIDTH = 160


def main() -> int:
    """Measure the chosen cases and show them."""
    options = _options()
    chosen = options.cases or [name for name, case in CASES.items() if case.by_default]
    rounds, share = (1, 0.1) if options.quick else (options.rounds, options.share)
    effort = Effort(rounds, share, peers=not options.no_peers)
    console = Console(width=None if sys.stdout.isatty() else _WIDTH)
    measured = {"about": document.about(effort), "cases": {}}
    for name in chosen:
        started = time.monotonic()
        data = _measured(name, effort)
        measured["cases"][name] = data
        for table in CASES[name].tables(data):
            console.print(table.rich())
        console.print(f"[dim]{name}: {time.monotonic() - started:.0f} s[/dim]\n")
        if options.write:
            document.write({**measured, "cases": {name: data}}, list(CASES))
    _conclude(measured, options, console)
    return 0


def _measured(name: str, effort: Effort) -> dict[str, Any]:
    """Measure a case in a process of its own: an app keeps what it has of its first broker."""
    with ProcessPoolExecutor(1, get_context("spawn")) as process:
        return process.submit(measure, name, effort).result()


def _conclude(measured: dict[str, Any], options: argparse.Namespace, console: Console) -> None:
    found = [goal for name, data in measured["cases"].items() for goal in CASES[name].goals(data)]
    console.print(goals_table(found).rich())
    if options.json:
        options.json.write_text(json.dumps(measured, indent=1) + "\n")


def _options() -> argparse.Namespace:
    cases = "\n".join(f"  {case.name:10}{case.about}" for case in CASES.values())
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description=__doc__,
        epilog=f"cases:\n{cases}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("cases", nargs="*", choices=[*CASES, []], help="all unless named")
    parser.add_argument("--quick", action="store_true", help="one round of a tenth of the items")
    parser.add_argument(
        "--rounds", type=int, default=5, help="how often each system is measured (5)"
    )
    parser.add_argument("--share", type=float, default=1.0, help="of the full number of items (1)")
    parser.add_argument("--no-peers", action="store_true", help="ours and the pure loop only")
    parser.add_argument("--json", type=Path, help="write what was measured to this file")
    parser.add_argument(
        "--write", action="store_true", help="renew the records, figures and pictures in docs"
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
