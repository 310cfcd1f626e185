"""The pressed service, shared by all tests, or on a Redis that may break."""

from __future__ import annotations

import shutil
import tempfile
from contextlib import ExitStack
from dataclasses import replace

import pytest
from web_pressed_service import Pressed

from celery_batch.cli.redis_server import RedisServer


@pytest.fixture(scope="session")
def pressed(servers):
    """The service on the Redis that stays up."""
    with ExitStack() as running:
        yield Pressed(servers, running, WEBAPP_TIMEOUT="60")


@pytest.fixture(scope="session")
def own_pressed(servers, tmp_path_factory):
    """The service on a Redis that tests may stop and start."""
    folder = tempfile.mkdtemp(prefix="web-")  # pytest's own may be too long for a socket
    with RedisServer(folder, appendonly=True) as server, ExitStack() as running:
        logs = tmp_path_factory.mktemp("logs")
        yield Pressed(replace(servers, redis=server, logs=logs), running)
    shutil.rmtree(folder)


@pytest.fixture(scope="session")
def quick(servers):
    """The service with a model that takes no time, on a queue that no other worker reads."""
    with ExitStack() as running:
        environ = {"WEBAPP_MAX_QUEUE": "1000", "PRESSED_QUEUE": "quick"}
        yield Pressed(servers, running, seconds=0, **environ)
