"""A model in the place of the examples' own; as a program, the workers that have it."""

from __future__ import annotations

import time

from celery_batch import Model

__all__ = ["Shout"]

#: Seconds a run takes, so that a crowd has to gather meanwhile.
_RUN = 0.02


class Shout(Model):
    """Answers a sentence in capitals, refuses one without a mask, remembers its batches."""

    sizes: list[int] = []  # noqa: RUF012 - what all runs in this process have in common

    def predict(self, batch):
        """Answer a batch."""
        self.sizes.append(len(batch))
        time.sleep(_RUN)
        return [
            item.upper() if "[MASK]" in item else ValueError(f"no mask in {item!r}")
            for item in batch
        ]


if __name__ == "__main__":
    from examples import infill_redis_workers
    from tests.apps.models.shout import Shout as Known  # by the name that its workers import

    infill_redis_workers.main(Known, worker_num=1)
