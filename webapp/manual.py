"""
The OpenAPI document as a page to read: no script, nothing from elsewhere.

The customary pages load their scripts from other people's servers; this one works without
internet, and within the policy that every answer here has.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

__all__ = ["manual"]

_METHODS = ("get", "post", "put", "patch", "delete")


def manual(document: Mapping[str, Any]) -> bytes:
    """
    Return the page.

    Args:
        document: OpenAPI 3.
    """
    title = escape(document["info"]["title"])
    return "\n".join(
        [
            '<!doctype html><html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta name="color-scheme" content="light dark">',
            f"<title>{title}</title></head><body><main><h1>{title}</h1>",
            f"<p>{escape(document['info'].get('description', ''))}</p>",
            '<p>For programs: <a href="/openapi.json">/openapi.json</a></p>',
            *_operations(document),
            "</main></body></html>",
        ]
    ).encode()


def _operations(document: Mapping[str, Any]) -> Iterator[str]:
    for path, methods in document["paths"].items():
        for method in _METHODS:
            if method in methods:
                yield f"<section><h2><code>{method.upper()} {escape(path)}</code></h2>"
                yield from _operation(methods[method], document)
                yield "</section>"


def _operation(operation: Mapping[str, Any], document: Mapping[str, Any]) -> Iterator[str]:
    for key in ("summary", "description"):
        if text := operation.get(key):
            yield f"<p>{escape(text)}</p>"
    if parameters := operation.get("parameters"):
        yield "<table><tr><th>parameter</th><th>in</th><th>meaning</th></tr>"
        for parameter in (_resolved(each, document) for each in parameters):
            cells = (parameter["name"], parameter["in"], parameter.get("description", ""))
            yield _row(cells)
        yield "</table>"
    for kind, content in operation.get("requestBody", {}).get("content", {}).items():
        yield f"<p>Body, <code>{escape(kind)}</code>:</p>"
        shape = content.get("example", content.get("schema", {}))
        yield f"<pre>{escape(json.dumps(shape, indent=2, ensure_ascii=False))}</pre>"
    yield "<table><tr><th>status</th><th>when</th></tr>"
    for status, response in operation.get("responses", {}).items():
        yield _row((status, _resolved(response, document).get("description", "")))
    yield "</table>"


def _row(cells: tuple[str, ...]) -> str:
    return f"<tr>{''.join(f'<td>{escape(str(cell))}</td>' for cell in cells)}</tr>"


def _resolved(part: Mapping[str, Any], document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what a part of the document refers to, if it does."""
    found: Any = document
    if reference := part.get("$ref"):
        for name in reference.removeprefix("#/").split("/"):
            found = found[name]
        return _resolved(found, document)
    return part
