"""`celery control batch_reload` replaces the weights without losing a request."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import psutil
import pytest

from tests.services.remote_control import LONG, RemoteControl
from tests.services.setup import Worker

WEIGHED = "controlled.weighed"

#: Most requests at once, so that a slow worker does not fall far behind.
AT_ONCE = 100

WRONG = [
    ([], "no task is named"),
    ([WEIGHED, "now"], "now: not understood; write: batch_reload <task>"),
    ([WEIGHED, "wait=soon"], "wait: must be seconds"),
    (["controlled.sizes"], "controlled.sizes: has no Model to reload"),
]
RELOADS: list[tuple[str, dict[str, Any]]] = [
    ("new", {}),
    ("bad", {}),
    ("exit", {}),
    ("newest", {"in_place": True}),
]
_OTHER = pytest.mark.thorough("reloads under load on pools of one process")
POOLS = [
    *(pytest.param(pool, marks=_OTHER, id="".join(pool)) for pool in (("-c", "1"), ("-P", "solo"))),
    ("-c", "2"),
    ("-P", "threads", "-c", "2"),
]

pytestmark = pytest.mark.parametrize("control", ["redis"], indirect=True, scope="module")


@dataclass
class Traffic:
    """Requests sent during the test, each with the time before it was sent."""

    control: RemoteControl
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
                self.sent.append((began, number, self.control.setup.weighed.delay(number)))
                number += 1

    def answers(self) -> list[tuple[float, int, str]]:
        """End; return when each request was sent, and the weights that its output names."""
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
        self.control.until(worker, "more requests", lambda: len(self.sent) > before + 40)


@contextmanager
def traffic(control: RemoteControl, worker: Worker) -> Iterator[Traffic]:
    """Send requests on a thread in this block."""
    traffic = Traffic(control)
    traffic.begin()
    try:
        traffic.has_grown(worker)
        yield traffic
    finally:
        traffic.end()


def since(answers: list[tuple[float, int, str]], moment: float) -> set[str]:
    """Return the weights in the answers to requests that were sent after a moment."""
    return {weights for began, _, weights in answers if began > moment}


@pytest.mark.parametrize("pool", POOLS, ids="".join)
def test_every_request_is_answered_and_after_the_reply_by_the_new(
    control: RemoteControl, pool: tuple[str, ...]
):
    """Requests during reloads are answered once; after a reply by the new weights."""
    replied, replies = [], []
    with control.at_work("old", *pool) as worker, traffic(control, worker) as requests:
        then = [control.setup.weighed.delay(-1).get(timeout=LONG)[1]]
        for weights, how in RELOADS:
            control.weights.write_text(weights)
            replies.append(control.send(worker, "batch_reload", task=WEIGHED, wait=LONG, **how))
            replied.append(time.monotonic())
            then.append(control.setup.weighed.delay(-1).get(timeout=LONG)[1])
            requests.has_grown(worker)
        answers = requests.answers()
        status = worker.status()[WEIGHED]
    beside, bad, exits, in_place = replies

    assert ["done", "done"] == [beside["ok"]["state"], in_place["ok"]["state"]]
    assert "ValueError: cannot read bad; the old weights stay in use" in bad["error"]
    assert "SystemExit: no licence; the old weights stay in use" in exits["error"]
    assert ["old", "new", "new", "new", "newest"] == then
    assert {"old", "new", "newest"} >= since(answers, 0.0)
    assert {"new", "newest"} >= since(answers, replied[0])
    assert {"newest"} == since(answers, replied[3])
    assert len(answers) + len(then) == status["rows"], "some were answered twice"
    assert in_place["ok"] == status["reload"]
    assert not status["paused"]


def test_old_weights_answer_while_new_ones_load(control: RemoteControl):
    """Requests are answered during a long load; the reply waits for it only with `wait`."""
    with control.at_work("old", "-c", "2") as worker:
        control.weights.write_text("slow")
        reply = control.run(worker, "batch_reload", words=[WEIGHED])
        meanwhile = control.setup.weighed.delay(1).get(timeout=LONG)
        second = control.send(worker, "batch_reload", task=WEIGHED)
        status = worker.status()[WEIGHED]["reload"]
        (control.folder / "go").touch()
        control.until(
            worker, "new weights", lambda: worker.status()[WEIGHED]["reload"]["state"] == "done"
        )
        after = control.setup.weighed.delay(2).get(timeout=LONG)
    (control.folder / "go").unlink()

    assert ["loading", 2] == [reply["state"], reply["processes_loading"]]
    assert "loading" == status["state"]
    assert [1, "old"] == meanwhile
    assert "controlled.weighed is being loaded" in second["error"]
    assert [2, "slow"] == after


@pytest.mark.parametrize("in_place", [False, True])
def test_the_end_of_a_process_that_loads_is_not_the_end_of_its_load(
    control: RemoteControl, *, in_place: bool
):
    """Whoever waits for the reply learns that the process which replaces it has loaded."""
    with control.at_work("old", "-c", "1") as worker, control.setup.memory() as client:
        client.delete("shop:load")

        def loads() -> int:
            return sum(fact["weights"] == "slow" for fact in control.setup.recall("load"))

        control.weights.write_text("slow")
        control.run(worker, "batch_reload", task=WEIGHED, in_place=in_place)
        control.until(worker, "a load", lambda: loads() == 1)
        (process,) = psutil.Process(worker.pid).children()
        process.kill()
        control.until(worker, "another load", lambda: loads() == 2)
        meanwhile = worker.status()[WEIGHED]["reload"]
        (control.folder / "go").touch()
        control.until(
            worker, "new weights", lambda: worker.status()[WEIGHED]["reload"]["state"] == "done"
        )
        after = control.setup.weighed.delay(1).get(timeout=LONG)
    (control.folder / "go").unlink()

    assert ("loading", 1) == (meanwhile["state"], meanwhile["processes_loading"])
    assert [1, "slow"] == after


@pytest.mark.parametrize("in_place", [False, True])
def test_a_task_is_warm_unless_it_reloads_in_place(control: RemoteControl, *, in_place: bool):
    """A task stays warm while new weights load beside the old ones, but not in place."""
    with control.at_work("old", "-c", "1") as worker:
        control.weights.write_text("slow")
        control.run(worker, "batch_reload", task=WEIGHED, in_place=in_place)
        meanwhile = worker.status()[WEIGHED]
        (control.folder / "go").touch()
        control.until(
            worker, "new weights", lambda: worker.status()[WEIGHED]["reload"]["state"] == "done"
        )
        after = worker.status()[WEIGHED]
    (control.folder / "go").unlink()  # so that other tests' loads are slow, too

    assert ["loading", "done"] == [each["reload"]["state"] for each in (meanwhile, after)]
    assert [not in_place, True] == [each["warm"] for each in (meanwhile, after)]


@pytest.mark.parametrize(
    ("weights", "error"),
    [("bad", "ValueError: cannot read bad"), ("exit", "SystemExit: no licence")],
)
@pytest.mark.parametrize("pool", [("-c", "1"), ("-P", "solo")], ids="".join)
def test_in_place_there_is_no_way_back(
    control: RemoteControl, pool: tuple[str, ...], weights: str, error: str
):
    """Without old weights a worker that cannot load the new ones stops, and its messages stay."""
    with control.at_work("old", *pool) as worker:
        control.weights.write_text(weights)
        reply = control.send(worker, "batch_reload", words=[WEIGHED, "in_place", f"wait={LONG}"])
        ended = worker.child.wait(LONG)
        waiting = control.setup.weighed.delay(1)

    assert f"{error}; the worker stops" in reply["error"]
    assert ended
    assert 0 != worker.child.exit_code
    with control.at_work("good", "-P", "solo") as other:
        assert [1, "good"] == waiting.get(timeout=LONG)
        for words, message in WRONG:
            assert message in control.send(other, "batch_reload", words=words)["error"]
