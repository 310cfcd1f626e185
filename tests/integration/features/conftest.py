"""A worker for each broker and pool, shared by all tests of Celery's features."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from celery_batch.processes.redis_server import RedisServer
from tests.services.servers.rabbitmq import RabbitMQServer
from tests.services.shared_setup import SharedSetup, SharedSetups, entered

BROKERS = ("redis", "rabbitmq")
MODULE = "tests.apps.features"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """
    Run each test on both brokers, on prefork or on the pools that its marker names.

    What solo and threads do differently has nothing to do with the broker, nor have tests that
    are marked so: over RabbitMQ they are left to the thorough run.
    """
    if "shared" not in metafunc.fixturenames:
        return
    marker = metafunc.definition.get_closest_marker("pools")
    names = marker.args if marker else ("prefork",)
    is_alike = metafunc.definition.get_closest_marker("alike_on_brokers") is not None
    thorough = pytest.mark.thorough("solo and threads over RabbitMQ")
    if is_alike:
        thorough = pytest.mark.thorough("over RabbitMQ, what has nothing to do with the broker")
    pairs = [
        pytest.param(
            (broker, pool),
            id=f"{broker}-{pool}",
            marks=[thorough] if broker == "rabbitmq" and (is_alike or pool != "prefork") else [],
        )
        for broker in BROKERS
        for pool in names
    ]
    metafunc.parametrize("where", pairs, scope="session")


@pytest.fixture(scope="session")
def lasting_redis(redis_server: RedisServer) -> Iterator[RedisServer]:
    """A Redis that no other test makes empty; where none is installed, a reason to skip."""
    assert redis_server.child.exit_code is None
    with RedisServer() as server:
        yield server


@pytest.fixture(scope="session")
def redis_setups(
    lasting_redis: RedisServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SharedSetups]:
    """Workers on Redis."""
    folder = tmp_path_factory.mktemp("redis")
    with SharedSetups("redis", lasting_redis.url, lasting_redis, folder, MODULE) as setups:
        yield setups


@pytest.fixture(scope="session")
def rabbitmq_setups(
    lasting_redis: RedisServer,
    rabbitmq_server: RabbitMQServer,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[SharedSetups]:
    """Workers on RabbitMQ, with their results in Redis."""
    folder = tmp_path_factory.mktemp("rabbitmq")
    with SharedSetups("rabbitmq", rabbitmq_server.url, lasting_redis, folder, MODULE) as setups:
        yield setups


@pytest.fixture
def shared(where: tuple[str, str], request: pytest.FixtureRequest) -> Iterator[SharedSetup]:
    """An app on this broker with a worker of this pool, whose tasks remember nothing yet."""
    broker, pool = where
    with entered(request.getfixturevalue(f"{broker}_setups").find(pool)) as shared:
        yield shared
        for fact in shared.recall("gate"):  # a test that failed may have left somebody there
            shared.open_gate(fact["name"])
