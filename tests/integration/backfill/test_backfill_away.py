"""A broker that is away when a backfill begins."""

from __future__ import annotations

import os
import signal
import time

import redis
from celery import Celery

from celery_batch import BatchTask
from celery_batch.backfill.control import JobControl
from celery_batch.backfill.engine import Backfill
from celery_batch.backfill.window import Limits, Row
from celery_batch.processes.managed_process import wait_until
from celery_batch.processes.redis_server import RedisServer


def test_a_broker_that_is_away_at_first_is_tried_again(tmp_path_factory, caplog):
    """One line says so, no turn takes long, and what was to be sent leaves once it is back."""
    with RedisServer(tmp_path_factory.mktemp("r")) as server:
        app = Celery("away", broker=server.url, backend=server.url, set_as_current=False)

        @app.task(base=BatchTask, max_batch_size=2)
        def double(number):
            return [2 * n for n in number]

        server.stop()
        source = [Row(n, str(n), (n,)) for n in range(4)]
        with Backfill(double, source, Limits(window=4, chunk_size=2)) as backfill:
            for _ in range(3):
                assert [] == backfill.step(timeout=0.01)
            said = [each.message for each in caplog.records if "tried again" in each.message]
            assert [True] == [each.startswith("The broker cannot be reached") for each in said]
            assert 0 == backfill.status()["pending"]
            server.start()
            client = redis.Redis(unix_socket_path=str(server.directory / "redis.sock"))

            def why():
                backfill.step(timeout=0.1)
                return "" if client.llen("celery") == 2 else "nothing is sent"

            wait_until(why, [], what="messages", timeout=60)


def test_a_broker_that_hangs_does_not_keep_a_backfill_from_ending(tmp_path_factory):
    """Ctrl-C ends a backfill soon where the broker takes what is called back, and says nothing."""
    with RedisServer(tmp_path_factory.mktemp("r")) as server:
        app = Celery("hangs", broker=server.url, backend=server.url, set_as_current=False)

        @app.task(base=BatchTask, max_batch_size=2)
        def double(number):
            return [2 * n for n in number]

        limits = Limits(window=2, chunk_size=2)
        backfill = Backfill(double, [Row(n, str(n), (n,)) for n in range(2)], limits)
        backfill.step(timeout=0.0)
        control = JobControl(app, "double")
        control.__enter__()
        client = redis.Redis(unix_socket_path=str(server.directory / "redis.sock"))
        assert 1 == client.llen("celery")
        wait_until(lambda: "" if client.pubsub_numsub() or client.pubsub_numpat() else "unheard",
                   [], what="control", timeout=60)  # fmt: skip
        process = client.info()["process_id"]
        os.kill(process, signal.SIGSTOP)
        began = time.monotonic()
        backfill.__exit__(KeyboardInterrupt)
        control.__exit__(KeyboardInterrupt)
        took = time.monotonic() - began
        os.kill(process, signal.SIGCONT)

    assert took < 20.0  # a little over 2 s
