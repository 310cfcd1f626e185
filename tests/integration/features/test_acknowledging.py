"""When a message is done with: late and early, after failures, time-outs and lost processes."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from billiard.exceptions import WorkerLostError

from celery_batch import errors
from celery_batch.processes.managed_process import wait_until
from tests.services.servers.rabbitmq import RabbitMQServer
from tests.services.shared_setup import SharedSetup, eventually

EVERY_POOL = ("prefork", "solo", "threads")
DEAD = "features-dead"


@pytest.fixture
def unacknowledged(shared: SharedSetup, request: pytest.FixtureRequest):
    """Count the messages that this place's worker holds, as the broker sees it."""
    queue = shared.app.conf.task_default_queue

    def on_redis() -> int:
        with shared.memory() as client:
            held = [json.loads(raw) for raw in client.hvals("unacked")]
        return len([1 for _, _, routing_key in held if routing_key == queue])

    def on_rabbitmq() -> int:
        server: RabbitMQServer = request.getfixturevalue("rabbitmq_server")
        columns = ("name", "messages_unacknowledged")
        rows = server.control("list_queues", "--no-table-headers", *columns).splitlines()
        return int(dict(row.split("\t") for row in rows)[queue])

    return on_redis if shared.broker == "redis" else on_rabbitmq


def _wait_for_held(unacknowledged, wanted: int) -> None:
    def why_not() -> str:
        held = unacknowledged()
        return "" if held == wanted else f"{held} messages are held, not {wanted}"

    wait_until(why_not, [], what="the broker's count", timeout=60)


def test_late_messages_are_done_with_when_their_result_is_stored(
    shared: SharedSetup, unacknowledged
):
    """The default: what runs is still the broker's, and goes once it has been answered."""
    gate = shared.unique("gate")
    results = [shared.hold_many.delay(gate, n) for n in range(3)]
    shared.wait_at(gate)
    _wait_for_held(unacknowledged, 3)
    for _ in results:
        shared.open_gate(gate)

    assert [0, 1, 2] == shared.get(results)
    _wait_for_held(unacknowledged, 0)


def test_early_messages_are_done_with_when_their_batch_starts(shared: SharedSetup, unacknowledged):
    """With ``acks_late=False`` nothing is held for what runs already."""
    gate = shared.unique("gate")
    result = shared.hold_early.delay(gate, 0)
    shared.wait_at(gate)
    _wait_for_held(unacknowledged, 0)
    shared.open_gate(gate)

    assert 0 == result.get(timeout=30)


@pytest.fixture
def dead_letters(shared: SharedSetup, request: pytest.FixtureRequest) -> Iterator[None]:
    """On RabbitMQ, keep what is rejected; Redis has no such thing and drops it."""
    if shared.broker == "redis":
        yield
        return
    server: RabbitMQServer = request.getfixturevalue("rabbitmq_server")
    with shared.app.connection_for_write() as connection:
        connection.SimpleQueue(DEAD).close()
    policy = json.dumps({"dead-letter-exchange": "", "dead-letter-routing-key": DEAD})
    queue = f"^{shared.app.conf.task_default_queue}$"
    server.control("set_policy", "--apply-to", "queues", "dead", queue, policy)
    yield
    server.control("clear_policy", "dead")


@pytest.mark.usefixtures("dead_letters")
def test_failed_items_are_rejected_where_the_task_says_so(shared: SharedSetup, unacknowledged):
    """With ``acks_on_failure=False`` a failed item's message is rejected, its neighbours' not."""
    results = [shared.keeps_failed.delay(word) for word in ("left", "fail", "right")]
    answers = shared.get(results)

    assert ["LEFT", "RIGHT"] == [answers[0], answers[2]]
    assert isinstance(answers[1], ValueError)
    _wait_for_held(unacknowledged, 0)
    if shared.broker == "rabbitmq":
        assert [results[1].id] == _drain(shared, DEAD)


def _drain(shared: SharedSetup, queue: str) -> list[str]:
    with shared.app.connection_for_write() as connection:
        box = connection.SimpleQueue(queue)
        ids = [message.headers["id"] for message in [box.get(timeout=60)]]
        while box.qsize():
            ids.append(box.get(timeout=60).headers["id"])
        box.clear()
        box.close()
    return ids


def test_a_timed_out_item_comes_back_where_the_task_says_so(shared: SharedSetup):
    """With ``acks_on_timeout=False`` an item over its hard limit is delivered again."""
    word = shared.unique("word")
    result = shared.again_after_timeout.delay(word)
    again = eventually(lambda: _is_done(shared, result.id), "the second delivery's success")

    assert word == again.result
    assert len(shared.items("again_after_timeout")) >= 2


def _is_done(shared: SharedSetup, task_id: str):
    # As in any Celery task the first delivery's error is stored until the second succeeds.
    result = shared.app.AsyncResult(task_id)
    return result if result.state == "SUCCESS" else None


def test_a_lost_process_costs_the_culprit_alone(shared: SharedSetup):
    """Late: innocents are run again and succeed; who ends its process twice is a ``PoisonItem``."""
    results = [shared.kills.delay(word) for word in ("left", "die", "right")]
    left, culprit, right = shared.get(results)

    assert ["LEFT", "RIGHT"] == [left, right]
    assert isinstance(culprit, errors.PoisonItem)


def test_reject_on_worker_lost_never_runs_in_circles(shared: SharedSetup):
    """What ends its process is tried twice and then fails, also where Celery would go on."""
    results = [shared.kills_rejected.delay(word) for word in ("left", "die")]
    left, culprit = shared.get(results)

    assert "LEFT" == left
    assert isinstance(culprit, errors.PoisonItem)


def test_an_early_message_is_never_run_twice(shared: SharedSetup):
    """With ``acks_late=False`` the items of a lost process fail with Celery's own error."""
    results = [shared.kills_early.delay(word) for word in ("die", "die")]
    answers = shared.get(results)
    after = shared.kills_early.delay("next").get(timeout=30)

    assert [WorkerLostError] * 2 == [type(answer) for answer in answers]
    assert ["die", "die", "next"] == shared.items("kills")
    assert "NEXT" == after
