"""
Random canvases, sent to a real worker all at once, against a sequential evaluation.

Each run draws other ones; ``CANVAS_TORTURE=2000`` draws that many.
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass
from time import monotonic
from typing import Any

import pytest
from celery.result import ResultBase

from celery_batch.processes.managed_process import wait_until
from tests.apps.canvases.shapes import Broke, Evaluation, drawn, labelled, sign
from tests.services.launcher import Launcher

_WANTED = os.environ.get("CANVAS_TORTURE")


@dataclass
class Sent:
    """A canvas on its way, and what ought to become of it."""

    shape: Any
    wanted: Any
    result: ResultBase

    def complaint(self, deadline: float) -> str:
        """Wait for the result; say what is wrong with it, if anything is."""
        try:
            got = self.result.get(timeout=max(deadline - monotonic(), 0.1))
        except Exception as error:  # noqa: BLE001 (whatever it is, it is compared)
            got = error
        if isinstance(self.wanted, Broke):
            right = isinstance(got, Exception) and any(tag in str(got) for tag in self.wanted.tags)
        else:
            right = got == self.wanted
        return "" if right else f"{self.shape}\n  wanted {self.wanted}\n  got {got!r}"


def _torture(launcher: Launcher, number: int, *, batches: bool) -> None:
    """Send many canvases at once; compare results, runs, callbacks and errbacks."""
    app = launcher.client()
    launcher.redis.delete("stage:ran", "stage:noted", "stage:mourned")
    evaluation = Evaluation()
    sent = []
    for index, (shape, fault) in enumerate(drawn(number)):
        canvas = labelled(shape, f"c{index}", fault)
        wanted = evaluation.whole(canvas)
        result = sign(canvas, app, batches=batches).apply_async()
        sent.append(Sent(canvas, wanted, result))
    deadline = monotonic() + 60 + number / 4
    complaints = [complaint for each in sent if (complaint := each.complaint(deadline))]

    assert not complaints, "\n".join(complaints)
    for kind in ("ran", "noted", "mourned"):
        wanted = Counter(map(str, getattr(evaluation, kind)))
        launcher.await_facts(kind, wanted.total())
    _await_silence(launcher)
    for kind in ("ran", "noted", "mourned"):
        wanted = Counter(map(str, getattr(evaluation, kind)))
        assert wanted == Counter(map(str, launcher.facts(kind))), kind


def _await_silence(launcher: Launcher) -> None:
    """Return when no worker holds anything, so that nothing runs twice unseen."""
    names = launcher.names
    inspect = launcher.client().control.inspect(names, timeout=60.0, limit=len(names))

    def busy() -> str:
        held = [inspect.active(), inspect.reserved()]
        return "" if all(reply and not any(reply.values()) for reply in held) else f"{held}"

    wait_until(busy, [], what="silence", timeout=60)


pytestmark = pytest.mark.timeout(600 if _WANTED else 120)


@pytest.fixture(scope="module")
def redis_worker(launcher: Launcher) -> Launcher:
    """A worker that reads from Redis."""
    launcher.worker("tests.apps.canvases.tasks", "-c", "2")
    return launcher


def test_canvases_give_what_a_sequential_evaluation_gives(redis_worker: Launcher):
    """Chains, groups and chords of batch and ordinary tasks give what plain calls give."""
    _torture(redis_worker, int(_WANTED or 40), batches=True)


@pytest.mark.thorough("ordinary canvases, for which the evaluation of random ones is right, too")
def test_evaluation_follows_celery(redis_worker: Launcher):
    """The same holds for ordinary tasks alone: the evaluation knows Celery's rules."""
    _torture(redis_worker, int(_WANTED or 25), batches=False)


def test_canvases_on_rabbitmq(rabbit_launcher: Launcher):
    """The same holds where RabbitMQ carries the messages."""
    rabbit_launcher.worker("tests.apps.canvases.tasks", "-c", "2")
    _torture(rabbit_launcher, int(_WANTED or 12), batches=True)
