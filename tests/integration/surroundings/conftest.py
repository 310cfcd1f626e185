"""Workers of small apps of their own, shared by all tests of a module."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from celery_batch.processes.redis_server import RedisServer
from tests.services.launcher import Launcher
from tests.services.servers.rabbitmq import RabbitMQServer


@pytest.fixture(scope="module")
def launcher(
    redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Launcher]:
    """An empty Redis, and workers that end with the module."""
    with Launcher(redis_server, tmp_path_factory.mktemp("stage")) as launcher:
        yield launcher


@pytest.fixture(scope="module")
def rabbit_launcher(
    rabbitmq_server: RabbitMQServer,
    redis_server: RedisServer,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Launcher]:
    """A queue of our own on RabbitMQ, results in Redis, and workers that end with the module."""
    folder = tmp_path_factory.mktemp("stage")
    with Launcher(redis_server, folder, broker=rabbitmq_server.url) as launcher:
        yield launcher
