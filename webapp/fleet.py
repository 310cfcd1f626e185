"""
What the workers and the broker say of themselves, once for everybody who looks.

Rule 1: Nothing here raises; a broker that is away is a fact like another.
Rule 2: Totals only grow: what a worker counted before it was started again, or before
    anybody looked, is left out, so that two looks can be compared by subtraction.
Rule 3: A worker that does not answer this time may be busy; it is called silent for a
    while before it is forgotten.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from celery import Celery

from celery_batch.fleet.bus import Bus

__all__ = ["Fleet"]

log = logging.getLogger(__name__)

#: Seconds without a further reply after which all workers count as heard.
_LISTEN = 0.4

#: Seconds for which a worker that does not answer is remembered.
_SILENCE = 8.0

#: Seconds for which its last rate still counts.
_STALE = 3.0


@dataclass(slots=True)
class _Worker:
    """What is known of one worker: its last answer, and when it came."""

    heard: float
    report: dict[str, Any]
    rate: float | None = None


class Fleet:
    """
    Looks at the workers that serve some tasks, and at the queues they come from.

    Args:
        app: The Celery app of the tasks.
        tasks: Their names; what else the workers serve is left out.
    """

    def __init__(self, app: Celery, tasks: Collection[str]) -> None:
        self._app = app
        self._tasks = tuple(tasks)
        self._source = uuid.uuid4().hex[:8]
        self._workers: dict[str, _Worker] = {}
        self._sizes: dict[str, list[int]] = {}
        self._bus = Bus(app)

    def look(self) -> dict[str, Any]:
        """Ask everybody and return what JSON can say of it; takes half a second or so."""
        reached, depth = True, None
        answers: dict[str, Any] = {}
        try:
            depth = sum(self._bus.depths(self._queues()).values())
            answers = self._bus.ask("batch_status", _LISTEN)
        except Exception as error:  # noqa: BLE001 - whatever a transport raises
            log.info("the broker does not answer: %s: %s", type(error).__name__, error)
            reached = False
            self.close()
        now = time.monotonic()
        self._remember(answers, now)
        return {"source": self._source, "reached": reached, "queue": depth, **self._said(now)}

    def close(self) -> None:
        """Let go of the broker until the next look."""
        self._bus.close()

    def _queues(self) -> set[str]:
        router = self._app.amqp.router
        routes = [router.route({}, name) for name in self._tasks]
        return {route["queue"].name for route in routes if "queue" in route}

    def _remember(self, answers: Mapping[str, Any], now: float) -> None:
        for name, answer in answers.items():
            report = _together(answer, self._tasks)
            if report is None:
                continue
            known = self._workers.get(name)
            worker = _Worker(now, report)
            if known is not None:
                more = report["rows"] - known.report["rows"]
                # One that was started again began at none.
                worker.rate = (more if more >= 0 else report["rows"]) / (now - known.heard)
                grown = _grown(known.report["sizes"], report["sizes"])
                for size, (batches, rows) in grown.items():
                    total = self._sizes.setdefault(size, [0, 0])
                    total[0] += batches
                    total[1] += rows
            self._workers[name] = worker
        for name, worker in list(self._workers.items()):
            if now - worker.heard > _SILENCE:
                del self._workers[name]

    def _said(self, now: float) -> dict[str, Any]:
        heard = [worker for worker in self._workers.values() if now - worker.heard < _STALE]
        rates = [worker.rate for worker in heard if worker.rate is not None]
        return {
            "rate": round(sum(rates), 1) if rates else None,
            "sizes": {size: [*total] for size, total in self._sizes.items()},
            "workers": [
                {
                    "name": name,
                    "state": _state(worker, silent=worker.heard < now),
                    **{key: worker.report[key] for key in ("waiting", "batches", "rows")},
                }
                for name, worker in sorted(self._workers.items())
            ],
        }


def _state(worker: _Worker, *, silent: bool) -> str:
    if silent:
        return "silent"
    return "busy" if worker.report["running"] else "ready"


def _together(answer: Any, tasks: Collection[str]) -> dict[str, Any] | None:
    """Return one worker's numbers, summed over these tasks; None if it serves none of them."""
    lanes = [answer[name] for name in tasks if name in answer] if isinstance(answer, dict) else []
    lanes = [lane for lane in lanes if isinstance(lane, dict) and lane.get("warm")]
    if not lanes:
        return None
    sizes: dict[str, list[int]] = {}
    for lane in lanes:
        for size, (batches, rows) in lane.get("sizes", {}).items():
            total = sizes.setdefault(size, [0, 0])
            total[0] += batches
            total[1] += rows
    names = ("waiting", "batches", "rows", "running")
    return {"sizes": sizes, **{name: sum(lane.get(name, 0) for lane in lanes) for name in names}}


def _grown(
    before: Mapping[str, list[int]], after: Mapping[str, list[int]]
) -> dict[str, tuple[int, int]]:
    """Return by how much each count has grown; a worker that was started again began at none."""
    if any(counts[0] > after.get(size, [0])[0] for size, counts in before.items()):
        before = {}
    grown = {}
    for size, (batches, rows) in after.items():
        batches_before, rows_before = before.get(size, (0, 0))
        if batches > batches_before:
            grown[size] = (batches - batches_before, rows - rows_before)
    return grown
