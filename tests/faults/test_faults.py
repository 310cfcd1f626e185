"""One seed of every fault on every broker it makes sense with; ``make faults`` tries twenty."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.conftest import need
from tests.faults.fault import Fault
from tests.faults.faults import FAULTS
from tests.faults.trial import try_fault
from tests.services.rabbitmq import RabbitMQServer, find_rabbitmq_server

pytestmark = pytest.mark.timeout(90)


@pytest.fixture(scope="module")
def lasting_rabbitmq(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RabbitMQServer]:
    """A RabbitMQ whose folder outlives it, so that it can be restarted."""
    need(find_rabbitmq_server)
    with RabbitMQServer(tmp_path_factory.mktemp("rabbitmq")) as server:
        yield server


#: What these do, other tests do on each broker: `test_bad_items`, `test_shutdown`.
_ELSEWHERE = {"items-raise", "items-kill", "worker-terminated", "worker-quit"}


def _on(broker: str) -> list[object]:
    return [
        pytest.param(
            fault,
            id=fault.name,
            marks=[pytest.mark.thorough] if fault.name in _ELSEWHERE else [],
        )
        for fault in FAULTS
        if broker in fault.brokers
    ]


@pytest.mark.usefixtures("redis_server")
@pytest.mark.parametrize("fault", _on("redis"))
def test_on_redis_nothing_is_lost_or_hangs(fault: Fault):
    """Whatever strikes, every accepted item has one right answer and ran as often as it may."""
    verdict = try_fault(fault, seed=1)

    assert verdict.ok, verdict.notes


@pytest.mark.parametrize("fault", _on("rabbitmq"))
def test_on_rabbitmq_nothing_is_lost_or_hangs(fault: Fault, lasting_rabbitmq: RabbitMQServer):
    """The same on RabbitMQ, with results in a Redis that no fault touches."""
    verdict = try_fault(fault, seed=1, rabbitmq=lasting_rabbitmq)

    assert verdict.ok, verdict.notes
