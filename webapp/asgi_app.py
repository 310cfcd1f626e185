"""
The FastAPI door: ``uvicorn webapp.asgi_app:app``.

It translates HTTP and nothing else; what is answered is `webapp.contract`'s business.
The contract's paths go straight to it, past FastAPI's router, pydantic and the resolution
of dependencies; whatever else an app is given is FastAPI's.
"""

from __future__ import annotations

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from webapp.asgi import App, ContractApp, Receive, Scope, Send, ask_of, path_of
from webapp.contract import Contract
from webapp.service import served_contract

__all__ = ["app", "create_app"]


def create_app(contract: Contract) -> FastAPI:
    """
    Make a door to a contract.

    Args:
        contract: What is answered.
    """
    # Its pages of documents load their scripts from other people's servers.
    fastapi = FastAPI(title="celery_batch", redirect_slashes=False, docs_url=None, redoc_url=None)
    answer = ContractApp(contract)
    fastapi.add_middleware(_Shortcut, answer=answer, paths=frozenset(contract.routes.paths()))
    # Before FastAPI's own: its /openapi.json would be another document.
    fastapi.router.routes[:0] = [Route(path, answer) for path in contract.routes.paths()]
    fastapi.router.default = answer  # unknown paths are the contract's to refuse, too

    @fastapi.exception_handler(Exception)
    async def failed(request: Request, _error: Exception) -> Response:
        answer = contract.failed(ask_of(request.scope, b""))
        return Response(answer.body, answer.status, answer.headers)

    return fastapi


class _Shortcut:
    """Takes requests for known paths past the router, which would try one route after another."""

    def __init__(self, app: App, answer: ContractApp, paths: frozenset[str]) -> None:
        self._app = app
        self._answer = answer
        self._paths = paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_known = scope["type"] == "http" and path_of(scope) in self._paths
        await (self._answer if is_known else self._app)(scope, receive, send)


app = create_app(served_contract())
