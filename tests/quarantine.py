"""
A plugin of pytest's: the few tests that may fail once.

They stand in ``tests/quarantine.toml``, each with a reason and a date.  Such a test that
fails is run once more when all else has ended, under the same seed.  The second try is
printed at the end of the run and kept as JUnit.  Any other failed test fails the run.
"""

from __future__ import annotations

import datetime as dt
import subprocess
import sys
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import pytest

__all__ = ["MOST", "Entry", "read"]

#: More would hide what is wrong with the tests, or with the product.
MOST = 5

#: What pytest-xdist says of a test that took its process down.
_CRASHED = "???"

_FILE = Path(__file__).with_suffix(".toml")
_KEPT = Path("build/junit/quarantine.xml")
_OPTION, _JUNIT, _AGAIN = "--quarantine", "--quarantine-junit", "second-try"


@dataclass(frozen=True, slots=True)
class Entry:
    """
    One test that may fail once.

    Args:
        id: Its node id, with or without its parameters.
        reason: Why it fails now and then.
        since: The day it came here.
    """

    id: str
    reason: str
    since: dt.date

    def covers(self, nodeid: str) -> bool:
        """Whether a test is this one, or one of its parametrized forms."""
        return self.id in (nodeid, nodeid.partition("[")[0])


def read(file: Path) -> tuple[Entry, ...]:
    """Return the file's entries, or raise ``pytest.UsageError`` for what it may not hold."""
    found = tomllib.loads(file.read_text()).get("test", [])
    if len(found) > MOST:
        raise pytest.UsageError(f"{file}: {len(found)} tests, at most {MOST}; mend one first")
    return tuple(_entry(file, each) for each in found)


def _entry(file: Path, fields: dict[str, object]) -> Entry:
    id_, reason, since = (fields.get(name) for name in ("id", "reason", "since"))
    if not (isinstance(id_, str) and isinstance(reason, str) and reason.strip()):
        raise pytest.UsageError(f"{file}: a test needs an id and a reason, got {fields}")
    if not isinstance(since, dt.date):
        raise pytest.UsageError(f"{file}: {id_} needs since = YYYY-MM-DD, got {since!r}")
    return Entry(id_, reason, since)


class Quarantine:
    """
    What has failed, in the process that hears of all tests.

    Args:
        entries: The tests that may fail once.
        junit: Where the second tries are kept.
    """

    def __init__(self, entries: Iterable[Entry], junit: Path) -> None:
        self._entries = tuple(entries)
        self._junit = junit
        self._failed: dict[str, Entry | None] = {}
        #: Whether there is a file whose tests are not known, and so have not run.
        self._unread = False
        self._said: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note a failure, at whatever point of the test."""
        if report.failed:
            nodeid = _without_group(report.nodeid)
            entries = [] if report.when == _CRASHED else self._entries
            self._failed[nodeid] = next((e for e in entries if e.covers(nodeid)), None)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Note a file that cannot be read."""
        self._unread = self._unread or report.failed

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """If nothing failed but what may fail once, run that again, and let this be the outcome."""
        is_known = self._failed and all(self._failed.values()) and not self._unread
        if exitstatus != pytest.ExitCode.TESTS_FAILED or not is_known:
            return
        options = [f"--junitxml={self._junit}", f"--{_AGAIN}", "-p", "tests.quarantine"]
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *options, *self._failed],
            check=False,
            capture_output=True,
            text=True,
            cwd=session.config.invocation_params.dir,
        )
        self._said = [f"{test}\n  since {e.since}: {e.reason}" for test, e in self._failed.items()]
        self._said += [done.stdout, done.stderr]
        session.exitstatus = done.returncode

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print what was tried again, why it may be, and how it went."""
        if self._said:
            terminalreporter.section("tried again, as the quarantine file allows")
            terminalreporter.write_line("\n".join(self._said))


def _without_group(nodeid: str) -> str:
    """Return a test's id without the group that pytest-xdist appends to it."""
    name, at, _ = nodeid.rpartition("@")
    return name if at and nodeid.rfind("@") > nodeid.rfind("]") else nodeid


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let the file be named, and where second tries are kept."""
    parser.addoption(_OPTION, type=Path, default=_FILE, help="tests that may fail once")
    parser.addoption(_JUNIT, type=Path, default=_KEPT, help="where their second tries are kept")
    parser.addoption(f"--{_AGAIN}", action="store_true", help="this is a second try")


def pytest_configure(config: pytest.Config) -> None:
    """Read the file, and listen in the process that hears of all tests."""
    entries = read(config.getoption(_OPTION))
    if not hasattr(config, "workerinput") and not config.getoption(_AGAIN.replace("-", "_")):
        junit = config.getoption(_JUNIT).absolute()
        config.pluginmanager.register(Quarantine(entries, junit), "quarantined-tests")
