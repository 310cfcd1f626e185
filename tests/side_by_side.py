"""
The whole suite, in processes of its own side by side: ``python tests/side_by_side.py``.

Most tests wait for real servers, and little for the processor.  What shares
workers among many tests has a process to itself; the rest is dealt out file by file.

On a machine that does so much at once a test may fail for want of time.  It gets a
second try when all else has ended, and the output says that it needed one.  Where a part
broke off, or tests could not be read, nobody knows what else would have failed: no second try.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
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
_PYTEST += ["-p", "tests.second_tries"]

#: Printed with each part, so that its order can be had again.
_SEED = f"--randomly-seed={int(time.time())}"

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
        code: Its exit code, negative where a signal ended it.
        failed: The tests that failed.
        is_whole: Whether all tests were read, and it came to its end.
    """

    code: int
    failed: tuple[str, ...]
    is_whole: bool

    def can_go_again(self) -> bool:
        """Whether a second try makes sense."""
        return self.code == _TESTS_FAILED and self.is_whole and 0 < len(self.failed) <= _MOST_AGAIN


def run(folder: Path, *options: str) -> Part:
    """
    Run pytest, print what it has to say in one piece, and return how it went.

    Args:
        folder: A new one, for its notes.
        options: What it is told.
    """
    notes = folder / "failures.json"
    own = ["-o", f"cache_dir={folder}", f"--failures={notes}"]
    folder.mkdir(parents=True)
    with tempfile.TemporaryFile("w+") as output:
        code = subprocess.call([*_PYTEST, *own, *options], stdout=output, stderr=subprocess.STDOUT)
        output.seek(0)
        print(f"== pytest {' '.join(options)}\n{output.read()}", flush=True)  # noqa: T201
    found = json.loads(notes.read_text()) if notes.exists() else {"tests": [], "unread": ["all"]}
    return Part(code, tuple(found["tests"]), not found["unread"])


def first_tries(folders: Path) -> Iterator[Part]:
    """Run everything, row beside row, and return how each part went."""
    with ThreadPoolExecutor() as threads:

        def run_row(row: tuple[str, ...]) -> list[Part]:
            return [run(folders / folder, _SEED, folder) for folder in row]

        apart = [threads.submit(run_row, row) for row in APART]
        ignored = [f"--ignore={folder}" for row in (*APART, (ELSEWHERE,)) for folder in row]
        yield run(folders / "others", _SEED, *_SPREAD, *ignored)
        for each in apart:
            yield from each.result()


def main() -> int:
    """Return 0 if everything passed, some of it perhaps at its second try; otherwise 1."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        codes, again = [], []
        for number, part in enumerate(list(first_tries(folder))):
            if not part.can_go_again():
                codes.append(part.code)
                continue
            again += part.failed
            print(f"== again, alone: {len(part.failed)} failed", flush=True)  # noqa: T201
            codes.append(run(folder / f"again{number}", *part.failed).code)
    if again:
        print("\n".join(["== needed a second try:", *again]), flush=True)  # noqa: T201
    return int(any(codes))


if __name__ == "__main__":
    sys.exit(main())
