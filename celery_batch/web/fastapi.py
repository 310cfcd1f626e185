"""FastAPI: a dependency that calls a batch task, and handlers for its errors."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable
from typing import Annotated, Any

from celery import Celery
from fastapi import APIRouter, Header, Request
from pydantic import BaseModel

from celery_batch.web.arrays import as_lists
from celery_batch.web.disconnect import until_disconnect
from celery_batch.web.predict import apredict
from celery_batch.web.starlette import add_exception_handlers, array_response, readiness_route

__all__ = [
    "ERROR_RESPONSES",
    "ErrorBody",
    "Predictor",
    "add_exception_handlers",
    "array_response",
    "predictor",
    "readiness_router",
]


class ErrorDetails(BaseModel):
    """What has gone wrong: one word for programs, a sentence for people, the failed item."""

    type: str
    message: str
    index: int | None = None


class ErrorBody(BaseModel):
    """The body with which errors of batch tasks are answered."""

    error: ErrorDetails


class FrameworkErrorBody(BaseModel):
    """The body with which FastAPI answers a request that it refuses."""

    detail: Any


_DESCRIPTIONS = {
    400: "The body cannot be parsed.",
    413: "The body is too large, or the request has more items than the task's queue may hold.",
    422: "The request is not valid, or the model refuses an input.",
    429: "Too many calls wait in the task's queue.",
    503: "The broker, the result backend or the model is not available.",
    504: "There was no answer in time.",
}

#: The errors of a path operation for its parameter ``responses``, which are then in the OpenAPI
#: document.
ERROR_RESPONSES: dict[int | str, dict[str, Any]] = {
    status: {"description": words, "model": ErrorBody | FrameworkErrorBody}
    for status, words in _DESCRIPTIONS.items()
}


class Predictor:
    """
    Calls a batch task for one request; see `predictor`.

    Args:
        task: The batch task.
        request: The request, whose client may disconnect.
        timeout: Seconds for all items together.
        options: Of `apredict`.
        arrays: Return arrays; else lists of numbers.
    """

    def __init__(
        self,
        task: Any,
        request: Request,
        timeout: float,
        options: dict[str, Any],
        *,
        arrays: bool = False,
    ) -> None:
        self.timeout = timeout
        self._arrays = arrays
        self._task = task
        self._request = request
        self._options = options

    async def __call__(self, items: Iterable[Any], **options: Any) -> list[Any]:
        """
        Call the task once for each item, and return the outputs in order.

        Args:
            items: The only argument of each call.
            options: Of `apredict`, for this call.

        Returns:
            One output for each item; arrays as lists, unless the dependency has ``arrays=True``.

        Raises:
            ClientDisconnected: The client has gone. Calls that still waited are revoked.
            Exception: As `apredict`.
        """
        options = {"timeout": self.timeout, **self._options, **options}
        calls = apredict(self._task, items, **options)
        outputs = await until_disconnect(self._request.receive, calls)
        return outputs if self._arrays else as_lists(outputs)


def predictor(
    task: Any, *, timeout: float = 10.0, arrays: bool = False, **options: Any
) -> Callable[..., Awaitable[Predictor]]:
    """
    Return a dependency that gives a view a `Predictor` for a batch task.

    While the view waits for outputs, it is cancelled if the client disconnects.

    Args:
        task: The batch task.
        timeout: Seconds for all items of a request.  A client may ask for less with the
            header ``X-Timeout``.
        arrays: Give the view arrays as they are, for `array_response` or to compute with; by
            default they are lists of numbers, with None for NaN, which FastAPI makes JSON of.
        options: Of `apredict`, for all requests.
    """

    async def dependency(
        request: Request,
        x_timeout: Annotated[
            float,
            Header(gt=0, allow_inf_nan=False, description="Seconds that the client waits."),
        ] = timeout,
    ) -> Predictor:
        return Predictor(task, request, min(x_timeout, timeout), options, arrays=arrays)

    return dependency


def readiness_router(celery: Celery, tasks: Collection[Any], *, path: str = "/readyz") -> APIRouter:
    """
    Return a router with a readiness probe: 200 if workers serve the tasks, else 503.

    Args:
        celery: The Celery app.
        tasks: The batch tasks that the web app calls.
        path: The probe's path.
    """
    return APIRouter(routes=[readiness_route(celery, tasks, path=path)])
