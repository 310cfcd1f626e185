"""Traces of a task's requests: when they came, what they cost, how many rows they had."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from celery_batch.cluster.control_client import ControlClient
from celery_batch.errors import ConfigurationError
from celery_batch.tuning.simulate import Load

__all__ = ["load_of", "record"]

#: Seconds between two looks at the workers, and for how long they record without one.
_EVERY, _KEPT = 1.0, 15.0

#: Seconds in which workers reply, and how often one that does not is asked at the end.
_TIMEOUT, _TRIES = 1.0, 10

#: What fewer requests say is chance, and more take minutes to simulate.
_FEWEST, _MOST = 100, 20_000


def record(
    app: Any, task: str, path: Path, seconds: float, report: Callable[[str], None]
) -> tuple[int, int]:
    """Record arrivals until Ctrl-C or the end; return how many, and how many processes had them."""
    with closing(ControlClient(app)) as client:
        recording = _Recording(client, task)
        recording.look()
        until = time.monotonic() + seconds
        try:
            while (left := until - time.monotonic()) > 0:
                time.sleep(min(_EVERY, left))
                recording.look()
                report(f"{len(recording.arrived):,} requests recorded")
        except KeyboardInterrupt:
            recording.look()
        recording.finish()
    arrived = sorted(recording.arrived)
    if not arrived:
        raise ConfigurationError(f"{task}: no request arrived in {seconds:g} s")
    lines = [{"task": task, "processes": recording.processes}]
    lines += [dict(zip(("arrived", "cost", "rows"), each, strict=True)) for each in arrived]
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return len(arrived), recording.processes


class _Recording:
    """What the running workers say of a task's arrivals."""

    def __init__(self, client: ControlClient, task: str) -> None:
        self._client = client
        self._task = task
        #: For each worker the number of its next arrival; None before the first look.
        self._seen: dict[str, int] | None = None
        self._processes: dict[str, int] = {}
        #: The workers to which requests came.
        self._busy: set[str] = set()
        #: The workers that have not replied to the last look.
        self._late: set[str] = set()  # they keep their arrivals until told that they were seen
        self.arrived: list[tuple[float, float, int]] = []

    @property
    def processes(self) -> int:
        """The number of processes of the workers to which requests came."""
        return sum(self._processes[worker] for worker in self._busy)

    def look(self) -> None:
        """Add what has arrived since the last look; the first look starts the recording."""
        replies = self._client.ask_batch_workers("batch_trace", _TIMEOUT, self._arguments)
        self._note(replies)
        self._late = self._processes.keys() - replies.keys()

    @property
    def _arguments(self) -> dict[str, Any]:
        return {"task": self._task, "seconds": _KEPT, "seen": self._seen}

    def _note(self, replies: dict[str, Any]) -> None:
        found = {worker: reply["ok"] for worker, reply in replies.items() if "ok" in reply}
        if self._seen is None and not found:
            raise ConfigurationError(
                f"{self._task}: no running worker has this task, or none replies"
            )
        self.arrived += [tuple(each) for reply in found.values() for each in reply["arrived"]]
        self._busy |= {worker for worker, reply in found.items() if reply["arrived"]}
        self._seen = (self._seen or {}) | {worker: reply["next"] for worker, reply in found.items()}
        self._processes |= {worker: reply["processes"] for worker, reply in found.items()}

    def finish(self) -> None:
        """Look again until each worker has replied to the last look, if it still runs."""
        for _ in range(_TRIES):
            if not self._late:
                break
            late = sorted(self._late)
            replies = self._client.ask("batch_trace", _TIMEOUT, late, self._arguments)
            self._note(replies)
            self._late -= replies.keys()


def load_of(path: Path, task: str) -> Load:
    """Return the requests of a trace that come to one process, the first if they are many."""
    try:
        head, *lines = map(json.loads, path.read_text().splitlines())
        processes = int(head["processes"])
        # Those of one process, as if each of them got every n-th.
        requests = [
            (float(each["arrived"]), float(each["cost"]), int(each["rows"]))
            for each in lines[::processes][:_MOST]
        ]
    except (OSError, ValueError, TypeError, KeyError) as error:
        reason = error.strerror if isinstance(error, OSError) else None
        raise ConfigurationError(
            f"--trace: {path}: {reason or 'is no trace'}; give a file that --record has written"
        ) from error
    if head.get("task") != task:
        raise ConfigurationError(f"--trace: {path}: is of {head.get('task')}, not of {task}")
    if len(requests) < _FEWEST:
        raise ConfigurationError(
            f"--trace: {path}: has {len(requests)} requests for each process, too few to tell"
            f" anything; record at least {_FEWEST}"
        )
    arrived, costs, rows = zip(*requests, strict=True)
    return Load.recorded(arrived, costs, rows)
