"""Workers of small apps of their own, shared by all tests of a module."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from celery_batch.processes.redis_server import RedisServer
from tests.services.rabbitmq import RabbitMQServer
from tests.services.stage import Stage


@pytest.fixture(scope="module")
def stage(redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """An empty Redis, and workers that end with the module."""
    with Stage(redis_server, tmp_path_factory.mktemp("stage")) as stage:
        yield stage


@pytest.fixture(scope="module")
def rabbit_stage(
    rabbitmq_server: RabbitMQServer,
    redis_server: RedisServer,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Stage]:
    """A queue of our own on RabbitMQ, results in Redis, and workers that end with the module."""
    folder = tmp_path_factory.mktemp("stage")
    with Stage(redis_server, folder, broker=rabbitmq_server.url) as stage:
        yield stage
