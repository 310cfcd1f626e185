"""A peer that takes images over HTTP: mosec, with its msgpack and Redis mixins."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

import msgpack  # type: ignore[import-untyped]

from bench.servers.peers import peers_python
from bench.servers.testbed import free_port
from celery_batch.processes.managed_process import ManagedProcess, wait_until
from celery_batch.processes.redis_server import RedisServer

__all__ = ["mosec_images"]

_ROOT = Path(__file__).parents[2]

_HEADERS = {"Content-Type": "application/msgpack"}


@contextmanager
def mosec_images(redis: RedisServer, sample: Any) -> Iterator[Callable[[Any], float]]:
    """Run mosec, and yield what asks it for the mean of an image, on one connection."""
    port = free_port()
    command = [peers_python("peers-http"), "-m", "bench.servers.peers_http.mosec_images", str(port)]
    command.append(f"unix://{redis.directory}/redis.sock?db=1")
    env = {**os.environ, "PYTHONPATH": str(_ROOT)}
    connection = HTTPConnection("127.0.0.1", port, timeout=10)

    def mean(image: Any) -> float:
        body = msgpack.packb({"bytes": image.tobytes(), "shape": image.shape})
        connection.request("POST", "/inference", body, _HEADERS)
        return float(msgpack.unpackb(connection.getresponse().read()))

    def why_not_ready() -> str:
        try:
            mean(sample)
        except (OSError, HTTPException, ValueError) as error:
            connection.close()
            return str(error) or type(error).__name__
        return ""

    with (
        tempfile.TemporaryDirectory() as folder,
        ManagedProcess(command, Path(folder) / "mosec.log", env=env) as server,
    ):
        wait_until(why_not_ready, [server], what="mosec", timeout=60.0)
        yield mean
        connection.close()
