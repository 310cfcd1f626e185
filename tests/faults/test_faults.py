"""Every fault with one pool process and with two, on every broker it makes sense with."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.conftest import need
from tests.faults.fault import Fault
from tests.faults.faults import FAULTS
from tests.faults.trial import try_fault
from tests.seeds import seed_for
from tests.services.rabbitmq import RabbitMQServer, find_rabbitmq_server

pytestmark = pytest.mark.timeout(90)


@pytest.fixture(scope="module")
def lasting_rabbitmq(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RabbitMQServer]:
    """A RabbitMQ whose folder outlives it, so that it can be restarted."""
    need(find_rabbitmq_server)
    with RabbitMQServer(tmp_path_factory.mktemp("rabbitmq")) as server:
        yield server


#: One pool process, where batches overlap in it, and two.
both_shapes = pytest.mark.parametrize(
    "processes",
    [pytest.param(n, marks=pytest.mark.xdist_group(f"processes-{n}")) for n in (1, 2)],
)


def _on(broker: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(
        "fault",
        [pytest.param(fault, id=fault.name) for fault in FAULTS if broker in fault.brokers],
    )


@pytest.mark.usefixtures("redis_server")
@pytest.mark.xdist_group("faults-redis")
@both_shapes
@_on("redis")
def test_on_redis_nothing_is_lost_or_hangs(fault: Fault, processes: int):
    """Whatever strikes, every accepted item has one right answer and ran as often as it may."""
    verdict = try_fault(fault, seed_for(f"{fault.name} {processes}"), processes=processes)

    assert verdict.ok, [verdict.name, *verdict.notes]


@pytest.mark.xdist_group("faults-rabbitmq")
@both_shapes
@_on("rabbitmq")
def test_on_rabbitmq_nothing_is_lost_or_hangs(
    fault: Fault, processes: int, lasting_rabbitmq: RabbitMQServer
):
    """The same on RabbitMQ, with results in a Redis that no fault touches."""
    seed = seed_for(f"{fault.name} {processes}")
    verdict = try_fault(fault, seed, processes=processes, rabbitmq=lasting_rabbitmq)

    assert verdict.ok, [verdict.name, *verdict.notes]
