"""
The house's limits, checked over the tree: ``python tests/house.py``.

Small modules and short functions are what makes this code readable in one
sitting; a limit that is not checked is a wish.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDERS = ("celery_batch", "workers", "webapp", "deploy", "bench", "examples")

#: Where signatures are not ours to choose: service-streamer's.
HONOURED = "celery_batch/streamer"

LONGEST_MODULE = 300
LONGEST_BODY = 40
MOST_PARAMETERS = 5


def complaints() -> Iterator[str]:
    """Name every place over a limit, and every import that runs in a circle."""
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            text = path.read_text()
            where = path.relative_to(ROOT)
            if (lines := text.count("\n")) > LONGEST_MODULE:
                yield f"{where}: {lines} lines, at most {LONGEST_MODULE}"
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                    yield from _about(node, where)


def _about(node: ast.FunctionDef | ast.AsyncFunctionDef, where: Path) -> Iterator[str]:
    first = node.body[1] if ast.get_docstring(node) and len(node.body) > 1 else node.body[0]
    if (lines := (node.end_lineno or 0) - first.lineno + 1) > LONGEST_BODY:
        yield f"{where}:{node.lineno} {node.name}: body of {lines} lines, at most {LONGEST_BODY}"
    parameters = [
        each.arg
        for each in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
        if each.arg not in ("self", "cls")
    ]
    if len(parameters) > MOST_PARAMETERS and HONOURED not in where.parent.as_posix():
        yield f"{where}:{node.lineno} {node.name}: {len(parameters)} parameters"


if __name__ == "__main__":
    found = list(complaints())
    print("\n".join(found) or "house: every module and function within its limits")  # noqa: T201
    sys.exit(bool(found))
