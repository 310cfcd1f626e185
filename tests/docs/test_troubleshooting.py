"""The page on troubleshooting quotes messages as the code writes them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType

import celery
import kombu

import celery_batch

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "how-to" / "troubleshooting.md").read_text()

#: What is quoted of programs that are not Python, or of none of these packages.
_FOREIGN = {
    "Cannot re-initialize CUDA in forked subprocess",
    "delivery acknowledgement … timed out",
}


def texts_of(package: ModuleType) -> Iterator[str]:
    """Yield the texts in a package's code, with … where something is inserted."""
    for path in Path(str(package.__file__)).parent.rglob("*.py"):
        tree = ast.parse(path.read_text())
        docstrings = {
            id(node.value)
            for node in ast.walk(tree)
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        }
        for node in ast.walk(tree):
            if id(node) in docstrings:
                continue
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield re.sub(r"%[\d.]*[sdrgf]", "…", node.value)
            elif isinstance(node, ast.JoinedStr):
                yield "".join(
                    part.value
                    if isinstance(part, ast.Constant) and isinstance(part.value, str)
                    else "…"
                    for part in node.values
                )


@cache
def known_texts() -> str:
    """Return all texts of celery_batch and Celery, a line each."""
    packages = (celery_batch, celery, kombu)
    lines = [" ".join(text.split()) for package in packages for text in texts_of(package)]
    return "\n".join(lines)


def quoted() -> list[str]:
    """Return what the page quotes of messages: code of several words that is no command."""
    found = re.findall(r"`([^`\n]+)`", PAGE)
    words = [text for text in found if len(text.split()) > 2]
    return [text for text in words if not re.match(r"celery |gunicorn |--\w+=", text)]


def test_quoted_messages_are_in_the_code():
    """Each message that the page quotes is written by celery_batch, Celery or kombu."""
    unknown = []
    for text in quoted():
        pieces = [re.escape(piece.strip()) for piece in text.split("…")]
        pattern = "[^\n]*".join(pieces)
        if text not in _FOREIGN and not re.search(pattern, known_texts()):
            unknown.append(text)

    assert len(quoted()) > 30
    assert unknown == []


def test_foreign_messages_are_quoted():
    """No exception is left for a message that the page does not quote any more."""
    assert _FOREIGN <= set(quoted())
