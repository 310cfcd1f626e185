"""The OpenAPI document of a served handle, whose own JSON is free."""

from __future__ import annotations

from typing import Any

from celery_batch.serve.config import ServeConfig

__all__ = ["openapi"]

_ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["type", "message"],
            "properties": {"type": {"type": "string"}, "message": {"type": "string"}},
        },
        "task_id": {"type": "string", "description": "To be looked for in the logs."},
    },
}

_PREDICT_ERRORS = {
    "400": "The body is no JSON object.",
    "413": "The body is too large.",
    "422": "The handle refused the request.",
    "429": "Too many requests wait.",
    "500": "The handle failed.",
    "503": "The request cannot be served now.",
    "504": "There was no answer in time.",
}


def openapi(config: ServeConfig) -> dict[str, Any]:
    """Describe the web server of a served handle."""
    name = config.handle.rpartition(":")[2]
    answer = _json("What the handle returned.", {})
    return {
        "openapi": "3.1.0",
        "info": {"title": name, "version": "1"},
        "paths": {
            "/predict": {
                "post": {
                    "operationId": "predict",
                    "summary": f"Have {name} answer a JSON object.",
                    "requestBody": {
                        "required": True,
                        "content": {"application/json": {"schema": {"type": "object"}}},
                    },
                    "responses": {"200": answer}
                    | {status: _error(words) for status, words in _PREDICT_ERRORS.items()},
                }
            },
            "/healthz": _probe("healthz", "Whether the web server runs."),
            "/readyz": _probe("readyz", "Whether a worker has loaded the handle.", "503"),
        },
        "components": {"schemas": {"Error": _ERROR}},
    }


def _probe(operation: str, summary: str, *errors: str) -> dict[str, Any]:
    answers = {"200": "Yes."} | dict.fromkeys(errors, "No.")
    responses = {status: _json(words, {"type": "object"}) for status, words in answers.items()}
    return {"get": {"operationId": operation, "summary": summary, "responses": responses}}


def _error(description: str) -> dict[str, Any]:
    return _json(description, {"$ref": "#/components/schemas/Error"})


def _json(description: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"description": description, "content": {"application/json": {"schema": schema}}}
