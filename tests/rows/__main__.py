"""
``make compat``: the behaviour tests on every row of rows.toml, and a table of what they found.

The faults beside them, then a fleet of the row and of the environment that runs this,
in both directions.

A row's environment holds the packages of its line; all others it takes from the environment
that runs this, so that it is there in seconds.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import sysconfig
import tempfile
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree as ET

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tests.faults.faults import FAULTS
from tests.rows.skips import FILE

ROOT = Path(__file__).parents[2]
BUILD = ROOT / "build" / "rows"

#: What a user of the package sees, whatever Celery is beneath, and what stands on private parts.
TESTS = (
    "tests/integration/features",
    "tests/client",
    "tests/streamer",
    "tests/worker",
    "tests/compat",
    "tests/integration/outages/test_frozen_redis.py",
    "tests/integration/messages/test_redis_rules.py",
    "tests/integration/test_changed_libraries.py",
)

#: How long the faults may take to end, each time that they are told to.
_SECONDS_TO_END = 10.0

_console = Console()


@dataclass(frozen=True, slots=True)
class Row:
    """
    Releases that are installed together.

    Args:
        pins: The version of each package.
    """

    pins: dict[str, str]

    @property
    def name(self) -> str:
        """What the table and the environment's folder are called."""
        return "-".join(self.pins[each] for each in ("celery", "kombu", "redis"))

    @property
    def python(self) -> Path:
        """The interpreter of its environment."""
        return BUILD / self.name / "bin" / "python"

    def install(self) -> None:
        """Make its environment, or bring that up to date."""
        folder = BUILD / self.name
        # A pip of its own would take longer to install than all that the row has.
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
        wanted = [f"{package}=={version}" for package, version in self.pins.items()]
        pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
        install = ["install", "--no-compile", "--no-deps", *wanted]
        subprocess.run([*pip, "--python", self.python, *install], check=True)
        # What the row does not have itself is found behind it.
        (site,) = folder.glob("lib/python*/site-packages")
        others = sysconfig.get_paths()["purelib"]
        (site / "others.pth").write_text(f"import site; site.addsitedir({others!r})\n")


@dataclass(slots=True)
class Outcome:
    """How the tests of a row ended."""

    passed: int
    failed: list[str]
    skipped: Counter[str]
    faults: str = "not run"
    mixed: str = "not run"


def main() -> int:
    """Run the rows that are wanted; 1 if a test failed on any."""
    options = _options()
    rows = [Row(pins) for pins in tomllib.loads(FILE.read_text())["row"]]
    chosen = [row for row in rows if not options.rows or row.name in options.rows]
    outcomes: dict[str, Outcome] = {}
    for row in chosen:
        _console.print(f"{row.name}: {row.pins}")
        row.install()
        outcomes[row.name] = _run(row, options)
        _console.print(_table(outcomes))
    return int(
        any(each.failed or "broken" in each.faults + each.mixed for each in outcomes.values())
    )


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.rows", description=__doc__)
    parser.add_argument("rows", nargs="*", help="CELERY-KOMBU-REDIS; all unless named")
    parser.add_argument("--tests", nargs="+", default=TESTS, help="files or folders")
    parser.add_argument("--only", default="", help="tests that match this, as pytest's -k")
    parser.add_argument("--faults", nargs="*", default=[f.name for f in FAULTS], help="by name")
    parser.add_argument("--seeds", type=int, default=2, help="trials of each fault (2)")
    parser.add_argument(
        "--mixed", type=int, default=10_000, help="calls in a mixed fleet, 0 for none (10,000)"
    )
    parser.add_argument("--jobs", default="2", help="test processes (2)")
    return parser.parse_args()


def _run(row: Row, options: argparse.Namespace) -> Outcome:
    junit = BUILD / f"{row.name}.xml"
    junit.unlink(missing_ok=True)
    pytest = [row.python, "-m", "pytest", "-q", "-n", options.jobs, "--dist", "loadgroup"]
    chosen = ["-k", options.only] if options.only else []
    tests = [*pytest, *chosen, f"--junitxml={junit}", *options.tests]
    with _faults(row, options) as code_of_faults:
        subprocess.run(tests, cwd=ROOT, check=False)
        outcome = _read(junit)
        if options.faults:
            outcome.faults = "broken" if code_of_faults() else f"{len(options.faults)} hold"
    if options.mixed:
        pairs = [(sys.executable, row.python), (row.python, sys.executable)]
        codes = [_run_mixed(*pair, options) for pair in pairs]
        outcome.mixed = "broken" if any(codes) else "both ways right"
    return outcome


@contextmanager
def _faults(row: Row, options: argparse.Namespace) -> Iterator[Callable[[], int]]:
    """Try the faults beside the tests, which wait a lot; what is yielded ends them and prints."""
    if not options.faults:
        yield lambda: 0
        return
    faults = [row.python, "-m", "tests.faults", *options.faults, f"--seeds={options.seeds}"]
    with tempfile.TemporaryFile("w+") as said:
        child = subprocess.Popen(faults, cwd=ROOT, stdout=said, stderr=said)

        def end() -> int:
            """Return the exit code."""
            code = child.wait()
            said.seek(0)
            _console.print(said.read(), markup=False, highlight=False, soft_wrap=True)
            return code

        try:
            yield end
        finally:
            _end(child)


def _end(child: subprocess.Popen[bytes]) -> None:
    """End a process, which a Ctrl-C at the terminal has reached as well."""
    for number in (0, signal.SIGINT, signal.SIGKILL):  # 0 is no signal
        child.send_signal(number)
        with suppress(subprocess.TimeoutExpired):
            child.wait(_SECONDS_TO_END)
            return


def _run_mixed(caller: Path | str, worker: Path | str, options: argparse.Namespace) -> int:
    """Have a worker of one environment answer callers of another; 0 if all answers are right."""
    command = [caller, "-m", "tests.rows.mixed", worker, f"--items={options.mixed}"]
    return subprocess.run(command, cwd=ROOT, check=False).returncode


def _read(junit: Path) -> Outcome:
    """Return what a report says; without one nothing has run."""
    if not junit.exists():
        return Outcome(0, ["no report"], Counter())
    cases = list(ET.parse(junit).iter("testcase"))  # noqa: S314 (written by pytest, just now)
    skipped = Counter(
        str(found.get("message")) for case in cases if (found := case.find("skipped")) is not None
    )
    failed = [
        f"{case.get('classname')}::{case.get('name')}: {error.get('message')}"
        for case in cases
        if (error := _error_of(case)) is not None
    ]
    return Outcome(len(cases) - len(failed) - skipped.total(), failed, skipped)


def _error_of(case: ET.Element) -> ET.Element | None:
    """Return why a test has failed; None if it has not."""
    found = case.find("failure")
    return case.find("error") if found is None else found


def _table(outcomes: dict[str, Outcome]) -> Table:
    columns = ("Celery-kombu-redis", "passed", "skipped", "failed", "faults", "mixed fleet")
    table = Table(*columns, caption=escape("\n".join(_notes(outcomes))), caption_justify="left")
    for name, each in outcomes.items():
        counts = (each.passed, each.skipped.total(), len(each.failed))
        table.add_row(name, *map(str, counts), each.faults, each.mixed)
    return table


def _notes(outcomes: dict[str, Outcome]) -> Iterator[str]:
    for name, each in outcomes.items():
        for reason, count in sorted(each.skipped.items()):
            yield f"{name}: {count} skipped: {reason}"
        for test in each.failed:
            yield f"{name}: failed: {test}"


if __name__ == "__main__":
    sys.exit(main())
