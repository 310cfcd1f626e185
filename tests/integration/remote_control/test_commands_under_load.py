"""Random commands under load: no request is lost, none runs twice."""

from __future__ import annotations

import random
import threading
from typing import Any

import pytest

from tests.services.remote_control import LONG, RemoteControl
from tests.services.setup import Worker

LEFT = "controlled.left"


@pytest.mark.thorough("control commands at random under load")
def test_random_commands_lose_no_request(control: RemoteControl, worker: Worker):
    """Two workers are paused, drained and changed; each request runs once."""
    other = control.worker()
    workers = [worker, other]
    before = rows(workers)
    sent: list[tuple[int, Any]] = []
    is_over = threading.Event()

    def send() -> None:
        while not is_over.wait(0.01):
            numbers = range(len(sent), len(sent) + 20)
            sent.extend(zip(numbers, control.setup.left.delay_many(list(numbers)), strict=True))

    sender = threading.Thread(target=send)
    sender.start()
    dice = random.Random(1)  # noqa: S311 (a test's)
    for _ in range(40):
        random_command(control, dice.choice(workers), dice)
        is_over.wait(dice.random() * 0.1)
        for each in workers:
            control.run(each, "batch_resume")
    is_over.set()
    sender.join()

    assert all(number == result.get(timeout=LONG) for number, result in sent)
    assert len(sent) == rows(workers) - before
    other.stop()


def random_command(control: RemoteControl, worker: Worker, dice: random.Random) -> None:
    """Pause, drain or change a worker."""
    match dice.randrange(3):
        case 0:
            control.run(worker, "batch_pause", words=[LEFT, "controlled.right"])
        case 1:
            control.run(worker, "batch_drain")
        case _:
            control.run(worker, "batch_config", task=LEFT, max_batch_size=dice.randint(1, 30))


def rows(workers: list[Worker]) -> int:
    """Return how many rows of the task have gone into batches."""
    return sum(worker.status()[LEFT]["rows"] for worker in workers)
