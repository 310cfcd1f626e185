"""
A plugin of pytest's: the tests that an older Celery cannot run.

They stand in ``tests/rows/rows.toml``, each with the release of a package that first has
what it uses.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from fnmatch import fnmatchcase
from importlib import metadata
from pathlib import Path

import pytest
from packaging.version import Version

__all__ = ["FILE", "MOST", "Skip", "read"]

#: More would hide that the product does not run there.
MOST = 25

#: Folders with no such test: what they promise holds on every release.
_EVERYWHERE = ("tests/faults/", "tests/client/")

FILE = Path(__file__).with_name("rows.toml")


@dataclass(frozen=True, slots=True)
class Skip:
    """
    A test, or several, for which a package is too old.

    Args:
        test: A pattern of node ids.
        package: Which package.
        first: Its first release that has what the test uses.
        lacks: What older ones lack.
    """

    test: str
    package: str
    first: Version
    lacks: str

    @property
    def reason(self) -> str:
        """What a report says of it."""
        return f"{self.package} before {self.first} lacks {self.lacks}"

    def holds(self) -> bool:
        """Return whether the installed package is too old."""
        return Version(metadata.version(self.package)) < self.first

    def covers(self, nodeid: str) -> bool:
        """Return whether a test is among these."""
        test = self.test.replace("[", "(")
        # pytest-xdist adds a test's group to its id.
        return any(fnmatchcase(nodeid.replace("[", "("), each) for each in (test, f"{test}@*"))


def read(file: Path = FILE) -> tuple[Skip, ...]:
    """Return the file's entries, or raise ``pytest.UsageError`` for what it may not hold."""
    found = tomllib.loads(file.read_text()).get("skip", [])
    if len(found) > MOST:
        raise pytest.UsageError(f"{file}: {len(found)} skips, at most {MOST}")
    return tuple(_skip(file, each) for each in found)


def _skip(file: Path, fields: dict[str, str]) -> Skip:
    try:
        package, first = fields["before"].split()
        skip = Skip(fields["test"], package, Version(first), fields["lacks"])
    except (KeyError, ValueError) as error:
        raise pytest.UsageError(f"{file}: a skip needs test, before, lacks: {fields}") from error
    if skip.test.startswith(_EVERYWHERE):
        raise pytest.UsageError(f"{file}: {skip.test} runs on every release")
    return skip


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests for which this environment is too old."""
    skips = [skip for skip in read() if skip.holds()]
    for item in items:
        for skip in skips:
            if skip.covers(item.nodeid):
                item.add_marker(pytest.mark.skip(reason=skip.reason))
