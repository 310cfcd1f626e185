"""``make demo``: a stock worker answers one by one and in batches, and a table compares."""

from __future__ import annotations

import argparse
import itertools
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from celery_batch.errors import BatchError
from demo.command import run_command
from demo.counts import read_counts
from demo.http_client import post_json
from demo.load import Load, Question, run_load
from demo.servers import SENTENCES, Servers

__all__ = ["main"]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A path, the task that it calls, and how that runs its requests."""

    path: str
    task: str
    served: str


class Result(NamedTuple):
    """What was measured at one endpoint."""

    endpoint: Endpoint
    load: Load
    mean_batch: float


class DemoFailed(BatchError):
    """The demo did not show what it promises."""


ENDPOINTS = [
    Endpoint("/naive", "workers.infill_one", "one by one"),
    Endpoint("/stream", "workers.infill", "batched"),
]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo; return the exit code, 0 when it showed all it promises."""
    parser = argparse.ArgumentParser(prog="python -m demo", description=__doc__)
    parser.add_argument("--requests", type=int, default=2000, help="to each path (default 2000)")
    parser.add_argument("--clients", type=int, default=128, help="at once (default 128)")
    options = parser.parse_args(arguments)
    return run_command(lambda console: _demo(console, options.requests, options.clients))


def _demo(console: Console, requests: int, clients: int) -> None:
    """Start everything, show it, stop everything."""
    with Servers() as servers:
        servers.start(lambda line: console.print(line, markup=False))
        _show(servers, console, requests, clients)


def _show(servers: Servers, console: Console, requests: int, clients: int) -> None:
    """Print the answers, put both endpoints under load, print the table."""
    questions = _ask(servers)
    lines = [f"{question.sentence} → {question.answer}" for question in questions]
    console.print("", *lines, "", sep="\n", markup=False, highlight=False)
    results = []
    with _progress(console) as progress:
        for endpoint in ENDPOINTS:
            asked = list(itertools.islice(itertools.cycle(questions), requests))
            results.append(_measure(servers, endpoint, asked, clients, progress))
    title = f"{requests} requests of one sentence each, {clients} clients at once"
    console.print("", _table(title, results), sep="\n")
    for result in results:
        if result.load.errors:
            raise DemoFailed(_complaint(result, servers))


def _ask(servers: Servers) -> list[Question]:
    """Ask the sentences in one HTTP request."""
    answers = post_json(f"{servers.web_url}/predict", {"inputs": SENTENCES})["outputs"]
    return [Question(*pair) for pair in zip(SENTENCES, answers, strict=True)]


def _measure(
    servers: Servers,
    endpoint: Endpoint,
    questions: Sequence[Question],
    clients: int,
    progress: Progress,
) -> Result:
    """Put one endpoint under load."""
    before = read_counts(servers.redis.url, endpoint.task, check=servers.check)
    bar = progress.add_task(endpoint.path, total=len(questions))
    load = run_load(
        f"{servers.web_url}{endpoint.path}",
        questions,
        clients=clients,
        on_answer=lambda: progress.advance(bar),
        check=servers.check,
    )
    after = read_counts(servers.redis.url, endpoint.task, check=servers.check)
    return Result(endpoint, load, after.mean_since(before))


def _progress(console: Console) -> Progress:
    columns = [TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()]
    # Drawn seldom: it shares the processors with what is measured.
    return Progress(*columns, TimeElapsedColumn(), console=console, refresh_per_second=4)


def _table(title: str, results: Sequence[Result]) -> Table:
    table = Table("path", "served", title=title)
    for heading in ("requests/s", "p50 ms", "p99 ms", "mean batch", "errors"):
        table.add_column(heading, justify="right")
    for endpoint, load, mean_batch in results:
        table.add_row(
            endpoint.path,
            endpoint.served,
            f"{load.per_second:.0f}",
            f"{1000 * load.quantile(0.5):.0f}",
            f"{1000 * load.quantile(0.99):.0f}",
            f"{mean_batch:.1f}",
            str(len(load.errors)),
        )
    return table


def _complaint(result: Result, servers: Servers) -> str:
    errors = Counter(result.load.errors).most_common(3)
    lines = [f"{len(result.load.errors)} requests to {result.endpoint.path} failed:"]
    lines += [f"  {count} times {error}" for error, count in errors]
    return "\n".join([*lines, servers.tail("web"), servers.tail("worker")])


if __name__ == "__main__":
    sys.exit(main())
