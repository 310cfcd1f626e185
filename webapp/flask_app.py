"""
The Flask door: ``gunicorn -k webapp.parking.ParkingWorker webapp.flask_app:app``.

It translates HTTP and nothing else; what is answered is `webapp.contract`'s business.
"""

from __future__ import annotations

from typing import Any

from flask import Flask, Response, request
from werkzeug.exceptions import HTTPException, InternalServerError

from webapp.contract import Contract
from webapp.parked import Parked
from webapp.service import served_contract
from webapp.wsgi import answer_to, head_of

__all__ = ["app", "create_app"]


class _Response(Response):
    """What the contract says and no more: who asks for the head alone hears of no length 0."""

    automatically_set_content_length = False


class _Later(_Response):
    """What Flask takes for an answer, and the server for its absence; its headers are kept."""

    def __init__(self, parked: Parked) -> None:
        super().__init__()
        self._parked = parked

    def __call__(self, _environ: Any, _start_response: Any) -> Any:
        return Parked(self._parked.answering, self.close, [*self.headers.items()])


def create_app(contract: Contract) -> Flask:
    """
    Make a door to a contract.

    Args:
        contract: What is answered.
    """
    flask = Flask("webapp", static_folder=None)
    flask.url_map.merge_slashes = False

    def view(**_parameters: str) -> Response:
        answer = answer_to(request.environ, contract)
        if isinstance(answer, Parked):
            return _Later(answer)
        body = [answer.body] if isinstance(answer.body, bytes) else iter(answer.body)
        return _Response(body, answer.status, dict(answer.headers))

    for path, methods in contract.routes.paths().items():
        rule = path.replace("{", "<").replace("}", ">")
        flask.add_url_rule(rule, path, view, methods=methods, provide_automatic_options=False)

    @flask.errorhandler(HTTPException)
    def other(error: HTTPException) -> Response:
        if isinstance(error, InternalServerError):
            answer = contract.failed(head_of(request.environ))
            return _Response([answer.body], answer.status, dict(answer.headers))
        return view()  # unknown paths and methods are the contract's to refuse, too

    return flask


app = create_app(served_contract())
