"""Each of Celery's features in the reference has tests, which the contributors' page names."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
TABLE = (ROOT / "docs" / "reference" / "celery-features.md").read_text()
TESTS = (ROOT / "docs" / "contributing" / "feature-tests.md").read_text()
NAMED = re.findall(r"`([\w/]+\.py)::(test_\w+)`", TESTS)


def _rows(text: str) -> list[tuple[str, str, str]]:
    """Return each row's heading, feature and second cell; also those in a line "Works: ..."."""
    rows, heading = [], ""
    for line in text.splitlines():
        heading = line if line.startswith("## ") else heading
        if line.startswith("Works: "):
            named = line.removeprefix("Works: ").removesuffix(".").split("; ")
            rows += [(heading, feature, "works") for feature in named]
        if re.match(r"\| (?!feature)", line):
            feature, cell = line.strip("| ").split(" | ")
            rows.append((heading, feature, cell))
    return rows


def points(words: str) -> list[str]:
    """Return the features in the list below these words, which differ from Celery's."""
    _, _, rest = TABLE.partition(words)
    (found,) = re.findall(r"\A.*\n\n((?:\* .*\n)+)", rest)
    return [point.removeprefix("* ").partition(": ")[0] for point in found.splitlines()]


ROWS, ROWS_OF_TESTS = _rows(TABLE), _rows(TESTS)


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
    """Each row works or is ignored, and it and each difference names its tests."""
    differ = [*points("These work differently:"), *points("These are refused,")]

    assert len(ROWS) > 50
    assert [] == [feature for _, feature, cell in ROWS if not cell.startswith(("works", "ignored"))]
    assert [] == [feature for _, feature, cell in ROWS_OF_TESTS if "::test_" not in cell]
    assert {row[:2] for row in ROWS} == {row[:2] for row in ROWS_OF_TESTS if row[1] not in differ}
    assert sorted(differ) == sorted(row[1] for row in ROWS_OF_TESTS if row[1] in differ)


def test_users_see_no_tests():
    """The page for users names features, not files of tests."""
    assert [] == re.findall(r"\w+\.py\b", TABLE)
