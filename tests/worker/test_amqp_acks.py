"""Acknowledgements to RabbitMQ, many in one, and never one too many."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_batch.worker.amqp.acks import AmqpAcks


class Broker:
    """A channel as RabbitMQ sees it: what it has delivered and not heard of."""

    def __init__(self, delivered: int) -> None:
        self.waiting = list(range(1, delivered + 1))
        self.frames = 0
        self.is_gone = False
        self.callbacks: dict[str, Any] = {}

    def basic_ack(self, delivery_tag: int, multiple: bool = False) -> None:  # noqa: FBT001, FBT002
        """As RabbitMQ, which closes the channel on an unknown tag."""
        if self.is_gone:
            raise ConnectionResetError
        assert delivery_tag in self.waiting
        self.frames += 1
        self.waiting = [
            tag
            for tag in self.waiting
            if tag != delivery_tag and not (multiple and tag < delivery_tag)
        ]

    def basic_reject(self, delivery_tag: int, requeue: bool) -> None:  # noqa: ARG002, FBT001
        """The same."""
        assert delivery_tag in self.waiting
        self.waiting.remove(delivery_tag)


def acks_on(broker: Broker) -> Any:
    """Return what acknowledges, and the passes of its event loop."""
    passes: list[Any] = []
    consumer: Any = SimpleNamespace(
        task_consumer=SimpleNamespace(channel=broker, _receive_callback=[].append),
        hub=SimpleNamespace(call_soon=passes.append),
        connection_errors=(ConnectionError,),
    )
    consumer.scheduler = SimpleNamespace(is_open=True)
    return AmqpAcks(consumer, consumer.scheduler), passes, consumer


def come_by(passes: list[Any]) -> None:
    """Let the event loop come by."""
    while passes:
        passes.pop(0)()


def test_a_batch_is_one_acknowledgement():
    """What has been settled in order is said in one word, once in a pass."""
    broker = Broker(100)
    _, passes, _ = acks_on(broker)
    for tag in range(1, 65):
        broker.basic_ack(tag)

    assert 1 == len(passes)
    assert 100 == len(broker.waiting)
    come_by(passes)
    assert (1, list(range(65, 101))) == (broker.frames, broker.waiting)


def test_what_others_answered_before_is_nobodys_to_settle():
    """Where neighbours have answered on the channel, ours begin later, and still go together."""
    broker = Broker(100)
    broker.waiting = list(range(4, 101))  # three answers were delivered, and need no word
    _, passes, consumer = acks_on(broker)
    broker.callbacks["1"] = consumer.task_consumer._receive_callback
    for tag in range(4, 68):
        broker.callbacks["1"](SimpleNamespace(delivery_tag=tag))
        broker.basic_ack(tag)
    come_by(passes)

    assert (1, list(range(68, 101))) == (broker.frames, broker.waiting)


@given(
    st.integers(1, 30).flatmap(
        lambda count: st.permutations([*range(1, count + 1)]).flatmap(
            lambda tags: st.lists(
                st.sampled_from(["ack", "reject", "pass"]), min_size=count, max_size=count
            ).map(lambda ways: list(zip(tags, ways, strict=True)))
        )
    ),
    st.sets(st.integers(0, 29)),
)
def test_nobody_else_is_acknowledged(steps: list[tuple[int, str]], pauses: set[int]):
    """In whatever order they end, RabbitMQ hears of those that have ended, and of each once."""
    broker = Broker(len(steps) + 1)
    _, passes, _ = acks_on(broker)
    left = set(broker.waiting)
    for n, (tag, way) in enumerate(steps):
        if way == "ack":
            broker.basic_ack(tag)
        elif way == "reject":
            broker.basic_reject(tag, requeue=True)
        left -= {tag} if way != "pass" else set()
        if n in pauses:
            come_by(passes)
    come_by(passes)

    assert left == set(broker.waiting)


def test_at_a_shutdown_nothing_waits():
    """When no event loop will come by, each is sent at once."""
    broker = Broker(3)
    _, passes, consumer = acks_on(broker)
    consumer.scheduler.is_open = False
    broker.basic_ack(2)

    assert [1, 3] == broker.waiting
    assert [] == passes


def test_a_lost_connection_is_found_lost_elsewhere(caplog: pytest.LogCaptureFixture):
    """An acknowledgement that cannot be sent ends nothing; the message will come again."""
    broker = Broker(3)
    _, passes, _ = acks_on(broker)
    broker.basic_ack(1)
    broker.is_gone = True
    come_by(passes)

    assert "RabbitMQ delivers again" in caplog.text
