"""What the items of a batch task cost, such as their numbers of tokens."""

from __future__ import annotations

import math
from typing import Any

from celery_batch.config import did_you_mean
from celery_batch.errors import ConfigurationError
from celery_batch.interrupts import is_interrupt
from celery_batch.item_key import item_key_of
from celery_batch.runtime.item_cost import ItemCost
from celery_batch.runtime.signature import check_function, own_attribute, signature_of

__all__ = ["check_queue_cost", "check_sort_window", "item_cost_of"]


def item_cost_of(task: Any) -> ItemCost | None:
    """
    Return what computes the cost of a task's items; None if it has no limit.

    Raises:
        ConfigurationError: An option is wrong, or one is missing.
    """
    batch, largest = task.max_batch_cost, task.max_item_cost
    cost = own_attribute(task if isinstance(task, type) else task.__class__, "cost")
    if cost is None and task.model is not None:
        cost = own_attribute(task.model, "cost")
    limit = "max_item_cost" if batch is None else "max_batch_cost"
    if batch is None and largest is None:
        if task.cost is not None:
            raise ConfigurationError(f"{task.name}.cost: has no effect without max_batch_cost")
        return None
    is_number = isinstance(largest, (int, float)) and not isinstance(largest, bool)
    if largest is not None and not (is_number and 0 < largest < math.inf):
        raise ConfigurationError(
            f"{task.name}.max_item_cost: must be a number above 0, got {largest!r}"
        )
    if cost is None:
        raise ConfigurationError(
            f"{task.name}.{limit}: needs cost, a function of an item's arguments or the name of"
            f" the parameter whose length counts"
        )
    names = [*task._batch_signature.parameters]
    if (
        task.model is not None
        and len(names) == 1
        and cost in [*signature_of(task.model).parameters]
    ):
        cost = names[0]  # the task calls the only parameter of a model "item"
    if not callable(cost) and cost not in names:
        hint = did_you_mean(str(cost), names)
        raise ConfigurationError(
            f"{task.name}.cost: must be a function of an item's arguments, or one of the"
            f" parameters {', '.join(names)}, got {cost!r}{hint}"
        )
    if callable(cost):
        check_function(f"{task.name}.cost", cost, task._batch_signature)
    return ItemCost(task.name, task._batch_signature, cost, largest, is_interrupt)


def check_sort_window(cls: Any) -> None:
    """
    Check that the option ``sort_window`` is given only where batches are chosen.

    Args:
        cls: The task's class.

    Raises:
        ConfigurationError: It has no effect.
    """
    if "sort_window" in vars(cls) and not cls.padded and item_key_of(cls) is None:
        raise ConfigurationError(f"{cls.name}.sort_window: has no effect without padded=True")


def check_queue_cost(task: Any) -> None:
    """
    Check the option ``max_queue_cost``.

    Raises:
        ConfigurationError: It is no number above 0, or items have no cost.
    """
    most = task.max_queue_cost
    if most is None:
        return
    is_number = isinstance(most, (int, float)) and not isinstance(most, bool)
    if not (is_number and 0 < most < math.inf):
        raise ConfigurationError(
            f"{task.name}.max_queue_cost: must be a number above 0, or None, got {most!r}"
        )
    if item_cost_of(task) is None:
        raise ConfigurationError(
            f"{task.name}.max_queue_cost: needs cost, and max_batch_cost or max_item_cost"
        )
