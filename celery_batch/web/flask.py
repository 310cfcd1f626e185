"""
Flask: error handlers for batch tasks, arrays in responses, and a readiness probe.

A WSGI server does not tell a view that its client has gone.  What the client has asked for is
computed until the deadline, when the calls that still wait expire.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from celery import Celery
from flask import Blueprint, Flask, Response, jsonify, request
from flask.json.provider import DefaultJSONProvider

from celery_batch.web.arrays import encode_outputs, lists_in_json
from celery_batch.web.errors import ERRORS, http_error
from celery_batch.web.readiness import readiness

__all__ = ["array_response", "readiness_blueprint", "register_error_handlers"]


def register_error_handlers(app: Flask) -> None:
    """
    Answer errors of batch tasks and of the broker with `http_error`'s status and JSON.

    Other exceptions stay Flask's: a status of 500 and a traceback in the log.  A handler that
    the app has for one of their classes is kept.

    Also, arrays in the JSON that the app makes become lists, with null for NaN, and exceptions
    the bodies of `http_error`: both would be an error.  An app's own JSON provider is kept.

    Args:
        app: The Flask app.
    """
    _encode_arrays(app)
    known = app.error_handler_spec[None][None]
    for kind in ERRORS:
        if kind not in known:
            app.register_error_handler(kind, _error_response)


def _error_response(exception: Exception) -> Response:
    error = http_error(exception)
    if error.status == 500:  # noqa: PLR2004 (Flask logs the traceback)
        raise exception
    response = jsonify(error.body)
    response.status_code = error.status
    response.headers.update(error.headers)
    return response


def _encode_arrays(app: Flask) -> None:
    provider = app.json
    if not isinstance(provider, DefaultJSONProvider):
        return
    default = provider.default

    def default_or_lists(value: Any) -> Any:
        try:
            return default(value)
        except TypeError:
            return lists_in_json(value)

    provider.default = default_or_lists


def array_response(outputs: Any) -> Response:
    """Answer the request as its header ``Accept`` asks for it; see `encode_outputs`."""
    body, content_type = encode_outputs(outputs, request.headers.get("Accept"))
    return Response(body, content_type=content_type, headers={"Vary": "Accept"})


def readiness_blueprint(
    celery: Celery, tasks: Collection[Any], *, path: str = "/readyz"
) -> Blueprint:
    """
    Return a blueprint with a readiness probe: 200 if workers serve the tasks, else 503.

    Args:
        celery: The Celery app.
        tasks: The batch tasks that the web app calls.
        path: The probe's path.
    """
    blueprint = Blueprint("readiness", __name__)

    @blueprint.get(path)
    def readyz() -> tuple[dict[str, Any], int]:
        found = readiness(celery, tasks)
        return found.body, found.status

    return blueprint
