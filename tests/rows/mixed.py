"""
A fleet of two releases: a worker of one environment answers callers of another, under fire.

``python -m tests.rows.mixed PYTHON`` calls tasks with the environment that runs it, in 32
threads, and has the worker run in the other one.  Meanwhile the worker is killed twice, with
all its processes, and Redis is started again.  Every caller waits for each of its results.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any
from uuid import uuid4

from celery import Celery
from celery.exceptions import TimeoutError as CeleryTimeoutError

from celery_batch import BatchTask
from tests.faults.brokers import RedisBroker
from tests.faults.supervised_worker import SupervisedWorker

ROOT = Path(__file__).parents[2]

#: Callers, and the calls of each that are on their way.
THREADS, WINDOW = 32, 20

#: Seconds that a caller waits for one result, and tries to send one call.
PATIENCE = 60.0


class _Callers:
    """
    Call a task for each number below a limit, and count how that ends.

    Args:
        url: Of broker and result backend.
        count: The limit.
    """

    def __init__(self, url: str, count: int) -> None:
        self.app = Celery("callers", broker=url, backend=url, set_as_current=False)
        self._task = self.app.task(base=BatchTask, name="faults.double", shared=False)(_double)
        self._waiting = iter(range(count))
        self._guard = threading.Lock()
        self.ends: Counter[str] = Counter()
        self._threads = [threading.Thread(target=self._run, daemon=True) for _ in range(THREADS)]

    def start(self) -> None:
        """Begin to call; return at once."""
        for thread in self._threads:
            thread.start()

    def wait_for(self, count: int) -> None:
        """Return when so many calls have ended, or all callers have."""
        while self.ends.total() < count and any(each.is_alive() for each in self._threads):
            time.sleep(0.01)

    def join(self) -> None:
        """Return when every caller has ended."""
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        while numbers := self._next():
            results = [(number, self._send(number)) for number in numbers]
            ends = [self._end(number, result) for number, result in results]
            with self._guard:
                self.ends.update(ends)

    def _next(self) -> list[int]:
        with self._guard:
            return [number for _, number in zip(range(WINDOW), self._waiting, strict=False)]

    def _send(self, number: int) -> Any:
        """Send a call until the broker takes it; None if it never does."""
        task_id, deadline = str(uuid4()), time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            try:
                return self._task.apply_async((number, "good", None), task_id=task_id)
            except Exception:  # noqa: BLE001 (whatever it was, the caller tries again)
                time.sleep(0.1)
        return None

    def _end(self, number: int, result: Any) -> str:
        if result is None:
            return "not sent"
        try:
            return "right" if result.get(timeout=PATIENCE) == 2 * number else "wrong"
        except CeleryTimeoutError:
            with self.app.connection_for_read() as connection:  # is it there?
                has_ended = connection.default_channel.client.exists(
                    f"celery-task-meta-{result.id}"
                )
            return "hung" if has_ended else "lost"
        except Exception as error:  # noqa: BLE001 (it is shown)
            return repr(error)


def _double(x: Any, mood: Any, load: Any) -> Any:
    raise NotImplementedError  # it runs in the worker


@contextmanager
def _worker(python: str, folder: Path, url: str) -> Iterator[SupervisedWorker]:
    conf = {"broker_url": url, "result_backend": url}
    env = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "PYTHONUNBUFFERED": "1",
        "FAULTS_CONF": json.dumps(conf),
        "FAULTS_LEDGER": str(folder / "ledger"),
        "FAULTS_TASK": "plain",
        "FAULTS_SECONDS_PER_ITEM": "0.0005",
    }
    worker = SupervisedWorker("w1", folder, env, 1, python=python)
    worker.launch()
    try:
        worker.wait()
        yield worker
    finally:
        worker.stop()


def _strike(broker: RedisBroker, worker: SupervisedWorker, strike: str) -> None:
    if strike == "kill -9":
        worker.signal(signal.SIGKILL)
        worker.ended(timeout=30)
        worker.launch()
        worker.wait()
    else:
        broker.halt()
        broker.revive()


def main() -> int:
    """Print how the calls ended; 1 unless each had its own answer."""
    parser = argparse.ArgumentParser(prog="python -m tests.rows.mixed", description=__doc__)
    parser.add_argument("python", help="the interpreter of the worker's environment")
    parser.add_argument("--items", type=int, default=10_000, help="calls in all (10,000)")
    parser.add_argument("--seed", type=int, default=0, help="of the moments (0)")
    options = parser.parse_args()
    chance = Random(options.seed)  # noqa: S311 (of moments)
    moments = sorted(chance.sample(range(options.items // 10, options.items * 9 // 10), 3))
    strikes = ["kill -9", "kill -9", "Redis again"]
    chance.shuffle(strikes)
    with tempfile.TemporaryDirectory(prefix="mixed-") as name:
        broker = RedisBroker(Path(name) / "redis")
        try:
            with _worker(options.python, Path(name), broker.url()) as worker:
                callers = _Callers(broker.url(), options.items)
                callers.start()
                for moment, strike in zip(moments, strikes, strict=True):
                    callers.wait_for(moment)
                    _strike(broker, worker, strike)
                callers.join()
                callers.app.close()
        finally:
            broker.close()
    ends = ", ".join(f"{end} {count}" for end, count in callers.ends.most_common())
    when = ", ".join(f"{strike} at {at}" for at, strike in zip(moments, strikes, strict=True))
    print(f"{options.items} calls, seed {options.seed} ({when}): {ends}")  # noqa: T201
    return int(callers.ends["right"] != options.items)


if __name__ == "__main__":
    sys.exit(main())
