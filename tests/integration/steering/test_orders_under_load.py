"""Orders given at random while requests come all the while: none is lost, none runs twice."""

from __future__ import annotations

import random
import threading
from typing import Any

import pytest

from tests.services.helm import LONG, Helm
from tests.services.shop import Worker

LEFT = "steered.left"


@pytest.mark.thorough("control commands at random under load")
def test_orders_at_random_cost_nobody_an_answer(helm: Helm, worker: Worker):
    """Two workers are paused, drained and changed in turns; each request runs once."""
    other = helm.worker()
    workers = [worker, other]
    before = rows(workers)
    sent: list[tuple[int, Any]] = []
    is_over = threading.Event()

    def send() -> None:
        while not is_over.wait(0.01):
            numbers = range(len(sent), len(sent) + 20)
            sent.extend(zip(numbers, helm.shop.left.delay_many(list(numbers)), strict=True))

    sender = threading.Thread(target=send)
    sender.start()
    dice = random.Random(1)  # noqa: S311 (a test's)
    for _ in range(40):
        order_at_random(helm, dice.choice(workers), dice)
        is_over.wait(dice.random() * 0.1)
        for each in workers:
            helm.done(each, "batch_resume")
    is_over.set()
    sender.join()

    assert all(number == result.get(timeout=LONG) for number, result in sent)
    assert len(sent) == rows(workers) - before
    other.stop()


def order_at_random(helm: Helm, worker: Worker, dice: random.Random) -> None:
    """Have a worker take less, nothing, or batches of another size."""
    match dice.randrange(3):
        case 0:
            helm.done(worker, "batch_pause", words=[LEFT, "steered.right"])
        case 1:
            helm.done(worker, "batch_drain")
        case _:
            helm.done(worker, "batch_config", task=LEFT, max_batch_size=dice.randint(1, 30))


def rows(workers: list[Worker]) -> int:
    """Return how many rows of the task have gone into batches."""
    return sum(worker.status()[LEFT]["rows"] for worker in workers)
