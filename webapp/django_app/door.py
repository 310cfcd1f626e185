"""The views, synchronous and asynchronous, and the URLs that lead to one of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from django.core.handlers.asgi import ASGIRequest
from django.core.handlers.wsgi import WSGIRequest
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.http.response import HttpResponseBase
from django.urls import URLPattern, path, re_path

from webapp import asgi, wsgi
from webapp.messages import Answer
from webapp.parked import Parked
from webapp.service import served_contract, service_contract

__all__ = ["Later", "aview", "failed", "refused", "urls", "view"]


class Later(HttpResponse):
    """
    What Django takes for an answer; of its head, what middleware has added counts.

    Args:
        parked: What the server is to have in its place, but for those.
    """

    def __init__(self, parked: Parked) -> None:
        super().__init__()
        self._parked = parked

    def told(self, headers: Iterable[tuple[str, str]]) -> Parked:
        """
        Return what the server is to have in its place.

        Args:
            headers: Those that Django would have sent.
        """
        # It ends when that does: so Django's own signal of a request's end comes then.
        return Parked(self._parked.answering, self.close, headers)


def view(request: WSGIRequest, **_parameters: str) -> HttpResponseBase:
    """Answer in this thread, or leave it to the server to have that done."""
    answer = wsgi.answer_to(request.environ, service_contract())
    return Later(answer) if isinstance(answer, Parked) else _response(answer, iter)


async def aview(request: ASGIRequest, **_parameters: str) -> HttpResponseBase:
    """Answer in the event loop; Django cancels it when the client hangs up."""
    limit = service_contract().routes.limit(str(request.method), asgi.path_of(request.scope))
    ask = asgi.ask_of(request.scope, request.read(limit + 1))
    return _response(await service_contract().aanswer(ask), aiter)


def urls(view: Callable[..., Any]) -> list[URLPattern]:
    """
    Return the contract's paths, and whatever else comes, which it refuses.

    Args:
        view: Where they lead.
    """
    paths = served_contract().routes.paths()
    return [
        *(
            path(each[1:].replace("{", "<str:").replace("}", ">"), view, name=each)
            for each in paths
        ),
        re_path("", view),
    ]


def refused(request: HttpRequest, exception: Exception | None = None) -> HttpResponseBase:
    """
    Answer what Django refuses before it asks a view, such as ``OPTIONS *``.

    Args:
        request: Of either kind of server; Django calls this in a thread.
        exception: Why, in Django's words.
    """
    del exception
    return _response(service_contract().answer(wsgi.head_of(request.META)), iter)


def failed(request: HttpRequest) -> HttpResponseBase:
    """
    Answer where this door has failed; Django logs why.

    Args:
        request: Of either kind of server.
    """
    return _response(service_contract().failed(wsgi.head_of(request.META)), iter)


def _response(answer: Answer, chunks: Callable[[Any], Any]) -> HttpResponseBase:
    headers = dict(answer.headers)
    if isinstance(answer.body, bytes):
        return HttpResponse(answer.body, status=answer.status, headers=headers)
    return StreamingHttpResponse(chunks(answer.body), status=answer.status, headers=headers)
