"""The tables of the replaced systems name tests that exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
TABLE = (ROOT / "docs" / "contributing" / "replaced-systems.md").read_text()
ROWS = [line for line in TABLE.splitlines() if line.startswith("| ") and "| shown by |" not in line]


def test_every_test_in_the_table_exists():
    """Each test that the tables name exists."""
    missing = []
    for path, test in re.findall(r"`([\w/]+\.py)::(test_\w+)`", TABLE):
        tree = ast.parse((ROOT / "tests" / path).read_text())
        names = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
        missing += [f"{path}::{test}"] if test not in names else []

    assert [] == missing


def test_every_row_has_a_test():
    """Each name, behaviour and defect has a test."""
    assert len(ROWS) > 30
    assert [] == [row for row in ROWS if "::test_" not in row]
