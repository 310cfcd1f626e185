"""Brokers behind TLS and passwords: batches as ever for those who may, a clear no for others."""

from __future__ import annotations

import os
import re
import signal
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from celery import group
from kombu.exceptions import OperationalError

from celery_batch.errors import ConfigurationError
from celery_batch.processes.managed_process import wait_until
from celery_batch.processes.redis_server import RedisServer
from tests.services.servers.rabbitmq import RabbitMQServer
from tests.services.servers.tls import Papers, TlsRedis, find_tls_redis
from tests.services.servers.worker_metrics import scrape
from tests.services.setup import Setup, Worker, open_setup

#: Seconds in which a worker stops.
SOON = 30.0

#: Seconds in which a worker that is not let in has to say so, from its start.
SAID = 90.0

#: How often a pool process dies and is replaced.
DEATHS = 5


def need(find: Callable[[], str]) -> None:
    """Skip where a server is missing; under CI fail."""
    try:
        find()
    except ConfigurationError as error:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def tls_redis(papers: Papers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TlsRedis]:
    """A Redis that wants TLS and a password."""
    need(find_tls_redis)
    with TlsRedis(tmp_path_factory.mktemp("redis"), papers) as server:
        yield server


@pytest.fixture
def tls_setup(tls_redis: TlsRedis, tmp_path: Path) -> Iterator[Setup]:
    """The tests' app, let in."""
    with tls_redis.client() as client:
        client.flushall()
        client.config_resetstat()
    with open_setup(tls_redis.url(), tmp_path) as setup:
        yield setup


def await_complaint(worker: Worker, complaint: str) -> None:
    """Wait until a worker has said why it cannot connect; it goes on trying, as any Celery."""
    wait_until(
        lambda: "" if complaint.lower() in worker.log.lower() else f"no word of {complaint!r}",
        [worker.child],
        what="a clear failure",
        timeout=SAID,
    )


def test_redis_with_tls_and_password_is_read_in_bulk(tls_setup: Setup, tls_redis: TlsRedis):
    """Tasks are batched, answered and acknowledged through TLS, by the bulk path."""
    worker = tls_setup.worker("-c", "1")
    answers = group(tls_setup.double.s(n) for n in range(100)).delay().get(timeout=30)
    worker.stop()
    with tls_redis.client() as client:
        scripts = client.info("commandstats").get("cmdstat_evalsha", {"calls": 0})["calls"]
        left = client.hlen("unacked"), client.llen("celery")

    assert [2 * n for n in range(100)] == answers
    assert len(tls_setup.recall("double")) < 50
    assert scripts > 0
    assert (0, 0) == left
    assert tls_redis.password not in worker.log


@contextmanager
def scraped(worker: Worker) -> Iterator[list[int]]:
    """Have a worker's numbers read all the while, on a thread; yield how many there were."""
    found = re.search(r"Metrics for Prometheus on (\S+)", worker.log)
    assert found
    is_over, counts = threading.Event(), [0]

    def read() -> None:
        while not is_over.is_set():
            counts.append(len(scrape(found[1])))

    thread = threading.Thread(target=read)
    thread.start()
    try:
        yield counts
    finally:
        is_over.set()
        thread.join()


def test_processes_are_replaced_beside_threads_that_talk(tls_setup: Setup):
    """A pool process that is forked beside the lease's TLS and busy scrapes answers as any."""
    worker = tls_setup.worker("-Q", "celery,counter", "-c", "1", CELERY_BATCH_METRICS="127.0.0.1:0")
    answered = []
    with scraped(worker) as counts:
        for number in range(DEATHS + 1):
            answer, pid = tls_setup.clerk.delay(number).get(timeout=60)
            answered.append((answer, pid))
            if number < DEATHS:
                os.kill(pid, signal.SIGKILL)

    assert list(range(DEATHS + 1)) == [answer for answer, _ in answered]
    assert DEATHS + 1 == len({pid for _, pid in answered})
    assert len(counts) > DEATHS
    assert "forked while a thread connects" not in worker.log


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        ("authority", "certificate verify failed"),
        ("host", "Hostname mismatch"),
        ("password", "invalid username-password pair"),
        ("scheme", "Cannot connect to redis://"),
    ],
)
def test_redis_that_does_not_let_in_is_a_clear_failure(
    tls_redis: TlsRedis, papers: Papers, tmp_path: Path, wrong: str, complaint: str
):
    """With a wrong authority, host, password or no TLS, worker and client say why and end."""
    url = {
        "authority": tls_redis.url(authority=papers.stranger),
        "host": f"{tls_redis.url()}&ssl_check_hostname=true".replace("@localhost:", "@127.1:"),
        "password": tls_redis.url(password="guess"),  # noqa: S106 (wrong on purpose)
        "scheme": f"redis://:{tls_redis.password}@localhost:{tls_redis.port}/0",
    }[wrong]
    with open_setup(url, tmp_path) as setup:
        worker = setup.launch("-c", "1")
        await_complaint(worker, complaint)
        began = time.monotonic()
        worker.stop(SOON)
        with pytest.raises((OperationalError, OSError)):
            setup.double.apply_async((1,), retry=False, ignore_result=True)

    assert time.monotonic() - began < SOON
    assert "ready." not in worker.log
    assert tls_redis.password not in worker.log


def over_tls(papers: Papers, authority: Path) -> dict:
    """Return Celery's ``broker_use_ssl`` for RabbitMQ."""
    assert papers.cert.exists()
    return {
        "ca_certs": str(authority),
        "cert_reqs": int(ssl.CERT_REQUIRED),
        "server_hostname": "localhost",
    }


def test_rabbitmq_with_tls(
    rabbitmq_server: RabbitMQServer,
    redis_server: RedisServer,
    papers: Papers,
    tmp_path: Path,
):
    """Tasks are batched and answered over AMQP with TLS."""
    url = f"amqps://guest:guest@localhost:{rabbitmq_server.tls_port}//"
    conf = {"broker_use_ssl": over_tls(papers, papers.authority)}
    with (
        open_setup(rabbitmq_server.url, tmp_path, backend=redis_server.url) as setup,
        pytest.MonkeyPatch.context() as patch,  # undone before the setup's own surroundings are
    ):
        patch.setenv("CELERY_BROKER_URL", url)
        setup.app.conf.update(**conf)
        worker = setup.worker("-c", "1", conf=conf, CELERY_BROKER_URL=url)
        answers = group(setup.double.s(n) for n in range(50)).delay().get(timeout=30)

    assert [2 * n for n in range(50)] == answers
    assert f"localhost:{rabbitmq_server.tls_port}" in worker.log


def test_rabbitmq_with_a_wrong_authority_is_a_clear_failure(
    rabbitmq_server: RabbitMQServer,
    redis_server: RedisServer,
    papers: Papers,
    tmp_path: Path,
):
    """A worker that trusts somebody else says that it cannot verify the server."""
    url = f"amqps://guest:guest@localhost:{rabbitmq_server.tls_port}//"
    conf = {"broker_use_ssl": over_tls(papers, papers.stranger)}
    with open_setup(rabbitmq_server.url, tmp_path, backend=redis_server.url) as setup:
        worker = setup.launch("-c", "1", conf=conf, CELERY_BROKER_URL=url)
        await_complaint(worker, "certificate verify failed")
        worker.stop(SOON)

    assert "ready." not in worker.log
