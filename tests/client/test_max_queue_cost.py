"""`max_queue_cost`: calls are refused while items of too high a cost wait, by their mean cost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from celery import group

from celery_batch import ConfigurationError, QueueFull
from tests.client.conftest import Sender
from tests.client.test_max_queue import count, known

pytestmark = pytest.mark.usefixtures("lasting_measurements")

COST: dict[str, Any] = {"cost": "text", "max_batch_cost": 64, "max_queue_cost": 100}


def limited(here: Sender, **options: Any) -> Any:
    """Make a task with a limit in cost, whose queue is known to be empty."""
    task = here.make("costly", **{**COST, **options})
    known(task, 0)
    return task


def test_calls_are_refused_while_what_waits_costs_too_much(sender: Callable[..., Sender]) -> None:
    """As many items may wait as the limit is worth, at the mean cost of what was sent."""
    here = sender()
    task = limited(here)
    for _ in range(4):
        task.delay("x" * 25)
    message = r"4 items wait in queue 'celery' .* max_queue_cost=100 at 25 an item; try again"
    with pytest.raises(QueueFull, match=message):
        task.delay("x" * 25)

    assert 4 == count(here)


def test_the_mean_follows_what_is_sent(sender: Callable[..., Sender]) -> None:
    """After items of another cost, another number of them may wait."""
    here = sender()
    task = limited(here)
    task.delay_many(["x" * 25] * 4)
    with pytest.raises(QueueFull):
        task.delay_many(["x"] * 200)  # whose cost is noted although they are refused
    here.taken()
    known(task, 0)
    for _ in range(20):
        task.delay("x")

    assert 20 == count(here)


@pytest.mark.parametrize("send", ["delay", "delay_many", "delay_rows", "group", "adelay"])
def test_a_call_of_any_cost_fits_into_an_empty_queue(
    sender: Callable[..., Sender], send: str
) -> None:
    """It would never be sent otherwise; then the queue is full, however it is sent."""
    here = sender()
    task = limited(here)
    texts = ["x" * 60] * 3
    calls: dict[str, Callable[[], object]] = {
        "delay": lambda: task.delay("x" * 200),
        "delay_many": lambda: task.delay_many(texts),
        "delay_rows": lambda: task.delay_rows(texts),
        "group": lambda: group(task.s(text) for text in texts).apply_async(),
        "adelay": lambda: asyncio.run(task.adelay("x" * 200)),
    }
    calls[send]()
    known(task, 3 if send in ("delay_many", "group") else 1)
    with pytest.raises(QueueFull):
        calls[send]()

    assert len(here.taken()["celery"]) == (3 if send in ("delay_many", "group") else 1)


def test_both_limits_hold(sender: Callable[..., Sender]) -> None:
    """The number of items is limited as ever, whatever they cost."""
    here = sender()
    task = limited(here, max_queue=3)
    task.delay_many(["x"] * 3)
    with pytest.raises(QueueFull, match="3 items wait"):
        task.delay("x")
    with pytest.raises(QueueFull, match="more items in one call than max_queue=3 never fit"):
        task.delay_many(["x"] * 4)

    assert 3 == count(here)


def test_an_item_without_a_cost_is_sent(sender: Callable[..., Sender]) -> None:
    """It fails in the worker, with an error that says why."""
    here = sender()
    task = limited(here)
    task.delay(None)
    task.delay_rows([None, None])

    assert 2 == count(here)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({**COST, "max_queue_cost": 0}, "max_queue_cost: must be a number above 0, or None, got 0"),
        ({"max_queue_cost": 5}, "max_queue_cost: needs cost, and max_batch_cost or max_item_cost"),
    ],
)
def test_wrong_limits_are_refused(
    sender: Callable[..., Sender], options: dict[str, Any], message: str
) -> None:
    """When the app is finalized."""
    here = sender()

    with pytest.raises(ConfigurationError, match=message):
        here.make("costly", **options).bind(here.app)
