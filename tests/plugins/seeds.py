"""One seed for all that a test run leaves to chance."""

from __future__ import annotations

import os
import random
import zlib

__all__ = ["SEED", "seed_for"]

#: Set it to repeat a run.  Processes of pytest-xdist and programs that tests start inherit it.
VARIABLE = "TEST_SEED"

SEED = int(os.environ.setdefault(VARIABLE, str(random.SystemRandom().randrange(1, 1_000_000))))


def seed_for(name: str) -> int:
    """Return a seed for one use of chance, the same in every process of the run."""
    return zlib.crc32(f"{SEED} {name}".encode()) % 1_000_000
