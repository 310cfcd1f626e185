"""A worker for each broker, shared by the tests of one file, and its remote control."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from celery import _state
from kombu import pools

from celery_batch.processes.redis_server import RedisServer
from tests.services.remote_control import RemoteControl
from tests.services.setup import Worker, enter_setup, environment_of, surroundings

MODULE = "tests.apps.controlled"


@pytest.fixture(scope="module", params=["redis", "rabbitmq"])
def control(
    request: pytest.FixtureRequest, redis_server: RedisServer, tmp_path_factory: Any
) -> Iterator[RemoteControl]:
    """The app on each of the brokers in turn; its workers end with the file's tests."""
    assert redis_server.child.exit_code is None  # Redis is installed
    folder = tmp_path_factory.mktemp("control")
    with RedisServer() as own, pytest.MonkeyPatch.context() as patch:
        patch.setattr(_state, "_on_app_finalizers", set(_state._on_app_finalizers))
        broker = own.url
        if request.param == "rabbitmq":
            broker = request.getfixturevalue("rabbitmq_server").url
        environment = environment_of(broker, backend=own.url)
        with surroundings(environment):
            setup = enter_setup(environment, folder, MODULE)
            try:
                yield RemoteControl(setup, folder / "weights")
            finally:
                setup.close()
    pools.reset()


@pytest.fixture(scope="module")
def worker(control: RemoteControl) -> Worker:
    """A worker of all queues, shared by the tests of one file."""
    return control.worker()
