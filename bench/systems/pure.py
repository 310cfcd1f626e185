"""The limit: the model called on full batches in a plain loop."""

from __future__ import annotations

from typing import Any

from bench.models.reference import BATCH, MODELS
from bench.systems.system import System

__all__ = ["Pure"]


class Pure(System):
    """No message path at all."""

    def start(self) -> None:
        """There is nothing to start."""

    def submit_one(self, item: int) -> Any:
        """Keep the item for `collect`, which runs the model."""
        return item

    def collect(self, waiting: list[Any]) -> list[int]:
        """Call the model on one full batch after another."""
        answers: list[int] = []
        for first in range(0, len(waiting), BATCH):
            answers += MODELS[self.model](waiting[first : first + BATCH])
        return answers
