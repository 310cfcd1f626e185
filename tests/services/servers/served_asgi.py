"""An ASGI server in this process."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread
from typing import Any

import uvicorn

from celery_batch.processes.managed_process import wait_until

__all__ = ["served_asgi"]


@contextmanager
def served_asgi(app: Any) -> Iterator[str]:
    """
    Serve an ASGI app with uvicorn in a thread; yield ``host:port``.

    The requests that are being answered have ended when it returns.
    """
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_config=None, lifespan="off"))
    thread = Thread(target=asyncio.run, args=(server.serve(),))
    thread.start()
    try:
        wait_until(lambda: "" if server.started else "no", [], what="uvicorn", timeout=60)
        host, port = server.servers[0].sockets[0].getsockname()[:2]
        yield f"{host}:{port}"
    finally:
        server.should_exit = True
        thread.join()
