"""Every fault, on every broker it makes sense with, with one pool process or two."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import pytest

from tests.conftest import need
from tests.faults.fault import Fault
from tests.faults.faults import FAULTS
from tests.faults.trial import try_fault
from tests.plugins.seeds import seed_for
from tests.services.servers.rabbitmq import RabbitMQServer, find_rabbitmq_server

pytestmark = pytest.mark.timeout(90)


@pytest.fixture(scope="module")
def lasting_rabbitmq(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RabbitMQServer]:
    """A RabbitMQ whose folder outlives it, so that it can be restarted."""
    need(find_rabbitmq_server)
    with RabbitMQServer(tmp_path_factory.mktemp("rabbitmq")) as server:
        yield server


#: Each fault strikes one broker, and one pool process, where batches overlap, or two: by chance.
_OTHER = pytest.mark.thorough("each fault on the other broker, and with both numbers of processes")


def _on(broker: str) -> pytest.MarkDecorator:
    trials = []
    for fault in (fault for fault in FAULTS if broker in fault.brokers):
        chance = Random(seed_for(fault.name))
        chosen = chance.choice(sorted(fault.brokers)), chance.choice((1, 2))
        for processes in (1, 2):
            # A RabbitMQ takes five seconds of a processor to start: one for all of them.
            group = broker if broker == "rabbitmq" else f"{broker}-{processes}"
            marks = [pytest.mark.xdist_group(group)]
            marks += [] if (broker, processes) == chosen else [_OTHER]
            trials.append(
                pytest.param(fault, processes, id=f"{fault.name}-{processes}", marks=marks)
            )
    return pytest.mark.parametrize(("fault", "processes"), trials)


@pytest.mark.usefixtures("redis_server")
@_on("redis")
def test_on_redis_nothing_is_lost_or_hangs(fault: Fault, processes: int):
    """Whatever strikes, every accepted item has one right answer and ran as often as it may."""
    verdict = try_fault(fault, seed_for(f"{fault.name} {processes}"), processes=processes)

    assert verdict.ok, [verdict.name, *verdict.notes]


@_on("rabbitmq")
def test_on_rabbitmq_nothing_is_lost_or_hangs(
    fault: Fault, processes: int, lasting_rabbitmq: RabbitMQServer
):
    """The same on RabbitMQ, with results in a Redis that no fault touches."""
    seed = seed_for(f"{fault.name} {processes}")
    verdict = try_fault(fault, seed, processes=processes, rabbitmq=lasting_rabbitmq)

    assert verdict.ok, [verdict.name, *verdict.notes]
