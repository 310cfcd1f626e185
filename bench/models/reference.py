"""
The reference models: a fixed cost per call and a small one per item.

They sleep where a GPU would compute, so that they leave the CPU to the message
path, which is what these benchmarks are about.  Standard library only: the
peers run them too, in an environment of their own.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["BATCH", "MODELS", "Reference", "expected"]

#: Items in a full batch, of ours and of every peer.
BATCH = 64


@dataclass(frozen=True, slots=True)
class Reference:
    """What one call costs."""

    call: float  # seconds a call takes, whatever its size
    item: float  # seconds that each item adds

    def __call__(self, batch: list[int]) -> list[int]:
        """Double each number, in the time that it takes."""
        if self.call:
            time.sleep(self.call + self.item * len(batch))
        return [value * 2 for value in batch]


#: "cost" could do 3,860 items/s in full batches; "bert" is one old GPU with 64 sentences
#: in 151 ms, 423 items/s; "noop" leaves nothing but the way there and back; beside "slow"
#: that way is nothing.
MODELS: dict[str, Callable[[list[int]], list[int]]] = {
    "noop": Reference(0.0, 0.0),
    "cost": Reference(0.010, 0.0001),
    "bert": Reference(0.020, 0.00205),
    "slow": Reference(0.2, 0.004),
}


def expected(items: range) -> list[int]:
    """Return what any model answers to these items; everything measured is held against it."""
    return [2 * item for item in items]
