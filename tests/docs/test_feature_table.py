"""The table of Celery's features names existing tests, and every test of a feature."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TABLE = (ROOT / "docs" / "reference" / "celery-features.md").read_text()
NAMED = re.findall(r"`([\w/]+\.py)::(test_\w+)`", TABLE)


ROWS = [line.split(" | ") for line in TABLE.splitlines() if re.match(r"\| (?!feature)", line)]


def _tests_of(path: Path) -> set[str]:
    if not path.is_file():
        return set()
    tree = ast.parse(path.read_text())
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def test_every_test_in_the_table_exists():
    """Each test that the table names exists."""
    missing = [
        f"{path}::{test}" for path, test in NAMED if test not in _tests_of(ROOT / "tests" / path)
    ]

    assert [] == missing


def test_every_test_of_a_feature_is_in_the_table():
    """Each test of a feature is named in the table."""
    folder = ROOT / "tests" / "integration"
    written = {
        (str(path.relative_to(ROOT / "tests")), test)
        for path in (*folder.glob("features/test_*.py"), *folder.glob("surroundings/test_*.py"))
        for test in _tests_of(path)
        if test.startswith("test_")
    }

    assert set() == written - set(NAMED)


def test_every_row_has_a_verdict_and_a_test():
    """Each row has a verdict (works, works differently, refused, ignored) and names its test."""
    verdicts = ("works", "refused with `", "ignored")

    assert len(ROWS) > 50
    assert [] == [row[0] for row in ROWS if not row[1].startswith(verdicts)]
    assert [] == [row[0] for row in ROWS if "::test_" not in row[2]]


@pytest.mark.parametrize(
    ("words", "verdict"),
    [("These work differently:", "works differently"), ("These are refused,", "refused")],
    ids=["different", "refused"],
)
def test_summary_names_what_is_not_as_in_celery(words: str, verdict: str):
    """The summary names every row that differs or is refused."""
    _, _, rest = TABLE.partition(words)
    (points,) = re.findall(r"\A.*\n\n((?:\* .*\n)+)", rest)
    named = [point.removeprefix("* ").partition(": ")[0] for point in points.splitlines()]

    assert [row[0].removeprefix("| ") for row in ROWS if row[1].startswith(verdict)] == named
