"""A worker for each broker and pool, shared by all tests of Celery's features."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from celery import _state
from kombu import pools

from celery_batch.processes.redis_server import RedisServer
from tests.services.place import Place
from tests.services.rabbitmq import RabbitMQServer
from tests.services.shop import enter_shop, environment_of, surroundings

BROKERS = ("redis", "rabbitmq")
MODULE = "tests.services.features"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """
    Run each test on both brokers, on prefork or on the pools that its marker names.

    What solo and threads do differently has nothing to do with the broker, nor have tests that
    are marked so: over RabbitMQ they are left to the thorough run.
    """
    if "place" not in metafunc.fixturenames:
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
def own_redis(redis_server: RedisServer) -> Iterator[RedisServer]:
    """A Redis that no other test makes empty; where none is installed, a reason to skip."""
    assert redis_server.child.exit_code is None
    with RedisServer() as server:
        yield server


class Places:
    """The places of one broker so far, each made when it is asked for first."""

    def __init__(self, broker: str, url: str, own_redis: RedisServer, folder: Path) -> None:
        self._made: dict[str, Place] = {}
        self._broker, self._url, self._redis, self._folder = broker, url, own_redis, folder

    def find(self, pool: str) -> Place:
        """Return the place with a worker of this pool."""
        if pool not in self._made:
            environment = environment_of(
                self._url, backend=self._redis.url, queue=f"features-{pool}"
            )
            folder = self._folder / pool
            folder.mkdir()
            with surroundings(environment):
                shop = enter_shop(environment, folder, MODULE)
            self._made[pool] = Place(shop, self._broker, pool)
        return self._made[pool]

    def close(self) -> None:
        """Stop the workers, all at once, and the clients."""
        for place in self._made.values():
            place.ask_to_stop()
        for place in self._made.values():
            place.close()
        pools.reset()


@pytest.fixture(scope="session")
def redis_places(
    own_redis: RedisServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Places]:
    """Workers on Redis."""
    places = Places("redis", own_redis.url, own_redis, tmp_path_factory.mktemp("redis"))
    yield places
    places.close()


@pytest.fixture(scope="session")
def rabbitmq_places(
    own_redis: RedisServer,
    rabbitmq_server: RabbitMQServer,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Places]:
    """Workers on RabbitMQ, with their results in Redis."""
    folder = tmp_path_factory.mktemp("rabbitmq")
    places = Places("rabbitmq", rabbitmq_server.url, own_redis, folder)
    yield places
    places.close()


@pytest.fixture
def place(where: tuple[str, str], request: pytest.FixtureRequest) -> Iterator[Place]:
    """An app on this broker with a worker of this pool, whose tasks remember nothing yet."""
    broker, pool = where
    place = request.getfixturevalue(f"{broker}_places").find(pool)
    before = _state._tls.current_app
    with surroundings(place.environment):
        place.app.set_current()
        if place.app.amqp.producer_pool._closed:  # another test's client has closed all of them
            place.app._after_fork()
        with place.memory() as client:
            if facts := client.keys("shop:*"):
                client.delete(*facts)
        assert place.worker.child.exit_code is None
        yield place
        for fact in place.recall("gate"):  # a test that failed may have left somebody there
            place.open_gate(fact["name"])
    _state._set_current_app(before)
