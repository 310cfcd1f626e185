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

from webapp.curls import curl

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
            *_head(title),
            '<main class="manual"><div class="lead">',
            "<h1>What may be asked, and what comes back</h1>",
            f"<p>{escape(document['info'].get('description', ''))}</p>",
            "<p>The commands ask port 8000 of this machine: put your own address in its place.",
            'For programs there is <a href="openapi.json">openapi.json</a>.</p>',
            *_contents(document),
            "</div>",
            *_operations(document),
            "</main></body></html>",
        ]
    ).encode()


def _head(title: str) -> Iterator[str]:
    # Links are relative, since the app may be below a path of its own.
    yield '<!doctype html><html lang="en"><head><meta charset="utf-8">'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">'
    yield '<meta name="color-scheme" content="light dark">'
    yield '<link rel="icon" href="page/icon.svg" type="image/svg+xml">'
    yield '<link rel="stylesheet" href="page/style.css">'
    yield '<link rel="stylesheet" href="page/manual.css">'
    yield f"<title>{title}: its routes</title></head><body>"
    yield '<header class="top"><a class="brand" href="./">'
    yield '<img src="page/icon.svg" alt="" width="28" height="28">'
    yield f"<span>{title}</span></a></header>"


def _listed(document: Mapping[str, Any]) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    for path, methods in document["paths"].items():
        for method in _METHODS:
            if method in methods:
                yield method.upper(), path, methods[method]


def _contents(document: Mapping[str, Any]) -> Iterator[str]:
    yield '<ul class="routes">'
    for number, (method, path, _) in enumerate(_listed(document)):
        yield f'<li><a href="#r{number}"><code>{method} {escape(path)}</code></a></li>'
    yield "</ul>"


def _operations(document: Mapping[str, Any]) -> Iterator[str]:
    for number, (method, path, operation) in enumerate(_listed(document)):
        yield f'<section class="card" id="r{number}">'
        yield f"<h2><code>{method} {escape(path)}</code></h2>"
        for key in ("summary", "description"):
            if text := operation.get(key):
                yield f"<p>{escape(text)}</p>"
        command = escape(curl(method, path, operation))
        yield f'<h3>For example</h3><pre class="command">{command}</pre>'
        yield from _details(operation, document)
        yield "</section>"


def _details(operation: Mapping[str, Any], document: Mapping[str, Any]) -> Iterator[str]:
    if parameters := operation.get("parameters"):
        yield "<h3>Parameters</h3><table><tr><th>name</th><th>in</th><th>meaning</th></tr>"
        for parameter in (_resolved(each, document) for each in parameters):
            cells = (parameter["name"], parameter["in"], parameter.get("description", ""))
            yield _row(cells)
        yield "</table>"
    for kind, content in operation.get("requestBody", {}).get("content", {}).items():
        yield f"<details><summary>Body, <code>{escape(kind)}</code></summary>"
        shape = content.get("example", content.get("schema", {}))
        yield f"<pre>{escape(json.dumps(shape, indent=2, ensure_ascii=False))}</pre></details>"
    yield "<details><summary>What comes back</summary>"
    yield "<table><tr><th>status</th><th>when</th></tr>"
    for status, response in operation.get("responses", {}).items():
        yield _row((status, _resolved(response, document).get("description", "")))
    yield "</table></details>"


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
