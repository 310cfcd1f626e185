"""
The web server of a served handle: ``POST /predict``, an ASGI app under uvicorn.

It sends one task for each request and awaits its end; nothing is polled, and no
request keeps another waiting.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any
from uuid import uuid4

import uvicorn
from kombu.exceptions import OperationalError
from redis.exceptions import RedisError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from celery_batch.serve.app import config_of_process, make_app, make_task
from celery_batch.serve.config import ServeConfig
from celery_batch.serve.envelope import sealed
from celery_batch.serve.posted import posted_object
from celery_batch.serve.readiness import why_not_ready
from celery_batch.serve.refusals import Refusal, refusal_of

__all__ = ["main", "make_web"]

logger = logging.getLogger(__name__)

#: Seconds in which a broker has to take a connection.
_CONNECT = 2.0

#: Seconds for requests that are being answered when the server is stopped.
_GRACE = 5


def make_web(config: ServeConfig) -> Starlette:
    """
    Make the ASGI app.

    Args:
        config: With a broker.
    """
    app = make_app(config)
    app.conf.redis_socket_connect_timeout = _CONNECT
    task = make_task(app, config)

    async def predict(request: Request) -> Response:
        posted = await posted_object(request)
        return await _answer(task, posted, config.time_limit)

    async def readyz(_request: Request) -> Response:
        reason = await why_not_ready(task)
        if reason:
            raise Refusal(503, reason)
        return JSONResponse({"status": "ready"})

    async def healthz(_request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    return Starlette(
        routes=[
            Route("/predict", predict, methods=["POST"]),
            Route("/healthz", healthz),
            Route("/readyz", readyz),
        ],
        exception_handlers={Refusal: _refuse, HTTPException: _refuse_unknown},
    )


async def _answer(task: Any, posted: dict[str, Any] | bytes, limit: float) -> Response:
    """
    Serve one posted object, or a body that nobody has parsed.

    Raises:
        Refusal: There is no answer, or it is no JSON.
    """
    task_id = str(uuid4())
    args = (sealed(task_id, posted),)
    try:
        async with asyncio.timeout(limit) as time:
            result = await _sent(task.aapply_async(args, task_id=task_id))
            answer = await result
    except Refusal:
        raise
    except Exception as error:
        if time.expired():
            raise Refusal(504, f"no answer within {limit:g} s", task_id) from error
        raise refusal_of(error, task_id) from error
    try:
        return JSONResponse(answer)
    except (TypeError, ValueError) as error:
        logger.exception("task %s: what the handle returned is no JSON", task_id)
        raise Refusal(500, f"what the handle returned is no JSON: {error}", task_id) from error


async def _sent(sending: Awaitable[Any]) -> Any:
    try:
        return await sending
    except (OperationalError, RedisError, OSError) as error:
        logger.warning("the broker cannot be reached: %s: %s", type(error).__name__, error)
        raise Refusal(503, "the broker cannot be reached") from error


async def _refuse(_request: Request, refusal: Exception) -> Response:
    assert isinstance(refusal, Refusal)  # noqa: S101 (what the table of handlers says)
    return refusal.response()


async def _refuse_unknown(_request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # noqa: S101 (likewise)
    return JSONResponse({"error": error.detail}, error.status_code, error.headers)


def main(serve: Callable[..., None] = uvicorn.run) -> None:
    """
    Serve what this process is configured for, until it is stopped.

    Args:
        serve: Runs an ASGI app.
    """
    config = config_of_process()
    serve(
        make_web(config),
        host=config.host,
        port=config.port,
        access_log=False,
        timeout_graceful_shutdown=_GRACE,
    )


if __name__ == "__main__":
    main()
