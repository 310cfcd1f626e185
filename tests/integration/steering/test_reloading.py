"""`celery control batch_reload` puts new weights in the old ones' place, and loses nothing."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.services.helm import LONG, Helm
from tests.services.shop import Worker

WEIGHED = "steered.weighed"

#: Requests on their way: a worker that has little time is not far behind.
AT_ONCE = 100

WRONG = [
    ([], "no task is named"),
    ([WEIGHED, "now"], "now: not understood; write: batch_reload <task>"),
    ([WEIGHED, "wait=soon"], "wait: must be seconds"),
    (["steered.sizes"], "steered.sizes: has no Model to load anew"),
]
ORDERS: list[tuple[str, dict[str, Any]]] = [
    ("new", {}),
    ("bad", {}),
    ("exit", {}),
    ("newest", {"in_place": True}),
]
POOLS = [("-c", "1"), ("-c", "2"), ("-P", "solo"), ("-P", "threads", "-c", "2")]

pytestmark = pytest.mark.parametrize("helm", ["redis"], indirect=True, scope="module")


@dataclass
class Crowd:
    """Requests sent all the while, each with the time when it was about to be sent."""

    helm: Helm
    sent: list[tuple[float, int, Any]] = field(default_factory=list)
    _is_over: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def begin(self) -> None:
        """Send on a thread from now on."""
        self._thread = threading.Thread(target=self.send)
        self._thread.start()

    def end(self) -> None:
        """Send no more."""
        self._is_over.set()
        if self._thread is not None:
            self._thread.join()

    def send(self) -> None:
        """Send requests until it is over."""
        number = 0
        while not self._is_over.wait(0.01):
            for _ in range(4):
                if number >= AT_ONCE:
                    self.sent[number - AT_ONCE][2].get(timeout=LONG)
                began = time.monotonic()
                self.sent.append((began, number, self.helm.shop.weighed.delay(number)))
                number += 1

    def answers(self) -> list[tuple[float, int, str]]:
        """Let it be over; return when each was sent, and whose weights answered."""
        self.end()
        found = []
        for began, number, result in self.sent:
            answered, weights = result.get(timeout=LONG)
            assert number == answered
            found.append((began, number, weights))
        return found

    def has_grown(self, worker: Worker) -> None:
        """Return when a few more have been sent."""
        before = len(self.sent)
        self.helm.until(worker, "more requests", lambda: len(self.sent) > before + 40)


@contextmanager
def crowd(helm: Helm, worker: Worker) -> Iterator[Crowd]:
    """Have requests sent all the while, on a thread."""
    crowd = Crowd(helm)
    crowd.begin()
    try:
        crowd.has_grown(worker)
        yield crowd
    finally:
        crowd.end()


def since(answers: list[tuple[float, int, str]], moment: float) -> set[str]:
    """Return which weights have answered what was sent from then on."""
    return {weights for began, _, weights in answers if began > moment}


@pytest.mark.parametrize("pool", POOLS, ids="".join)
def test_every_request_is_answered_and_after_the_reply_by_the_new(
    helm: Helm, pool: tuple[str, ...]
):
    """Requests that come all the while are answered once; after a reply by what it says."""
    replied, replies = [], []
    with helm.at_work("old", *pool) as worker, crowd(helm, worker) as requests:
        then = [helm.shop.weighed.delay(-1).get(timeout=LONG)[1]]
        for weights, how in ORDERS:
            helm.weights.write_text(weights)
            replies.append(helm.order(worker, "batch_reload", task=WEIGHED, wait=LONG, **how))
            replied.append(time.monotonic())
            then.append(helm.shop.weighed.delay(-1).get(timeout=LONG)[1])
            requests.has_grown(worker)
        answers = requests.answers()
        status = worker.status()[WEIGHED]
    beside, bad, exits, in_place = replies

    assert ["done", "done"] == [beside["ok"]["state"], in_place["ok"]["state"]]
    assert "ValueError: cannot read bad; the old weights go on answering" in bad["error"]
    assert "SystemExit: no licence; the old weights go on answering" in exits["error"]
    assert ["old", "new", "new", "new", "newest"] == then
    assert {"old", "new", "newest"} >= since(answers, 0.0)
    assert {"new", "newest"} >= since(answers, replied[0])
    assert {"newest"} == since(answers, replied[3])
    assert len(answers) + len(then) == status["rows"], "some were answered twice"
    assert in_place["ok"] == status["reload"]
    assert not status["paused"]


def test_old_weights_answer_while_new_ones_load(helm: Helm):
    """A long load costs no answer; the reply does not wait for it unless it is asked to."""
    with helm.at_work("old", "-c", "2") as worker:
        helm.weights.write_text("slow")
        told = helm.done(worker, "batch_reload", words=[WEIGHED])
        meanwhile = helm.shop.weighed.delay(1).get(timeout=LONG)
        second = helm.order(worker, "batch_reload", task=WEIGHED)
        status = worker.status()[WEIGHED]["reload"]
        (helm.folder / "go").touch()
        helm.until(
            worker, "new weights", lambda: worker.status()[WEIGHED]["reload"]["state"] == "done"
        )
        after = helm.shop.weighed.delay(2).get(timeout=LONG)
    (helm.folder / "go").unlink()

    assert ["loading", 2] == [told["state"], told["processes_at_it"]]
    assert "loading" == status["state"]
    assert [1, "old"] == meanwhile
    assert "steered.weighed is being loaded" in second["error"]
    assert [2, "slow"] == after


@pytest.mark.parametrize("in_place", [False, True])
def test_a_task_is_warm_while_something_can_answer(helm: Helm, *, in_place: bool):
    """Beside the old weights a load leaves the task warm; in their place there is nothing."""
    with helm.at_work("old", "-c", "1") as worker:
        helm.weights.write_text("slow")
        helm.done(worker, "batch_reload", task=WEIGHED, in_place=in_place)
        meanwhile = worker.status()[WEIGHED]
        (helm.folder / "go").touch()
        helm.until(
            worker, "new weights", lambda: worker.status()[WEIGHED]["reload"]["state"] == "done"
        )
        after = worker.status()[WEIGHED]
    (helm.folder / "go").unlink()  # so that other tests' loads are slow, too

    assert ["loading", "done"] == [each["reload"]["state"] for each in (meanwhile, after)]
    assert [not in_place, True] == [each["warm"] for each in (meanwhile, after)]


@pytest.mark.parametrize(
    ("weights", "error"),
    [("bad", "ValueError: cannot read bad"), ("exit", "SystemExit: no licence")],
)
@pytest.mark.parametrize("pool", [("-c", "1"), ("-P", "solo")], ids="".join)
def test_in_place_there_is_no_way_back(helm: Helm, pool: tuple[str, ...], weights: str, error: str):
    """Without old weights a worker that cannot load the new ones stops, and its messages stay."""
    with helm.at_work("old", *pool) as worker:
        helm.weights.write_text(weights)
        reply = helm.order(worker, "batch_reload", words=[WEIGHED, "in_place", f"wait={LONG}"])
        ended = worker.child.wait(LONG)
        waiting = helm.shop.weighed.delay(1)

    assert f"{error}; the worker stops" in reply["error"]
    assert ended
    assert 0 != worker.child.exit_code
    with helm.at_work("good", "-P", "solo") as other:
        assert [1, "good"] == waiting.get(timeout=LONG)
        for words, message in WRONG:
            assert message in helm.order(other, "batch_reload", words=words)["error"]
