"""``make backfill-kills``: inject faults into backfills at random moments, and compare outputs."""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from celery_batch.processes.managed_process import wait_until
from celery_batch.processes.redis_server import RedisServer
from tests.services.forked import begin, start
from tests.services.setup import CELERY

HERE = Path(__file__).parent
ROOT = HERE.parents[2]

ROWS = 3000

#: Bytes of a row in the partial file, about.
_ROW_BYTES = 44

#: Seconds for a trial to come to its end.
_LONG = 120.0


class Trial:
    """
    One backfill, with a Redis and a worker of its own.

    Args:
        folder: For files and logs.
        chance: What is random about it.
        keeps: Whether the Redis writes down what it has.
    """

    def __init__(self, folder, chance, *, keeps):
        self.folder, self.chance = folder, chance
        self._redis = RedisServer(folder / "redis", appendonly=keeps)
        self._worker = self._command = None
        self._starts = 0

    def __enter__(self):
        """Start everything but the command."""
        self._redis.start()
        self.start_worker()
        return self

    def __exit__(self, *_error):
        """Stop everything."""
        self.end()
        self._worker.stop()
        self._redis.stop()

    @property
    def out(self):
        """Where the output will be."""
        return self.folder / "out.jsonl"

    @property
    def computed(self):
        """The numbers that the model has seen, as often as it has."""
        path = self.folder / "computed"
        return path.read_text().split() if path.exists() else []

    def _env(self):
        urls = dict.fromkeys(("CELERY_BROKER_URL", "CELERY_RESULT_BACKEND"), self._redis.url)
        path = os.pathsep.join([str(HERE), str(ROOT)])
        return {**os.environ, **urls, "PYTHONPATH": path, "COMPUTED": f"{self.folder}/computed"}

    def start_worker(self):
        """Start a worker."""
        self._starts += 1
        log = self.folder / f"worker{self._starts}.log"
        command = [CELERY, "-A", "backfill_tasks", "worker", "-c1", "-lINFO", "--without-mingle"]
        self._worker = start(command, log, env=self._env())
        why = lambda: "" if "ready." in log.read_text() else "starts"  # noqa: E731
        wait_until(why, [self._worker], what="worker", timeout=90)

    def begin(self):
        """Start the command, the same each time."""
        files = ["--input", f"{self.folder}/in.jsonl", "--output", str(self.out)]
        command = [CELERY, "-A", "backfill_tasks", "batch", "backfill", "backfill_tasks.counted"]
        with (self.folder / "command.log").open("a") as log:
            words = [*command, *files, "--patience", "5"]
            self._command = begin(words, env=self._env(), errors=log)

    def end(self, number=signal.SIGKILL):
        """Send the command a signal, and return when it has ended."""
        if self._command is not None:
            self._command.send_signal(number)
            self._command.wait(_LONG)

    def finish(self):
        """Have the command end, begun anew as often as needed; return how often it ran."""
        runs, deadline = 1, time.monotonic() + _LONG
        while not self.out.exists():
            if self._command.poll() is not None:
                runs += 1
                self.begin()
            with suppress(subprocess.TimeoutExpired):
                self._command.wait(max(0.1, deadline - time.monotonic()))
            if time.monotonic() > deadline:
                raise TimeoutError((self.folder / "command.log").read_text()[-2000:])
        self._command.wait(_LONG)
        return runs

    def until(self, share):
        """Wait until about so much of the output is there."""
        partial = self.out.with_name("out.jsonl.partial")
        target = share * ROWS * _ROW_BYTES

        def why():
            size = partial.stat().st_size if partial.exists() else 0
            return "" if size >= target or self.out.exists() else f"{size} of {target} bytes"

        wait_until(why, [self._worker], what="backfill", timeout=_LONG)

    def kill_worker(self):
        """Kill all processes of the worker, and start another."""
        main = psutil.Process(self._worker.pid)
        for process in [*main.children(recursive=True), main]:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        self._worker.stop()
        self.start_worker()

    def kill_redis(self):
        """Kill the Redis, and start it again after a while."""
        main = psutil.Process(self._redis.child.pid)
        for process in main.children(recursive=True):
            process.kill()
        time.sleep(self.chance.uniform(0, 2))
        self._redis.stop()
        self._redis.start()


#: How each fault is injected, and whether the Redis writes down what it has.
FAULTS = {
    "producer, SIGKILL": (Trial.end, True),
    "producer, Ctrl-C": (lambda trial: trial.end(signal.SIGINT), True),
    "worker, SIGKILL": (Trial.kill_worker, True),
    "Redis, SIGKILL": (Trial.kill_redis, True),
    "Redis, SIGKILL, comes back empty": (Trial.kill_redis, False),
}


@dataclass(frozen=True)
class Outcome:
    """
    What became of one backfill.

    Args:
        fault: What was done.
        share: Of the output that was there, about.
        runs: Of the command.
        again: Rows that the model has seen more than once.
        identical: Whether the output is that of an undisturbed run.
        seconds: From the fault to the end.
    """

    fault: str
    share: float
    runs: int
    again: int
    identical: bool
    seconds: float


def attempt(fault, seed, folder):
    """Begin a backfill, inject one fault, and return the outcome."""
    inject, keeps = FAULTS[fault]
    chance = random.Random(seed)  # noqa: S311 (chance that can be repeated)
    share = chance.uniform(0.05, 0.9)
    rows = [{"id": f"r{n}", "number": n} for n in range(ROWS)]
    (folder / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with Trial(folder, chance, keeps=keeps) as trial:
        trial.begin()
        trial.until(share)
        since = time.monotonic()
        inject(trial)
        runs = trial.finish()
        seconds = time.monotonic() - since
    undisturbed = "".join(json.dumps({"key": f"r{n}", "output": 2 * n}) + "\n" for n in range(ROWS))
    return Outcome(
        fault,
        share,
        runs,
        len(trial.computed) - len(set(trial.computed)),
        trial.out.read_text() == undisturbed and len(set(trial.computed)) == ROWS,
        seconds,
    )


def table(outcomes):
    """Yield the lines of the documents' table, one for each fault."""
    yield "| fault | times | output identical | rows run again | seconds to the end |"
    yield "|---|---:|---:|---:|---:|"
    for fault in FAULTS:
        found = [each for each in outcomes if each.fault == fault]
        if found:
            same = sum(each.identical for each in found)
            again = _between([each.again for each in found])
            seconds = _between([round(each.seconds) for each in found])
            yield f"| {fault} | {len(found)} | {same} | {again} | {seconds} |"


def _between(numbers):
    low, high = min(numbers), max(numbers)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def main():
    """Try the seeds, each fault in turn; 1 if an output was another one."""
    parser = argparse.ArgumentParser(prog="make backfill-kills", description=__doc__)
    parser.add_argument("--seeds", type=int, default=20, help="how many trials (20)")
    outcomes = []
    for seed in range(parser.parse_args().seeds):
        with ExitStack() as stack:
            # Short, since a socket's path must be.
            folder = Path(tempfile.mkdtemp(prefix="kills-"))
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
            outcomes.append(attempt([*FAULTS][seed % len(FAULTS)], seed, folder))
        print(outcomes[-1], file=sys.stderr)  # noqa: T201 (it is a command)
    print("\n".join(table(outcomes)))  # noqa: T201
    sys.exit(not all(each.identical for each in outcomes))


if __name__ == "__main__":
    main()
