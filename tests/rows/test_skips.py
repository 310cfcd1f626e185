"""What the file of rows and skips may hold."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.rows.skips import MOST, read

SKIP = '[[skip]]\ntest = "{}"\nbefore = "celery {}"\nlacks = "it"\n'


def write(folder: Path, text: str) -> Path:
    """Return a file."""
    file = folder / "rows.toml"
    file.write_text(text)
    return file


def test_a_package_that_is_too_old_has_tests_skipped(tmp_path: Path):
    """A skip holds where the installed release is older, and says what is missing."""
    text = SKIP.format("a", "999") + SKIP.format("a", "1")
    old, new = read(write(tmp_path, text))

    assert (old.holds(), new.holds()) == (True, False)
    assert old.reason == "celery before 999 lacks it"


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


@pytest.mark.parametrize(
    "text",
    [
        SKIP.format("a", "1") * (MOST + 1),
        SKIP.format("tests/faults/test_faults.py::*", "1"),
        SKIP.format("tests/client/publish/test_ids.py::*", "1"),
        '[[skip]]\ntest = "a"\nbefore = "celery 1"\n',
        '[[skip]]\ntest = "a"\nbefore = "celery"\nlacks = "it"\n',
    ],
    ids=["many", "faults", "client", "no reason", "no release"],
)
def test_what_it_may_not_hold(tmp_path: Path, text: str):
    """Too many skips, those of faults and clients, and those without a reason are refused."""
    with pytest.raises(pytest.UsageError):
        read(write(tmp_path, text))


def test_ours_may_be_read():
    """Each of our own skips names tests that exist."""
    for skip in read():
        name = skip.test.partition("::")[2].partition("[")[0].rstrip("*").partition("::")[0]
        assert name in (Path(skip.test.partition("::")[0])).read_text()
