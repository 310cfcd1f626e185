"""Acknowledgements to RabbitMQ, many in one, and never one too many."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_batch.worker.amqp.acks import AmqpAcks


class Broker:
    """A channel as RabbitMQ sees it, with the deliveries that are neither acked nor rejected."""

    def __init__(self) -> None:
        self.waiting: list[int] = []
        self.frames = 0
        self.is_gone = False
        self.callback: Any = None
        self.returned: list[tuple[Any, ...]] = []
        capabilities = {"basic.nack": True}
        self.connection = SimpleNamespace(server_properties={"capabilities": capabilities})

    def basic_consume(self, callback: Any, no_ack: bool) -> None:  # noqa: FBT001
        """As py-amqp."""
        assert not no_ack
        self.callback = callback

    def deliver(self, *tags: int) -> None:
        """Deliver messages with these tags."""
        for tag in tags:
            self.waiting.append(tag)
            self.callback(SimpleNamespace(delivery_tag=tag))

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

    def send_method(self, *method: Any) -> None:
        """As py-amqp, for RabbitMQ's own method."""
        self.returned.append(method)
        self.waiting.remove(method[2][0])


def acks_on(broker: Broker, delivered: int) -> Any:
    """Let a consumer receive messages; return its acks, event loop and scheduler."""
    loop: list[Any] = []
    consumer: Any = SimpleNamespace(
        task_consumer=SimpleNamespace(channel=broker),
        hub=SimpleNamespace(call_soon=loop.append),
        connection_errors=(ConnectionError,),
    )
    scheduler: Any = SimpleNamespace(is_open=True)
    acks = AmqpAcks(consumer, scheduler)
    broker.basic_consume(callback=[].append, no_ack=False)
    broker.deliver(*range(1, delivered + 1))
    return acks, loop, scheduler


def run_loop(loop: list[Any]) -> None:
    """Run one pass of the event loop."""
    while loop:
        loop.pop(0)()


def test_a_batch_is_one_acknowledgement():
    """Messages that are done in order are acknowledged in one frame, once in a pass."""
    broker = Broker()
    _, loop, _ = acks_on(broker, 100)
    for tag in range(1, 65):
        broker.basic_ack(tag)

    assert 1 == len(loop)
    assert 100 == len(broker.waiting)
    run_loop(loop)
    assert (1, list(range(65, 101))) == (broker.frames, broker.waiting)


def test_other_deliveries_of_the_channel_leave_gaps():
    """Replies of other workers need no acknowledgement, and ours still go together."""
    broker = Broker()
    _, loop, _ = acks_on(broker, 0)
    broker.deliver(*range(4, 101))  # three replies were delivered before
    for tag in range(4, 68):
        broker.basic_ack(tag)
    run_loop(loop)

    assert (1, list(range(68, 101))) == (broker.frames, broker.waiting)


def test_a_delivery_of_basic_get_is_acknowledged_at_once():
    """Other code may use the channel; its tags are its own."""
    broker = Broker()
    _, loop, _ = acks_on(broker, 2)
    broker.waiting.append(3)
    broker.basic_ack(3)

    assert ([1, 2], []) == (broker.waiting, loop)


def test_without_acknowledgement_a_consumer_is_left_alone():
    """Consumers with no_ack settle nothing, so their callbacks are not wrapped."""
    broker = Broker()
    seen: list[Any] = []
    broker.basic_consume = lambda **options: seen.append(options)  # type: ignore[method-assign]
    acks_on_channel = SimpleNamespace(task_consumer=SimpleNamespace(channel=broker))
    AmqpAcks(acks_on_channel, SimpleNamespace())  # type: ignore[arg-type]
    broker.basic_consume(callback=print, no_ack=True)  # type: ignore[call-arg]

    assert [{"callback": print, "no_ack": True}] == seen


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
def test_no_open_delivery_is_acknowledged(steps: list[tuple[int, str]], pauses: set[int]):
    """In any order of their ends, each message that is done is acknowledged once, and no other."""
    broker = Broker()
    _, loop, _ = acks_on(broker, len(steps) + 1)
    left = set(broker.waiting)
    for n, (tag, way) in enumerate(steps):
        if way == "ack":
            broker.basic_ack(tag)
        elif way == "reject":
            broker.basic_reject(tag, requeue=True)
        left -= {tag} if way != "pass" else set()
        if n in pauses:
            run_loop(loop)
    run_loop(loop)

    assert left == set(broker.waiting)


def test_multiple_acknowledges_all_before():
    """As py-amqp's, for what is open."""
    broker = Broker()
    _, loop, _ = acks_on(broker, 5)
    broker.basic_reject(2, requeue=True)
    broker.basic_ack(4, multiple=True)
    run_loop(loop)

    assert (1, [5]) == (broker.frames, broker.waiting)


def test_a_message_that_waits_costs_no_memory():
    """Behind a message that waits for its ETA any number of others is acknowledged."""
    broker = Broker()
    acks, loop, _ = acks_on(broker, 1)
    for tag in range(2, 1000):
        broker.deliver(tag)
        broker.basic_ack(tag)
        run_loop(loop)

    assert [1] == broker.waiting == list(acks._open)


def test_at_a_shutdown_nothing_waits():
    """When there is no further pass of the event loop, each is sent at once."""
    broker = Broker()
    _, loop, scheduler = acks_on(broker, 3)
    scheduler.is_open = False
    broker.basic_ack(2)

    assert [1, 3] == broker.waiting
    assert [] == loop


def test_a_lost_connection_is_found_lost_elsewhere(caplog: pytest.LogCaptureFixture):
    """An acknowledgement that cannot be sent raises nothing; the message is delivered again."""
    broker = Broker()
    _, loop, _ = acks_on(broker, 3)
    broker.basic_ack(1)
    broker.is_gone = True
    run_loop(loop)

    assert "RabbitMQ delivers again" in caplog.text


class Request:
    """What has not run."""

    def __init__(self, tag: int) -> None:
        self.message = SimpleNamespace(delivery_tag=tag)
        self.is_given_back = False

    def given_back(self) -> None:
        """As ours."""
        self.is_given_back = True


def test_what_did_not_run_is_returned_without_a_failure():
    """A rejection would count against the delivery limit of RabbitMQ 4.3, a nack does not."""
    broker = Broker()
    acks, loop, _ = acks_on(broker, 3)
    requests = [Request(2), Request(3)]
    acks.give_back(requests)
    broker.basic_ack(1)
    run_loop(loop)

    assert [((60, 120), "Lbb", (tag, False, True)) for tag in (2, 3)] == broker.returned
    assert all(request.is_given_back for request in requests)
    assert ([], []) == (broker.waiting, list(acks._open))


def test_a_broker_without_nack_gets_a_rejection():
    """It is an extension of RabbitMQ's, which a server says that it has."""
    broker = Broker()
    broker.connection.server_properties = {}
    acks, *_ = acks_on(broker, 1)
    acks.give_back([Request(1)])

    assert ([], []) == (broker.waiting, broker.returned)


def test_a_lost_connection_ends_an_orderly_stop_as_well():
    """RabbitMQ has returned everything by then."""
    broker = Broker()
    acks, *_ = acks_on(broker, 1)
    acks._consumer.channel_errors = ()

    def fail(*_: Any) -> None:
        raise ConnectionResetError

    acks._consumer.task_consumer.cancel = broker.send_method = fail  # type: ignore[method-assign]
    acks.stop_receiving()
    acks.give_back_last([Request(1)])

    assert [1] == broker.waiting
