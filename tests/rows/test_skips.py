"""What the file of rows and skips may hold."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.rows.skips import read

SKIP = '[[skip]]\ntest = "{}"\nbefore = "celery {}"\nlacks = "it"\n'


def write(folder: Path, text: str) -> Path:
    """Return a file."""
    file = folder / "rows.toml"
    file.write_text(text)
    return file


@pytest.mark.parametrize(
    ("pattern", "test", "covered"),
    [
        ("tests/x.py::test_a", "tests/x.py::test_a", True),
        ("tests/x.py::test_a", "tests/x.py::test_ab", False),
        ("tests/x.py::test_a*", "tests/x.py::test_a[redis]", True),
        ("tests/x.py::test_a[*-solo]", "tests/x.py::test_a[redis-solo]", True),
        ("tests/x.py::test_a[*-solo]", "tests/x.py::test_a[redis-threads]", False),
        ("tests/x.py::test_a", "tests/x.py::test_a@group", True),
        ("tests/x.py::test_a[*-solo]", "tests/x.py::test_a[redis-solo]@group", True),
    ],
)
def test_patterns(tmp_path: Path, pattern: str, test: str, *, covered: bool):
    """A pattern is a node id, in which only stars are special."""
    (skip,) = read(write(tmp_path, SKIP.format(pattern, "999")))

    assert skip.covers(test) is covered


def test_ours_may_be_read():
    """Each of our own skips names tests that exist."""
    for skip in read():
        name = skip.test.partition("::")[2].partition("[")[0].rstrip("*").partition("::")[0]
        assert name in (Path(skip.test.partition("::")[0])).read_text()
