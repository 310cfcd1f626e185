"""What the OpenAPI document says of each route: what it takes, and what may come back."""

from __future__ import annotations

from typing import Any

from webapp.job_operations import job_operations
from webapp.settings import Settings

__all__ = ["operations"]

Described = dict[str, Any]

_HEADERS = [
    {
        "name": "X-Timeout",
        "in": "header",
        "description": "Seconds that the client waits; no more than the server's own limit.",
        "schema": {"type": "number", "exclusiveMinimum": 0},
    },
    {
        "name": "Prefer",
        "in": "header",
        "description": "respond-async: when the time is over, have the tasks go on (RFC 7240).",
        "schema": {"type": "string"},
    },
    {
        "name": "X-Request-ID",
        "in": "header",
        "description": "What the client calls this request; kept if it is harmless.",
        "schema": {"type": "string"},
    },
]

_EXPLAIN = {
    "name": "explain",
    "in": "query",
    "description": "Whether to tell what is known of the batches, as a form has no field for it.",
    "schema": {"type": "boolean"},
}

_FORMS = ("application/x-www-form-urlencoded", "multipart/form-data")
_PROBE: Described = {"security": []}
_TASK = {
    "name": "id",
    "in": "path",
    "required": True,
    "description": "As POST /tasks has told it.",
    "schema": {"type": "string"},
}


def operations(settings: Settings) -> dict[tuple[str, str], Described]:
    """
    Return what is said of each method and path.

    Args:
        settings: The limits.
    """
    text = {
        "type": "string",
        "minLength": 1,
        "maxLength": settings.max_characters,
        "pattern": r"\S",
    }
    texts = {"type": "array", "minItems": 1, "maxItems": settings.max_inputs, "items": text}
    return {
        ("POST", "/predict"): _predict(texts, "inputs", "Answer inputs, in order."),
        ("POST", "/stream"): _form("Answer a form, batched with everybody's.", texts),
        ("POST", "/naive"): _form("Answer a form, each input by itself.", texts),
        ("POST", "/pictures"): _pictures(),
        ("POST", "/tasks"): _send(text),
        ("GET", "/tasks/{id}"): _news("Tell how far a task is."),
        ("DELETE", "/tasks/{id}"): _news("Have a task not run, if it does not yet."),
        ("GET", "/events/{id}"): _events("Tell the news of a task until it has ended.", _TASK),
        ("GET", "/healthz"): _PROBE | _status("Whether this process lives.", {"status": _word()}),
        ("GET", "/readyz"): _PROBE
        | _status("Whether warm workers answer.", {"status": _word(), "workers": _lists()}),
        ("GET", "/metrics"): _file("What is counted, for Prometheus.", "text/plain"),
        **job_operations(),
        ("GET", "/live"): _events("Tell what goes on, once a second."),
        ("GET", "/"): _PROBE | _file("A page to try it.", "text/html"),
        ("GET", "/page/{name}"): _PROBE | _part(),
        ("GET", "/docs"): _PROBE | _file("This document, for people.", "text/html"),
        ("GET", "/openapi.json"): _PROBE | _status("This document.", {}),
    }


def _word() -> Described:
    return {"type": "string"}


def _lists() -> Described:
    return {"type": "object", "additionalProperties": {"type": "array", "items": _word()}}


def _object(required: dict[str, Described], **optional: Described) -> Described:
    return {
        "type": "object",
        "required": list(required),
        "properties": {**required, **optional},
    }


def _answer(text: str, kind: str, schema: Described, **headers: str) -> Described:
    told = {
        name.replace("_", "-"): {"description": about, "schema": _word()}
        for name, about in headers.items()
    }
    answer: Described = {"description": text, "content": {kind: {"schema": schema}}}
    return answer | ({"headers": told} if told else {})


def _reference(name: str) -> Described:
    return {"$ref": f"#/components/schemas/{name}"}


def _refused(text: str) -> Described:
    return _answer(text, "application/json", _reference("Refusal"))


def _asking(summary: str, content: Described, answer: Described) -> Described:
    """Return what is said of a route that asks the model and waits."""
    later = {"anyOf": [_reference("Sent"), _object({"tasks": _array("Sent")})]}
    return {
        "summary": summary,
        "parameters": _HEADERS,
        "requestBody": {"required": True, "content": content},
        "responses": {
            "200": _answer("The outputs.", "application/json", answer),
            "202": _answer("The time is over, the tasks go on.", "application/json", later),
            "415": _refused("The body comes in a form that this route does not read."),
            "422": _refused("The model finds every input bad."),
            "504": _refused("The outputs did not come in time."),
        },
    }


def _array(name: str) -> Described:
    return {"type": "array", "items": _reference(name)}


def _outputs() -> Described:
    errors = {"type": "object", "additionalProperties": _reference("Error")}
    return _object({"outputs": {"type": "array"}}, errors=errors, batches=_array("Batch"))


def _predict(texts: Described, field: str, summary: str) -> Described:
    question = _object({field: texts}, explain={"type": "boolean"})
    schema = {**question, "additionalProperties": False}
    return _asking(summary, {"application/json": {"schema": schema}}, _outputs())


def _form(summary: str, texts: Described) -> Described:
    schema = {"schema": _object({"s": texts})}
    return _asking(summary, dict.fromkeys(_FORMS, schema), {"type": "array"})


def _pictures() -> Described:
    in_json = _object(
        {"pictures": {"type": "array", "minItems": 1, "items": _word()}},
        explain={"type": "boolean"},
    )
    picture = {"type": "string", "format": "binary"}
    in_form = _object({"picture": {"type": "array", "minItems": 1, "items": picture}})
    content = {
        "application/json": {"schema": {**in_json, "additionalProperties": False}},
        "multipart/form-data": {"schema": in_form},
    }
    asking = _asking("Answer pictures, in order.", content, _outputs())
    return asking | {"parameters": [_EXPLAIN, *_HEADERS]}


def _send(text: Described) -> Described:
    schema = {**_object({"input": text}), "additionalProperties": False}
    sent = _answer("Sent.", "application/json", _reference("Sent"), Location="Where its news are.")
    return {
        "summary": "Send an input, and ask for its output later.",
        "parameters": _HEADERS,
        "requestBody": {"required": True, "content": {"application/json": {"schema": schema}}},
        "responses": {
            "202": sent,
            "415": _refused("The body comes in a form that this route does not read."),
        },
    }


def _news(summary: str) -> Described:
    return {
        "summary": summary,
        "parameters": [_TASK],
        "responses": {
            "200": _answer("Its news.", "application/json", _reference("News")),
            "404": _refused("There is no such task."),
        },
    }


def _events(summary: str, *parameters: Described) -> Described:
    return {
        "summary": summary,
        "parameters": list(parameters),
        "responses": {
            "200": _answer("Server-sent events.", "text/event-stream", _word()),
            "404": _refused("There is no such thing."),
        },
    }


def _status(summary: str, fields: dict[str, Described]) -> Described:
    answer = _answer("So it is.", "application/json", _object(fields))
    return {"summary": summary, "responses": {"200": answer}}


def _part() -> Described:
    name = {"name": "name", "in": "path", "required": True, "schema": _word()}
    part = _file("What that page is made of.", "text/css")
    also = {kind: {"schema": _word()} for kind in ("text/javascript", "text/html", "image/svg+xml")}
    part["responses"]["200"]["content"].update(also)
    part["responses"]["404"] = _refused("The page has no such file.")
    return part | {"parameters": [name]}


def _file(summary: str, kind: str) -> Described:
    return {"summary": summary, "responses": {"200": _answer("It.", kind, _word())}}
