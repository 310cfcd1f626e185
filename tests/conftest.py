"""Real servers for the tests: brokers of their own, workers as users start them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from celery import _state
from celery.app import builtins  # noqa: F401 (registers Celery's own shared tasks)
from hypothesis import HealthCheck, settings

from celery_batch.cli.redis_server import RedisServer, find_redis_server
from celery_batch.errors import ConfigurationError
from tests.services.rabbitmq import RabbitMQServer, find_rabbitmq_server
from tests.services.shop import ROOT, Shop, Worker, emptied, open_shop

# On a machine that does other things, too, neither drawing an example nor running it is quick.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave what is marked as thorough to ``THOROUGH=1 make test``: it takes minutes more."""
    if "THOROUGH" in os.environ:
        return
    left_out = [item for item in items if item.get_closest_marker("thorough")]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]


@pytest.fixture(autouse=True)
def _own_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Celery shares every task with all apps there will be; not from one test to the next."""
    monkeypatch.setattr(_state, "_on_app_finalizers", set(_state._on_app_finalizers))


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer]:
    """A Redis of our own; where none is installed, a reason to skip, or under CI to fail."""
    need(find_redis_server)
    with RedisServer() as server:
        yield server


@pytest.fixture(scope="session")
def rabbitmq_server() -> Iterator[RabbitMQServer]:
    """A RabbitMQ of our own; where none is installed, a reason to skip, or under CI to fail."""
    need(find_rabbitmq_server)
    with RabbitMQServer() as server:
        yield server


def need(find: Callable[[], str]) -> None:
    """Skip the test where a server's program is not found; under CI fail it."""
    try:
        find()
    except ConfigurationError as error:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(str(error))


@pytest.fixture
def broker(redis_server: RedisServer) -> str:
    """The URL of an empty Redis."""
    return emptied(redis_server)


@pytest.fixture
def shop(broker: str, tmp_path: Path) -> Iterator[Shop]:
    """The tests' app on an empty Redis; its workers end with the test."""
    with open_shop(broker, tmp_path) as shop:
        yield shop


@pytest.fixture
def rabbit_shop(
    rabbitmq_server: RabbitMQServer, redis_server: RedisServer, tmp_path: Path
) -> Iterator[Shop]:
    """The tests' app on RabbitMQ with its results in an empty Redis."""
    with open_shop(rabbitmq_server.url, tmp_path, backend=emptied(redis_server)) as shop:
        yield shop


@pytest.fixture(params=["shop", "rabbit_shop"], ids=["redis", "rabbitmq"])
def each_shop(request: pytest.FixtureRequest) -> Shop:
    """The tests' app on each of the brokers in turn."""
    return request.getfixturevalue(request.param)


@pytest.fixture
def in_python() -> Callable[..., str]:
    """Run a snippet in a fresh interpreter and return what it prints."""

    def run(code: str, **env: str) -> str:
        done = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            check=False,
            cwd=ROOT,
            env={**os.environ, **env},
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    return run


__all__ = ["ROOT", "Shop", "Worker", "need"]
