"""Stopping a worker loses nothing and runs nothing twice."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter

import pytest
from kombu import Exchange, Queue

from celery_batch.processes.managed_process import wait_until
from tests.apps.memory import remember
from tests.conftest import Setup
from tests.services.servers.rabbitmq import RabbitMQServer

_POOLS = [("-c", "1"), ("-c", "2"), ("-P", "threads", "-c", "1")]
#: Each broker and each pool; all of them together in the thorough run.
_USUAL = {("setup", _POOLS[0]), ("setup", _POOLS[2]), ("rabbit_setup", _POOLS[1])}
#: What RabbitMQ allows for an acknowledgement, in milliseconds.
_CONSUMER_TIMEOUT = "{ok, T} = application:get_env(rabbit, consumer_timeout), T."
_OTHER = pytest.mark.thorough("a restart under load with each pool on each broker")


@pytest.mark.parametrize(
    ("name", "options"),
    [
        pytest.param(
            name,
            pool,
            id=f"{broker}-{' '.join(pool)}",
            marks=() if (name, pool) in _USUAL else _OTHER,
        )
        for name, broker in (("setup", "redis"), ("rabbit_setup", "rabbitmq"))
        for pool in _POOLS
    ],
)
def test_restart_under_load_loses_nothing_and_repeats_nothing(
    request: pytest.FixtureRequest, name: str, options: tuple[str, ...]
):
    """SIGTERM under load: running batches finish, the next worker runs exactly the rest."""
    setup: Setup = request.getfixturevalue(name)
    first = setup.worker(*options)
    number = 1000 if options == ("-c", "2") else 500
    results = setup.slow.delay_many(range(number))  # one by one, a busy machine sends as it answers
    results[60].get(timeout=60)  # some are done, some run, some are buffered, most are queued
    exit_code = first.stop(grace=60)
    done_by_first = sum(len(fact["items"]) for fact in setup.recall("slow"))
    setup.worker(*options)
    answers = [result.get(timeout=120) for result in results]
    runs = Counter(n for fact in setup.recall("slow") for n in fact["items"])

    assert 0 == exit_code
    assert 0 < done_by_first < number
    assert list(range(number)) == answers
    assert {1} == set(runs.values())


def test_what_comes_back_from_a_quorum_queue_runs_in_batches(rabbit_setup: Setup):
    """On threads, too: a worker that is told to end gives back what it has prefetched."""
    queue = Queue("returned", queue_arguments={"x-queue-type": "quorum"})
    conf = {"task_create_missing_queue_type": "quorum"}
    options = ("-P", "threads", "-c", "1", "-Q", queue.name)
    first = rabbit_setup.worker(*options, conf=conf)
    results = rabbit_setup.slow.apply_many([((n,), None) for n in range(200)], queue=queue)
    results[10].get(timeout=60)
    first.stop(grace=60)
    before = rabbit_setup.recall("slow")
    rabbit_setup.worker(*options, conf=conf)
    answers = [result.get(timeout=120) for result in results]
    after = rabbit_setup.recall("slow")[len(before) :]

    assert list(range(200)) == answers
    # The first ones may come alone; of those that came back, 24 or so, each would be.
    assert sum(len(batch["items"]) == 1 for batch in after) < 6


@pytest.mark.parametrize(
    "kind", ["quorum", pytest.param("classic", marks=pytest.mark.thorough("a classic queue"))]
)
def test_what_waits_is_returned_while_a_batch_still_runs(rabbit_setup: Setup, kind: str):
    """SIGTERM: other workers need not wait for the longest batch of the one that ends."""
    queue = Queue(f"at-once-{kind}", queue_arguments={"x-queue-type": kind})
    conf = {"task_create_missing_queue_type": kind}
    options = ("-c", "1", "-Q", queue.name)
    worker = rabbit_setup.worker(*options, conf=conf, TESTS_NAP_SECONDS="until woken")
    results = rabbit_setup.nap.apply_many([((n,), None) for n in range(12)], queue=queue)
    wait_until(lambda: "" if rabbit_setup.recall("nap") else "none", [], what="a batch", timeout=60)
    os.kill(worker.pid, signal.SIGTERM)
    with rabbit_setup.app.connection_for_read() as connection:
        channel = connection.default_channel

        def why_not_ready() -> str:
            ready = channel.queue_declare(queue.name, passive=True).message_count
            return "" if ready >= 4 else f"{ready} messages are back"

        wait_until(why_not_ready, [worker.child], what="the queue", timeout=60)

    assert not any(result.ready() for result in results)
    remember("wake")
    assert 0 == worker.stop(grace=60)


def test_what_waits_on_redis_is_back_in_order_while_a_batch_still_runs(setup: Setup):
    """SIGTERM: others run it meanwhile, as what was sent first and has never been delivered."""
    first = setup.worker("-c", "1", TESTS_NAP_SECONDS="until woken")
    results = setup.nap.delay_many(range(12))
    wait_until(lambda: "" if setup.recall("nap") else "none", [], what="a batch", timeout=60)
    results.append(setup.nap.delay(12))

    def why_not_given() -> str:
        formed = first.status()["shop.nap"]["batches"]
        return "" if formed == 2 else f"{formed} batches have left"

    wait_until(why_not_given, [first.child], what="the next batch", timeout=60)
    given, waiting = results[:8], results[8:]  # the second batch is in the pool process, too
    os.kill(first.pid, signal.SIGTERM)
    with setup.memory() as client:

        def why_not_back() -> str:
            queued = client.llen("celery")
            return "" if queued == len(waiting) else f"{queued} messages are back"

        wait_until(why_not_back, [first.child], what="the queue", timeout=60)
        messages = [json.loads(each) for each in reversed(client.lrange("celery", 0, -1))]
    setup.worker("-c", "1", TESTS_NAP_SECONDS="0")

    assert [each.id for each in waiting] == [message["headers"]["id"] for message in messages]
    assert not any("redelivered" in message["headers"] for message in messages)
    assert list(range(8, 13)) == [result.get(timeout=60) for result in waiting]
    assert not any(result.ready() for result in given)
    remember("wake")
    assert 0 == first.stop(grace=60)
    assert list(range(8)) == [result.get(timeout=60) for result in given]
    assert {1} == set(Counter(n for fact in setup.recall("nap") for n in fact["items"]).values())


def test_a_delivery_limit_costs_nothing_where_dead_letters_are_consumed(rabbit_setup: Setup):
    """What RabbitMQ takes out of a quorum queue after too many stops runs from another queue."""
    arguments = {
        "x-queue-type": "quorum",
        "x-delivery-limit": 1,
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": "limited.dead",
    }
    limited = {"exchange": "limited", "routing_key": "limited", "queue_arguments": arguments}
    dead = {"exchange": "limited.dead", "routing_key": "limited.dead"}
    conf = {"task_queues": {"limited": limited, "limited.dead": dead}}
    options = ("-c", "1", "-Q", "limited,limited.dead")
    worker = rabbit_setup.worker(*options, conf=conf)
    queue = Queue("limited", Exchange("limited"), "limited", queue_arguments=arguments)
    results = rabbit_setup.slow.apply_many([((n,), None) for n in range(200)], queue=queue)
    results[10].get(timeout=60)
    for _ in range(3):
        worker.stop(grace=60)
        worker = rabbit_setup.worker(*options, conf=conf)

    assert list(range(200)) == [result.get(timeout=60) for result in results]


@pytest.mark.parametrize(
    ("kind", "pool", "restarts"), [("quorum", (), 2), ("classic", ("-P", "threads"), 1)]
)
def test_what_waited_in_workers_that_ended_soon_shares_batches(
    rabbit_setup: Setup, kind: str, pool: tuple[str, ...], restarts: int
):
    """Restarts may make waiting items suspects, of which only the first ones run alone."""
    queue = Queue(f"restarted-{kind}", queue_arguments={"x-queue-type": kind})
    conf = {"task_create_missing_queue_type": kind}
    options = (*pool, "-c", "1", "-Q", queue.name)
    worker, before = rabbit_setup.worker(*options, conf=conf), 0
    results = rabbit_setup.slow.apply_many([((n,), None) for n in range(300)], queue=queue)
    results[10].get(timeout=60)
    for _ in range(restarts):
        worker.stop(grace=60)
        before = len(rabbit_setup.recall("slow"))
        worker = rabbit_setup.worker(*options, conf=conf)
    answers = [result.get(timeout=120) for result in results]
    sizes = [len(fact["items"]) for fact in rabbit_setup.recall("slow")[before:]]

    assert list(range(300)) == answers
    # What was delivered less often comes between them, in batches of its own.
    assert len(sizes) <= sum(sizes) / 8 + 8, sizes


@pytest.mark.parametrize(
    ("options", "signals"),
    [
        pytest.param(("-c", "1"), (signal.SIGQUIT,), id="one-quit"),
        *(
            pytest.param(
                options,
                signals,
                id=name,
                marks=pytest.mark.thorough("SIGQUIT on the other pools and after SIGTERM"),
            )
            for name, options, signals in (
                ("two-terminated-quit", ("-c", "2"), (signal.SIGTERM, signal.SIGQUIT)),
                ("threads-quit", ("-P", "threads", "-c", "1"), (signal.SIGTERM, signal.SIGQUIT)),
                ("solo-quit", ("-P", "solo"), (signal.SIGQUIT,)),
            )
        ),
    ],
)
def test_quitting_under_load_loses_nothing(
    each_setup: Setup, options: tuple[str, ...], signals: tuple[signal.Signals, ...]
):
    """SIGQUIT, out of the blue or to hurry a warm shutdown: it ends, and the next one goes on."""
    setup = each_setup
    first = setup.worker(*options, conf={"worker_soft_shutdown_timeout": 1.0})
    results = setup.slow.delay_many(range(500))
    results[30].get(timeout=60)
    for number in signals:
        os.kill(first.pid, number)
    ended = first.child.wait(60)
    done_by_first = sum(len(fact["items"]) for fact in setup.recall("slow"))
    setup.worker(*options)

    assert ended, first.log
    assert done_by_first < 500
    assert list(range(500)) == [result.get(timeout=120) for result in results]


def test_buffered_requests_are_back_in_the_queue(setup: Setup):
    """After a stop everything that did not run can be had by another worker at once."""
    worker = setup.worker("-c", "1")
    results = [setup.slow.delay(n) for n in range(100)]
    results[10].get(timeout=60)
    worker.stop(grace=60)
    ran = sum(len(fact["items"]) for fact in setup.recall("slow"))
    client = setup.memory()
    queued, held = client.llen("celery"), client.hlen("unacked")
    client.close()

    assert 0 == held
    assert 100 == ran + queued


def test_worker_survives_a_lost_connection(setup: Setup):
    """When every connection is cut, the worker comes back and answers what is sent next."""
    worker = setup.worker("-c", "1")
    before = [setup.slow.delay(n) for n in range(20)]
    before[0].get(timeout=30)
    client = setup.memory()
    client.client_kill_filter(_type="normal", skipme=True)
    client.close()
    after = [setup.slow.delay(n) for n in range(20, 40)]

    assert list(range(20, 40)) == [result.get(timeout=60) for result in after]
    assert list(range(20)) == [result.get(timeout=60) for result in before]
    assert worker.child.exit_code is None


def test_a_worker_ends_during_an_alarm(rabbit_setup: Setup, rabbitmq_server: RabbitMQServer):
    """RabbitMQ replies nothing to connections that have published; what was sent arrives later."""
    worker = rabbit_setup.worker("-c", "1", TESTS_NAP_SECONDS="1")
    results = rabbit_setup.nap.delay_many(range(12))
    wait_until(lambda: "" if rabbit_setup.recall("nap") else "none", [], what="a batch", timeout=60)
    rabbitmq_server.control("set_vm_memory_high_watermark", "absolute", "1MB")
    try:
        exit_code = worker.stop(grace=30)
    finally:
        rabbitmq_server.control("set_vm_memory_high_watermark", "0.4")
    rabbit_setup.worker("-c", "1", TESTS_NAP_SECONDS="0")

    assert 0 == exit_code
    assert "Traceback" not in worker.log
    assert list(range(12)) == [result.get(timeout=60) for result in results]


@pytest.mark.thorough("a worker that RabbitMQ takes for stuck")
def test_a_consumer_timeout_costs_a_reconnect_where_channel_errors_are_retried(
    rabbit_setup: Setup, rabbitmq_server: RabbitMQServer
):
    """RabbitMQ closes the channel of a long batch: nothing is lost, and nothing runs twice."""
    before = rabbitmq_server.control("eval", _CONSUMER_TIMEOUT)
    rabbitmq_server.control("eval", "application:set_env(rabbit, channel_tick_interval, 1000).")
    rabbitmq_server.control("eval", "application:set_env(rabbit, consumer_timeout, 4000).")
    try:
        conf = {"broker_channel_error_retry": True}
        worker = rabbit_setup.worker("-c", "1", conf=conf, TESTS_NAP_SECONDS="3")
        results = rabbit_setup.nap.delay_many(range(16))
        answers = [result.get(timeout=60) for result in results]
    finally:
        rabbitmq_server.control(
            "eval", f"application:set_env(rabbit, consumer_timeout, {before.strip()})."
        )
    runs = Counter(n for fact in rabbit_setup.recall("nap") for n in fact["items"])

    assert list(range(16)) == answers
    assert {1} == set(runs.values())
    assert "delivery acknowledgement on channel 1 timed out" in worker.log
    assert worker.child.exit_code is None
