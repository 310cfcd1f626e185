"""
Flask: error handlers for batch tasks, and a readiness probe.

A WSGI server does not tell a view that its client has gone.  What the client has asked for is
computed until the deadline, when the calls that still wait expire.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from celery import Celery
from flask import Blueprint, Flask, Response, jsonify

from celery_batch.web.errors import ERRORS, http_error
from celery_batch.web.readiness import readiness

__all__ = ["readiness_blueprint", "register_error_handlers"]


def register_error_handlers(app: Flask) -> None:
    """
    Answer errors of batch tasks and of the broker with `http_error`'s status and JSON.

    Other exceptions stay Flask's: a status of 500 and a traceback in the log.  A handler that
    the app has for one of their classes is kept.

    Args:
        app: The Flask app.
    """
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
