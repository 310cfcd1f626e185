"""The OpenAPI document: one for all doors, since they answer alike."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from webapp.operations import operations
from webapp.routes import Route
from webapp.settings import Settings

__all__ = ["openapi"]

_DESCRIPTION = (
    "Inputs are gathered with everybody's and go through the model in batches. An input that "
    "fails alone leaves the others their outputs. Whatever is refused is answered with "
    "{'error': {'type', 'message'}}, and every answer has X-Request-ID."
)

#: What every route may say, beside its own: refusals before it is asked.
_ALWAYS = {
    "400": "The request is not of the form that is asked for.",
    "403": "A browser sends it for the page of another site, which is not listed.",
    "413": "The request is over a limit.",
    "421": "The service does not go by that host.",
    "429": "The client, or all together, ask too much: come again after Retry-After.",
    "431": "Too many headers.",
    "500": "Something is wrong with the model, or with this server.",
    "503": "The broker cannot be reached, or no worker has a warm model.",
}

_ERROR = {
    "type": "object",
    "required": ["type", "message"],
    "properties": {
        "type": {"type": "string", "description": "For programs, in one word."},
        "message": {"type": "string", "description": "For people."},
    },
}

_SCHEMAS = {
    "Error": _ERROR,
    "Refusal": {
        "type": "object",
        "required": ["error"],
        "properties": {
            "error": {"$ref": "#/components/schemas/Error"},
            "errors": {
                "type": "object",
                "description": "The error of each input, under its index.",
                "additionalProperties": {"$ref": "#/components/schemas/Error"},
            },
        },
    },
    "Batch": {
        "type": ["object", "null"],
        "description": "How an output was made, as far as it is known.",
    },
    "Sent": {
        "type": "object",
        "required": ["id", "url", "events"],
        "properties": {name: {"type": "string"} for name in ("id", "url", "events")},
    },
    "News": {
        "type": "object",
        "required": ["id", "state"],
        "properties": {
            "id": {"type": "string"},
            "state": {
                "enum": ["queued", "started", "succeeded", "failed", "revoked", "expired"],
            },
            "output": {"description": "What the model says, once it has."},
            "error": {"$ref": "#/components/schemas/Error"},
        },
    },
}

_SECURITY = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "key": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
}


def openapi(routes: Iterable[Route], settings: Settings) -> dict[str, Any]:
    """
    Return the document.

    Args:
        routes: All routes; those that `webapp.operations` does not describe are left out.
        settings: The limits, which the document tells.
    """
    has_keys = bool(settings.api_keys or settings.api_keys_file)
    described = operations(settings)
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        if operation := route.operation or described.get((route.method, route.path)):
            completed = _completed(operation, has_keys=has_keys)
            paths.setdefault(route.path, {})[route.method.lower()] = completed
    return {
        "openapi": "3.1.0",
        "info": {"title": "celery_batch", "version": "1", "description": _DESCRIPTION},
        "paths": paths,
        "components": {"schemas": _SCHEMAS, "securitySchemes": _SECURITY if has_keys else {}},
    }


def _completed(operation: Mapping[str, Any], *, has_keys: bool) -> dict[str, Any]:
    """Return an operation with what every one may answer."""
    is_open = operation.get("security") == []
    always = _ALWAYS | ({"401": "No key that is known."} if has_keys and not is_open else {})
    told = {status: _refusal(text) for status, text in always.items()}
    completed = {**operation, "responses": {**told, **operation["responses"]}}
    if has_keys and not is_open:
        completed["security"] = [{name: []} for name in _SECURITY]
    return {**completed, "responses": dict(sorted(completed["responses"].items()))}


def _refusal(text: str) -> dict[str, Any]:
    schema = {"$ref": "#/components/schemas/Refusal"}
    return {"description": text, "content": {"application/json": {"schema": schema}}}
