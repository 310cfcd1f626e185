"""
A plugin of pytest's: writes down which tests failed, so that they can be tried once more.

Pytest's own notes leave out a test that took a process of pytest-xdist down with it.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

__all__ = ["Failures"]

_OPTION = "--failures"


class Failures:
    """
    What failed.

    Args:
        file: Where it is written down when all is over.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._tests: dict[str, None] = {}
        self._unread: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note a test, at whatever point it failed."""
        if report.failed:
            self._tests[report.nodeid] = None

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Note a file whose tests are not known, and so have not run."""
        if report.failed:
            self._unread.append(report.nodeid)

    def pytest_sessionfinish(self) -> None:
        """Write it all down."""
        self._file.write_text(json.dumps({"tests": [*self._tests], "unread": self._unread}))


def pytest_addoption(parser: pytest.Parser) -> None:
    """Have it told where to write."""
    parser.addoption(_OPTION, type=Path)


def pytest_configure(config: pytest.Config) -> None:
    """Listen, in the process that hears of all tests."""
    file = config.getoption(_OPTION)
    if file is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Failures(file))
