"""An app whose model's stages wait for each other, to test which run at the same time."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from billiard.exceptions import SoftTimeLimitExceeded

from celery_batch import Model
from tests.apps.memory import patient_cache
from tests.apps.small_app import at, remember, small_app, where

app = small_app("collated")
app.conf.batch_cache_url = patient_cache(os.environ.get("CELERY_RESULT_BACKEND", ""))

PAD = 99


class Watched(Model):
    """
    Doubles numbers; each item is a name, what its batch does, and a number.

    What the first item of a batch says holds for the batch: by stage, the places that it waits
    for; ``refuses``, the stage that raises at 13; ``memory``, for how many rows `collate` has it;
    ``alone``, that `predict` of several rows takes longer than any limit.
    """

    def examples(self) -> Sequence[Any]:
        """Warm up with a batch of one."""
        return [["warm-up", {}, 1]]

    def collate(self, batch: list[Any]) -> dict[str, Any]:
        """Make a dict of the items."""
        name, what, _ = batch[0]
        numbers = [number for *_, number in batch]
        try:
            self._see("collate", name, what, numbers)
        except SoftTimeLimitExceeded:
            at(f"{name} collate interrupted")
            raise
        if len(numbers) > what.get("memory", len(numbers)):
            raise MemoryError("no room")
        return {"name": name, "what": what, "numbers": numbers}

    def predict(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Double the numbers."""
        if batch["what"].get("alone") and len(batch["numbers"]) > 1:
            at("waits alone", "never")
        self._see("predict", *batch.values())
        return {**batch, "doubled": [2 * number for number in batch["numbers"]]}

    def uncollate(self, output: dict[str, Any]) -> list[int]:
        """Return the numbers."""
        doubled = output.pop("doubled")
        self._see("uncollate", *output.values())
        return doubled

    def _see(self, stage: str, name: str, what: dict[str, Any], numbers: list[int]) -> None:
        met = at(f"{name} {stage}", *what.get(stage, ()))
        remember(name, [stage, met, where(), numbers])
        at(f"{name} {stage} done")
        if what.get("refuses") == stage and 13 in numbers:
            raise ValueError(f"{stage} refuses 13")


options = {"max_wait": 5.0, "linger": 0.5}
watched = Watched.as_task(app, name="collated.watched", max_batch_size=2, **options)
large = Watched.as_task(app, name="collated.large", max_batch_size=4, **options)
fixed = Watched.as_task(app, name="collated.fixed", batch_sizes=(1, 4), cache_ttl=600, **options)
early = Watched.as_task(app, name="collated.early", max_batch_size=4, acks_late=False, **options)
