"""Each operation of the OpenAPI document as a command to type."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from typing import Any

__all__ = ["curl"]

#: Where servers listen unless told otherwise.
_SERVER = "localhost:8000"

#: What stands for a text; that of the example's model, which others find as good as any.
_TEXT = "Mary had a little [MASK]."


def curl(method: str, path: str, operation: Mapping[str, Any]) -> str:
    """
    Return the command that asks for it.

    Args:
        method: In capitals.
        path: With names of parameters in braces, which become capitals.
        operation: OpenAPI's.
    """
    words = ["curl"]
    content = operation.get("requestBody", {}).get("content", {})
    if method not in {"GET", "POST"} or (method == "POST" and not content):
        words += ["-X", method]
    if "text/event-stream" in _answers(operation):
        words.append("--no-buffer")
    words.append(_SERVER + re.sub(r"\{(\w+)\}", lambda found: found[1].upper(), path))
    if operation.get("security"):
        words += ["-H", "Authorization: Bearer KEY"]
    return " ".join(shlex.quote(word) for word in [*words, *_body(content)])


def _answers(operation: Mapping[str, Any]) -> Mapping[str, Any]:
    content: Mapping[str, Any] = operation.get("responses", {}).get("200", {}).get("content", {})
    return content


def _body(content: Mapping[str, Any]) -> list[str]:
    for kind, form in content.items():
        fields = form.get("schema", {}).get("properties", {})
        if kind == "multipart/form-data":
            return ["-F", f"{next(iter(fields))}=@photo.jpg"]
        if kind == "application/x-www-form-urlencoded":
            return ["--data-urlencode", f"{next(iter(fields))}={_TEXT}"]
        if "multipart/form-data" not in content:  # megabytes are no example
            example = form.get("example", _example(form.get("schema", {})))
            # Not --json, which curl knows from 7.82 on.
            return ["-H", f"Content-Type: {kind}", "-d", json.dumps(example, ensure_ascii=False)]
    return []


def _example(schema: Mapping[str, Any]) -> Any:
    if "enum" in schema:
        return schema["enum"][0]
    if schema.get("type") == "object":
        fields = schema.get("properties", {})
        return {name: _example(fields[name]) for name in schema.get("required", ())}
    return [_example(schema.get("items", {}))] if schema.get("type") == "array" else _TEXT
