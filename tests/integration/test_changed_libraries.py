"""Where a library has changed what a fast path stands on, Celery's own code does the work."""

from __future__ import annotations

from pathlib import Path

import pytest

from celery_batch.processes.redis_server import RedisServer
from tests.services.launcher import Launcher

QOS, BACKEND = "kombu.transport.redis:QoS", "celery.backends.redis:RedisBackend"

#: The broker, what has changed, and what the worker then says of its fast paths.
CASES = {
    "fetching, storing, overlapping": (
        "redis",
        (
            "kombu.transport.redis:Channel._brpop_start",
            f"{BACKEND}._store_result",
            "billiard.pool:Worker._ensure_messages_consumed",
            "celery.worker.request:Request.__init__",
        ),
        (
            "acknowledge, write_ahead on;"
            " fetch off (kombu.transport.redis.Channel._brpop_start has other parameters);"
            " intake off (celery.worker.request.Request.__init__ has other parameters);"
            " overlap off (billiard.pool.Worker._ensure_messages_consumed has other parameters);"
            " trace off (store is off);"
            " store off (celery.backends.redis.RedisBackend._store_result has other parameters);"
            " notify off (store is off)"
        ),
    ),
    "acknowledging, writing ahead": (
        "redis",
        (f"{QOS}.ack", "kombu.asynchronous.semaphore:LaxBoundedSemaphore.release"),
        (
            "intake, overlap, trace, store, notify on;"
            " fetch off (acknowledge is off);"
            " acknowledge off (kombu.transport.redis.QoS.ack has other parameters);"
            " write_ahead off (kombu.asynchronous.semaphore.LaxBoundedSemaphore.release has other"
            " parameters)"
        ),
    ),
    "RabbitMQ": (
        "rabbitmq",
        ("amqp.connection:Connection.drain_events", "redis"),
        (
            "intake, write_ahead, overlap on;"
            " amqp_frames off (amqp.connection.Connection.drain_events has other parameters);"
            " acknowledge off (redis-py 99.0.0 is not tested, which 5.2.1 to below 9 are);"
            " trace off (store is off);"
            " store, notify off (redis-py 99.0.0 is not tested, which 5.2.1 to below 9 are)"
        ),
    ),
    "an untested release": (
        "redis",
        ("celery",),
        (
            "fetch, acknowledge, intake, write_ahead, overlap, trace, store, notify off"
            " (celery 99.0.0 is not tested, which 5.5.3 to below 5.8 are)"
        ),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_celery_does_what_a_fast_path_cannot(
    redis_server: RedisServer, request: pytest.FixtureRequest, tmp_path: Path, case: str
):
    """The worker says which paths are off and why, and its answers are right."""
    broker, changed, line = CASES[case]
    url = request.getfixturevalue("rabbitmq_server").url if broker == "rabbitmq" else ""
    with Launcher(redis_server, tmp_path, broker=url) as launcher:
        worker = launcher.worker(
            "tests.apps.changed_libraries", "-c", "1", CHANGED=" ".join(changed)
        )
        client = launcher.client()
        calls = [client.send_task("changed.double", (n,)) for n in range(40)]
        plain = client.send_task("changed.plain", (7,))
        answers = [call.get(timeout=30) for call in calls]
        log = worker.log.read_text()

        assert [2 * n for n in range(40)] == answers
        assert 7 == plain.get(timeout=30)
    assert [line] == [
        each.partition("Fast paths: ")[2] for each in log.splitlines() if "Fast paths: " in each
    ]
    assert "Traceback" not in log
