"""What the OpenAPI document says of the routes about backfills."""

from __future__ import annotations

from typing import Any

from celery_batch.backfill.jobs import VERBS

__all__ = ["job_operations"]

_NUMBER = {"type": "number"}
_JOB: dict[str, Any] = {
    "type": "object",
    "required": ["id", "task", "name", "state", "done", "failed", "rate", "total", "left"],
    "properties": {
        **{name: {"type": "string"} for name in ("id", "task", "name", "state")},
        **dict.fromkeys(("done", "failed", "rate", "flying", "window", "workers"), _NUMBER),
        "silent": {"type": "number", "description": "Seconds since the last answer."},
        "total": {"type": ["number", "null"], "description": "Rows of the input, if known."},
        "left": {"type": ["number", "null"], "description": "Seconds to its end, if known."},
    },
}


def job_operations() -> dict[tuple[str, str], dict[str, Any]]:
    """Return what is said of each method and path."""
    return {("GET", "/jobs"): _listing(), ("POST", "/jobs/{id}"): _steering()}


def _listing() -> dict[str, Any]:
    jobs = {"type": "array", "items": _JOB}
    listed = {
        "type": "object",
        "required": ["jobs", "steers"],
        "properties": {"jobs": jobs, "steers": {"type": "boolean"}},
    }
    return {
        "summary": "Tell how far the running backfills are.",
        "responses": {"200": _answer("Those that answer.", listed)},
    }


def _steering() -> dict[str, Any]:
    name = {"name": "id", "in": "path", "required": True, "schema": {"type": "string"}}
    wanted = {
        "type": "object",
        "required": ["do"],
        "properties": {"do": {"enum": list(VERBS)}},
        "additionalProperties": False,
    }
    missing = {"$ref": "#/components/schemas/Refusal"}
    return {
        "summary": "Have a backfill pause, go on or stop.",
        "parameters": [{**name, "description": "As GET /jobs has told it."}],
        "requestBody": {"required": True, "content": {"application/json": {"schema": wanted}}},
        "responses": {
            "200": _answer("What it says now.", _JOB),
            "404": _answer("No such backfill is running.", missing),
            "415": _answer("The body comes in a form that this route does not read.", missing),
        },
    }


def _answer(text: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"description": text, "content": {"application/json": {"schema": schema}}}
