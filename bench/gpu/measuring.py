"""Workers with a model on a GPU, clients beside them, and what the model's calls wrote down."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from bench.gpu.app import app
from bench.gpu.models import CALLS
from bench.servers.workers_ready import wait_for_workers
from celery_batch.processes.managed_process import ManagedProcess

__all__ = ["Calls", "Place", "markdown", "workers_of"]

_ROOT = Path(__file__).parents[2]

#: Processes that send tasks and wait for results, as those of a web server do.
_CLIENTS = 4


class Calls:
    """The calls of a model, of which each adds a line to a file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @contextmanager
    def watched(self) -> Iterator[dict[str, Any]]:
        """Yield what is filled, in the end, with figures of the calls meanwhile."""
        seen = self._path.stat().st_size if self._path.exists() else 0
        figures: dict[str, Any] = {}
        yield figures
        with self._path.open() as calls:
            calls.seek(seen)
            lines = [[float(word) for word in line.split()] for line in calls]
        seconds = max(line[1] for line in lines) - min(line[0] for line in lines)
        rows = sum(line[3] for line in lines)
        figures["rate"] = rows / seconds
        figures["busy"] = _covered([(line[1] - line[2], line[1]) for line in lines]) / seconds
        figures["mean_batch"] = rows / len(lines)
        figures["tokens"] = sum(line[4] for line in lines)


def _covered(spans: Sequence[tuple[float, float]]) -> float:
    """Return the seconds that are in some span at least."""
    covered, end = 0.0, 0.0
    for first, last in sorted(spans):
        covered += max(last - max(first, end), 0.0)
        end = max(end, last)
    return covered


class Place:
    """Workers, and clients that have tasks for them."""

    def __init__(self, clients: ProcessPoolExecutor, calls: Calls) -> None:
        self._clients, self._calls = clients, calls

    def drain(self, name: str, items: Sequence[Any], rows: int = 0) -> dict[str, Any]:
        """Send a backlog of items, and return the answers in order, with figures."""
        share = -(-len(items) // _CLIENTS)
        share = -(-share // rows) * rows if rows else share
        parts = [items[first : first + share] for first in range(0, len(items), share)]
        with self._calls.watched() as figures:
            answers = [*self._clients.map(partial(_answers, name, rows), parts)]
        return {**figures, "answers": [answer for part in answers for answer in part]}

    def watched(self) -> Any:
        """Return what `Calls.watched` does."""
        return self._calls.watched()


def _answers(name: str, rows: int, items: Sequence[Any]) -> list[Any]:
    """Send items and wait for their answers; runs in a client."""
    task = app.tasks[name]
    if not rows:
        return [result.get(timeout=600) for result in task.delay_many(items)]
    chunks = [task.delay_rows(items[first : first + rows]) for first in range(0, len(items), rows)]
    return [answer for chunk in chunks for answer in chunk.get(timeout=600)]


@contextmanager
def workers_of(case: str, count: int = 1) -> Iterator[Place]:
    """Run stock workers with a case's models, all on one device; yield when they have loaded."""
    # Where packages lie in a folder on PYTHONPATH there is no program `celery`.
    command = [sys.executable, "-m", "celery", "-A", "bench.gpu.app", "worker"]
    command += ["--concurrency=1", "-l", "WARNING", "--without-mingle"]
    places = [str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        env = {**os.environ, "BENCH_GPU_CASE": case, CALLS: str(folder / "calls")}
        env["PYTHONPATH"] = os.pathsep.join(places)
        workers = [
            stack.enter_context(
                ManagedProcess([*command, "-n", f"w{n}@%h"], folder / f"log-{n}", env=env)
            )
            for n in range(count)
        ]
        wait_for_workers(app, count, workers, timeout=600)
        clients = ProcessPoolExecutor(_CLIENTS, mp_context=get_context("spawn"))
        yield Place(stack.enter_context(clients), Calls(folder / "calls"))
        for worker in workers:
            for line in worker.log.read_text().splitlines():
                if ": WARNING/" in line or ": ERROR/" in line:
                    sys.stderr.write(f"{line}\n")


def markdown(heads: str, rows: list[list[str]]) -> str:
    """Return a table in Markdown, given its heads between commas."""
    bars = "---|" * (heads.count(",") + 1)
    lines = [f"| {heads.replace(',', ' | ')} |", f"|{bars}"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])
