"""
The Flask door: ``gunicorn webapp.flask_app:app``.

It translates HTTP and nothing else; what is answered is `webapp.contract`'s business.
"""

from __future__ import annotations

import os
from http import HTTPStatus

from flask import Flask, request
from flask.typing import ResponseReturnValue
from werkzeug.exceptions import HTTPException, RequestEntityTooLarge

from webapp.contract import Contract
from webapp.errors import Answer, refusal
from webapp.settings import Settings
from workers.infill import infill, infill_one

__all__ = ["app", "create_app"]


def create_app(contract: Contract) -> Flask:
    """
    Make a door to a contract.

    Args:
        contract: What is answered.
    """
    flask = Flask("webapp", static_folder=None)
    flask.json.sort_keys = False  # type: ignore[attr-defined]  # the default provider has it
    # One byte more than allowed: a body sent in chunks is cut at the limit without a word,
    # and only by its length can the contract see that.
    limit = contract.settings.max_body_bytes + 1
    # The contract counts inputs; a form parser that counts parts would do it differently.
    flask.config.update(MAX_CONTENT_LENGTH=limit, MAX_FORM_MEMORY_SIZE=limit, MAX_FORM_PARTS=None)
    _add_routes(flask, contract)
    _add_refusals(flask, contract)
    return flask


def _add_routes(flask: Flask, contract: Contract) -> None:
    @flask.post("/predict")
    def predict() -> ResponseReturnValue:
        return _response(contract.predict(request.get_data(), request.content_type))

    @flask.post("/stream")
    def stream() -> ResponseReturnValue:
        return _response(contract.stream(*_form()))

    @flask.post("/naive")
    def naive() -> ResponseReturnValue:
        return _response(contract.naive(*_form()))

    @flask.get("/healthz")
    def healthz() -> ResponseReturnValue:
        return _response(contract.health())

    @flask.get("/readyz")
    def readyz() -> ResponseReturnValue:
        return _response(contract.ready())


def _add_refusals(flask: Flask, contract: Contract) -> None:
    """Let the framework's own refusals, of unknown paths and such, look like the contract's."""

    @flask.errorhandler(RequestEntityTooLarge)
    def too_large(_error: RequestEntityTooLarge) -> ResponseReturnValue:
        return _response(contract.body_too_large())

    @flask.errorhandler(HTTPException)
    def refused(error: HTTPException) -> ResponseReturnValue:
        status = error.code or HTTPStatus.INTERNAL_SERVER_ERROR
        kind = type(error).__name__
        headers = {
            name: value
            for name, value in error.get_headers()
            if name.lower() not in {"content-type", "content-length"}
        }
        answer = refusal(status, kind, error.description or error.name, headers=headers)
        return _response(answer)


def _form() -> tuple[list[str], str | None, int]:
    """Return the values of the form's field ``s``, the content type and the body's size."""
    size = len(request.get_data())
    return request.form.getlist("s"), request.content_type, size


def _response(answer: Answer) -> ResponseReturnValue:
    return answer.body, answer.status, dict(answer.headers)


app = create_app(Contract(infill, infill_one, Settings.from_environ(os.environ)))
