"""The error handlers of the examples' web servers, whose models are asked through streamers."""

from __future__ import annotations

from http import HTTPStatus

from flask import Flask

from celery_batch.errors import BatchError

__all__ = ["new_app"]


def new_app() -> Flask:
    """
    Make a Flask app that answers the errors of a streamer with a status and a message.

    An input that the model cannot read is 400, and no answer in time is 504; a full
    queue, a lost worker and other errors of ours have a status of their own.
    """
    app = Flask("examples", static_folder=None)
    app.config["MAX_CONTENT_LENGTH"] = 16 * 2**20

    @app.errorhandler(ValueError)
    def unreadable(error: ValueError) -> tuple[dict[str, str], int]:
        return {"error": str(error)}, HTTPStatus.BAD_REQUEST

    @app.errorhandler(TimeoutError)
    def too_late(error: TimeoutError) -> tuple[dict[str, str], int]:
        return {"error": str(error)}, HTTPStatus.GATEWAY_TIMEOUT

    @app.errorhandler(BatchError)
    def refused(error: BatchError) -> tuple[dict[str, str], int]:
        return {"error": str(error)}, error.status_code

    return app
