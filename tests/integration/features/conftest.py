"""A worker for each broker and pool, shared by all tests of Celery's features."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator

import pytest
from celery import _state
from celery.exceptions import DuplicateTaskNameWarning
from kombu import pools

from celery_batch.cli.redis_server import RedisServer
from tests.services.place import Place
from tests.services.rabbitmq import RabbitMQServer
from tests.services.shop import enter_shop, environment_of, surroundings

BROKERS = ("redis", "rabbitmq")
MODULE = "tests.services.features"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run each test on both brokers, on prefork or on the pools that its marker names."""
    if "place" not in metafunc.fixturenames:
        return
    marker = metafunc.definition.get_closest_marker("pools")
    names = marker.args if marker else ("prefork",)
    pairs = [(broker, pool) for broker in BROKERS for pool in names]
    ids = ["-".join(pair) for pair in pairs]
    metafunc.parametrize("where", pairs, ids=ids, scope="session")


@pytest.fixture(scope="session")
def own_redis(redis_server: RedisServer) -> Iterator[RedisServer]:
    """A Redis that no other test makes empty; where none is installed, a reason to skip."""
    assert redis_server.child.exit_code is None
    with RedisServer() as server:
        yield server


@pytest.fixture(scope="session")
def places(
    own_redis: RedisServer, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[tuple[str, str]], Place]]:
    """The places so far, each made when it is asked for first."""
    made: dict[tuple[str, str], Place] = {}

    def find(where: tuple[str, str]) -> Place:
        if where not in made:
            broker, pool = where
            url = own_redis.url
            if broker == "rabbitmq":
                rabbit: RabbitMQServer = request.getfixturevalue("rabbitmq_server")
                url = rabbit.url
            environment = environment_of(url, backend=own_redis.url, queue=f"features-{pool}")
            folder = tmp_path_factory.mktemp("-".join(where))
            with surroundings(environment), warnings.catch_warnings():
                # A shared task is offered to the apps of the other places, too.
                warnings.simplefilter("ignore", DuplicateTaskNameWarning)
                shop = enter_shop(environment, folder, MODULE)
                shop.app.finalize()
            made[where] = Place(shop, broker, pool)
        return made[where]

    yield find
    for place in made.values():
        place.close()
    pools.reset()


@pytest.fixture
def place(where: tuple[str, str], places: Callable[[tuple[str, str]], Place]) -> Iterator[Place]:
    """An app on this broker with a worker of this pool, whose tasks remember nothing yet."""
    place = places(where)
    before = _state._tls.current_app
    with surroundings(place.environment):
        place.app.set_current()
        with place.memory() as client:
            if facts := client.keys("shop:*"):
                client.delete(*facts)
        assert place.worker.child.exit_code is None
        yield place
        for fact in place.recall("gate"):  # a test that failed may have left somebody there
            place.open_gate(fact["name"])
    _state._set_current_app(before)
