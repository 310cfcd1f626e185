"""
Where the CPU goes: ``python -m bench.profiles worker|client``.

py-spy looks into the running processes from outside, so it sees every thread
and costs them next to nothing.  It shows the worker's two processes while they
drain what is queued, or the client while it sends and waits.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil

from bench.models.reference import expected
from bench.queued_copies import QueuedCopies
from bench.reports.tables import ResultTable
from bench.servers.stack import Stack, broker, running
from celery_batch.errors import ConfigurationError
from celery_batch.processes.managed_process import wait_until

_PER_SECOND = 250
_TOP = 25


def main() -> int:
    """Profile, and print a table for each process."""
    parser = argparse.ArgumentParser(prog="python -m bench.profiles", description=__doc__)
    parser.add_argument("what", choices=["worker", "client"])
    parser.add_argument("--model", default="noop", choices=["noop", "cost"])
    parser.add_argument("--items", type=int, default=30_000)
    parser.add_argument("--gil", action="store_true", help="count only threads that hold the GIL")
    options = parser.parse_args()
    with broker(), running("--concurrency=1") as stack:
        task = stack.app.tasks[f"bench.{options.model}"]
        work = _drain if options.what == "worker" else _ask
        processes = _worker(stack) if options.what == "worker" else {"client": psutil.Process()}
        work(task, options.items // 10)
        for table in _watch(processes, lambda: work(task, options.items), gil=options.gil):
            print(f"\n{table.markdown()}")
    return 0


def _worker(stack: Stack) -> dict[str, psutil.Process]:
    (consumer,) = psutil.Process(stack.worker.pid).children()
    (pool,) = consumer.children()
    return {"consumer process": consumer, "pool process": pool}


def _drain(task: object, items: int) -> None:
    copies = QueuedCopies(task)
    copies.lay(items, items)
    copies.release()
    wait_until(lambda: f"{copies.left()} left"[: copies.left()], [], what="answers", timeout=600)
    copies.check(items, items)


def _ask(task: Any, items: int) -> None:
    results = task.delay_many(list(range(items)))
    if [result.get(timeout=600) for result in results] != expected(range(items)):
        raise AssertionError("wrong answers")


def _watch(
    processes: dict[str, psutil.Process], work: Callable[[], object], *, gil: bool
) -> list[ResultTable]:
    """Have py-spy sample these processes while something works."""
    spy = shutil.which("py-spy", path=f"{Path(sys.executable).parent}")
    if spy is None:
        raise ConfigurationError("no py-spy found: pip install py-spy")
    with ExitStack() as exits:
        folder = Path(exits.enter_context(tempfile.TemporaryDirectory()))
        spies = {}
        for name, process in processes.items():
            output = folder / f"{process.pid}.txt"
            record = ["record", "--format", "raw", "--rate", str(_PER_SECOND), "--nonblocking"]
            command = [spy, *record, *["--gil"] * gil, "-o", str(output), "-p", str(process.pid)]
            spies[name] = (
                subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE),
                output,
            )
        before = {name: sum(process.cpu_times()[:2]) for name, process in processes.items()}
        work()
        tables = []
        for name, (each, output) in spies.items():
            each.send_signal(2)
            each.communicate(timeout=60)
            used = sum(processes[name].cpu_times()[:2]) - before[name]
            tables.append(_table(name, output.read_text().splitlines(), used))
        return tables


def _table(name: str, lines: list[str], used: float) -> ResultTable:
    """Make a table of stacks: functions on top of one, and anywhere in one."""
    own: Counter[str] = Counter()
    below: Counter[str] = Counter()
    for line in lines:
        frames, _, count = line.rpartition(" ")
        names = [_short(frame) for frame in frames.split(";")]
        own[names[-1]] += int(count)
        below.update(dict.fromkeys(names, int(count)))
    total = sum(own.values()) or 1
    rows = [
        (function, f"{own[function] / total:.1%}", f"{seen / total:.1%}")
        for function, seen in below.most_common()
        if own[function] / total > 0.005  # noqa: PLR2004 - less is noise
    ]
    rows.sort(key=lambda row: -float(row[1].rstrip("%")))
    title = f"{name}: {used:.1f} s of CPU, {total} samples"
    return ResultTable(title, ("function", "itself", "with what it calls"), rows[:_TOP])


def _short(frame: str) -> str:
    function, _, place = frame.partition(" (")
    return f"{function} ({'/'.join(place.rpartition(':')[0].split('/')[-2:])})"


if __name__ == "__main__":
    sys.exit(main())
