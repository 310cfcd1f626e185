"""
The whole suite, in processes of its own side by side: ``python tests/side_by_side.py``.

Most tests wait for real servers, and little for the processor.  What shares
workers among many tests has a process to itself; the rest is dealt out file by file.

On a machine that does so much at once a test may fail for want of time; it gets a
second try, and the output says that it needed one.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

#: Each has a process to itself; those of a row come one after the other, beside the other rows.
APART = (
    ("tests/integration/features", "tests/integration/surroundings", "tests/faults"),
    ("tests/webapp",),
)

#: What ``make check`` runs.
ELSEWHERE = "tests/docs"

_PYTEST = [sys.executable, "-m", "pytest", "-q", "--reruns", "1", "-r", "fER", "--durations=8"]


def run(*options: str) -> int:
    """Run pytest; print what it has to say in one piece; return its exit code."""
    with tempfile.TemporaryFile("w+") as output:
        code = subprocess.call([*_PYTEST, *options], stdout=output, stderr=subprocess.STDOUT)
        output.seek(0)
        print(f"== pytest {' '.join(options)}\n{output.read()}", flush=True)  # noqa: T201
    return code


def codes() -> Iterator[int]:
    """Run everything, and return how each part went."""
    with ThreadPoolExecutor() as threads:
        apart = [threads.submit(lambda row=row: [run(folder) for folder in row]) for row in APART]
        ignored = [f"--ignore={folder}" for row in (*APART, (ELSEWHERE,)) for folder in row]
        yield run("-n", "3", "--dist", "loadfile", *ignored)
        for each in apart:
            yield from each.result()


if __name__ == "__main__":
    sys.exit(max(codes()))
