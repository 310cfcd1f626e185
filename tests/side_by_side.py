"""
The whole suite, in processes of its own side by side: ``python tests/side_by_side.py``.

Most tests wait for real servers, and little for the processor.  What shares
workers among many tests has a process to itself; the rest is dealt out file by file.

On a machine that does so much at once a test may fail for want of time.  It gets a
second try when all else has ended, and the output says that it needed one.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

#: Each has a process to itself; those of a row come one after the other, beside the other rows.
APART = (
    ("tests/integration/features", "tests/integration/surroundings", "tests/faults"),
    ("tests/webapp",),
)

#: What ``make check`` runs.
ELSEWHERE = "tests/docs"

_PYTEST = [sys.executable, "-m", "pytest", "-q", "-r", "fE", "--durations=8"]

#: What of a part failed is tried again, unless so many tests did that something is broken.
_MOST_AGAIN = 8

_TESTS_FAILED = 1

#: How the other parts' tests are dealt out to processes.
_SPREAD = ("-n", "3", "--dist", "loadfile")


@dataclass(frozen=True, slots=True)
class Part:
    """
    One run of pytest.

    Args:
        code: Its exit code.
        options: What it was told.
        cache: The folder in which it notes what failed.
    """

    code: int
    options: tuple[str, ...]
    cache: Path

    def failed(self) -> int:
        """Return how many tests failed; none are told apart in a run that broke off."""
        file = self.cache / "v" / "cache" / "lastfailed"
        return len(json.loads(file.read_text())) if file.exists() else 0

    def can_go_again(self) -> bool:
        """Whether a second try makes sense."""
        return self.code == _TESTS_FAILED and 0 < self.failed() <= _MOST_AGAIN


def run(cache: Path, *options: str) -> Part:
    """Run pytest, print what it has to say in one piece, and return how it went."""
    command = [*_PYTEST, "-o", f"cache_dir={cache}", *options]
    with tempfile.TemporaryFile("w+") as output:
        code = subprocess.call(command, stdout=output, stderr=subprocess.STDOUT)
        output.seek(0)
        print(f"== pytest {' '.join(options)}\n{output.read()}", flush=True)  # noqa: T201
    return Part(code, options, cache)


def first_tries(caches: Path) -> Iterator[Part]:
    """Run everything, row beside row, and return how each part went."""
    with ThreadPoolExecutor() as threads:

        def run_row(row: tuple[str, ...]) -> list[Part]:
            return [run(caches / folder, folder) for folder in row]

        apart = [threads.submit(run_row, row) for row in APART]
        ignored = [f"--ignore={folder}" for row in (*APART, (ELSEWHERE,)) for folder in row]
        yield run(caches / "others", *_SPREAD, *ignored)
        for each in apart:
            yield from each.result()


def main() -> int:
    """Return an exit code: that of the worst part, after what could be tried again was."""
    with tempfile.TemporaryDirectory() as folder:
        codes = []
        for part in list(first_tries(Path(folder))):
            if part.can_go_again():
                print(f"== again, alone: {part.failed()} failed", flush=True)  # noqa: T201
                again = [each for each in part.options if each not in _SPREAD]
                codes.append(run(part.cache, "--last-failed", *again).code)
            else:
                codes.append(part.code)
        return max(codes)


if __name__ == "__main__":
    sys.exit(main())
