"""``python -m bench.backfill_process TASK ROWS``: a backfill in a process of its own."""

from __future__ import annotations

import itertools
import sys
import time

from bench.app import app
from bench.models.reference import BATCH


def main() -> None:
    """
    Backfill so many rows, or any number if that is 0.

    Prints the seconds until the first answer was there, and until the last one was, in a
    process that has its connections and libraries.
    """
    name, count = sys.argv[1], int(sys.argv[2])
    task = app.tasks[name]
    task.delay(0).get(timeout=60)  # as in a process that has asked before
    began, answered, first = time.monotonic(), 0, 0.0
    for answer in task.backfill(range(count) if count else itertools.count()):
        if answer.output != 2 * answer.row.position:
            raise AssertionError(answer)
        first = first or time.monotonic() - began
        answered += 1
        if answered == BATCH:
            print("under way", flush=True)
    if answered != count:
        raise AssertionError(f"{answered} of {count} rows have an answer")
    print(first, time.monotonic() - began, flush=True)


if __name__ == "__main__":
    main()
