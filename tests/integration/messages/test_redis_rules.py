"""The access rules in the documents are enough for a worker and a caller, and no more."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import redis
from celery import chord, group

from celery_batch.processes.managed_process import ManagedProcess, wait_until
from celery_batch.processes.redis_server import RedisServer
from tests.services.setup import CELERY, ROOT, Setup, emptied, open_setup

RULES = re.search(
    r"```text\n(user default.*?)```",
    (ROOT / "docs/how-to/operations/security.md").read_text(),
    re.DOTALL,
)


def rules() -> dict[str, list[str]]:
    """Return the documented rules of each user."""
    assert RULES is not None
    lines = [line.split()[1:] for line in RULES[1].splitlines()]
    return {name: rest for name, *rest in lines}


@pytest.fixture
def guarded(redis_server: RedisServer) -> Iterator[redis.Redis]:
    """A Redis with the documented users; its administrator's connection."""
    emptied(redis_server)
    with redis.Redis(unix_socket_path=str(redis_server.directory / "redis.sock")) as admin:
        for name in ("caller", "worker"):
            admin.execute_command("ACL", "SETUSER", name, "reset", *rules()[name])
        # Where the tests' models keep what they remember; no business of the message path.
        admin.execute_command("ACL", "SETUSER", "worker", "~shop:*")
        admin.acl_log_reset()
        yield admin
        admin.acl_deluser("caller", "worker")


def url_for(server: RedisServer, name: str) -> str:
    """Return the URL with which a documented user comes."""
    path = str(server.directory / "redis.sock")
    return f"redis+socket://{name}:{name.upper()}_SECRET@{path}?virtual_host=0"


@pytest.fixture
def caller(redis_server: RedisServer, guarded: redis.Redis, tmp_path: Path) -> Iterator[Setup]:
    """The tests' app as a caller; its workers come as the other user."""
    assert guarded.ping()
    with open_setup(url_for(redis_server, "caller"), tmp_path, memory=redis_server.url) as setup:
        url = url_for(redis_server, "worker")
        setup.environment.update(CELERY_BROKER_URL=url, CELERY_RESULT_BACKEND=url)
        yield setup


def refusals(admin: redis.Redis) -> list[tuple]:
    """Return what the rules kept anybody from doing."""
    found = [(entry["username"], entry["object"]) for entry in admin.acl_log()]
    is_old = int(str(admin.info("server")["redis_version"]).partition(".")[0]) < 7
    # Before 7 all of CLIENT was dangerous; a library that may not name itself goes on without.
    return [each for each in found if not (is_old and each == ("worker", "client"))]


def started(setup: Setup) -> ManagedProcess:
    """Start a worker with all that Celery adds; its log says when it is ready."""
    worker = ManagedProcess(
        [CELERY, "-A", "tests.apps.tasks", "worker", "-c", "1", "-E", "-l", "INFO"],
        setup.folder / "worker.log",
        env={**os.environ, **setup.environment},
    )
    wait_until(
        lambda: "" if "ready." in worker.log.read_text() else "not ready",
        [worker],
        what="worker",
        timeout=60,
    )
    return worker


def test_rules_are_enough(caller: Setup, guarded: redis.Redis):
    """Batches, chords, priorities, retries, revokes and a stop: nothing is refused, bulk is on."""
    guarded.config_resetstat()
    worker = started(caller)
    answers = group(caller.double.s(n) for n in range(60)).delay().get(timeout=30)
    urgent = caller.double.apply_async((1,), priority=9).get(timeout=30)
    again = caller.flaky.delay("x").get(timeout=30)
    served = caller.double.is_served()
    large = caller.elsewhere.apply_async((np.ones(50_000),), queue="celery")
    assert 50_000 == large.get(timeout=30).sum()
    large.forget_payload()
    with pytest.raises(ValueError, match="a bad item"):
        caller.odd.delay("bad").get(timeout=30)
    worker.stop(30)
    scripts = guarded.info("commandstats").get("cmdstat_evalsha", {"calls": 0})["calls"]

    assert [2 * n for n in range(60)] == answers
    assert (2, "x") == (urgent, again)
    assert served
    assert scripts > 0
    assert [] == refusals(guarded)
    assert 0 == guarded.hlen("unacked")
    assert 0 == len(list(guarded.scan_iter("celery-batch-payload-*")))


def test_a_worker_may_send_a_chord(redis_server: RedisServer, guarded: redis.Redis, tmp_path: Path):
    """What a worker's user needs to count a chord's parts is in its rules."""
    with open_setup(url_for(redis_server, "worker"), tmp_path, memory=redis_server.url) as setup:
        worker = started(setup)
        body = chord(group(setup.double.s(n) for n in range(10)), setup.total.s())

        assert sum(2 * n for n in range(10)) == body.apply_async().get(timeout=30)
        worker.stop()
    assert [] == refusals(guarded)


@pytest.mark.parametrize(
    "command",
    [
        ("RPOP", "celery"),
        ("LRANGE", "celery", "0", "-1"),
        ("DEL", "celery"),
        ("SET", "celery-task-meta-1", "forged"),
        ("HGETALL", "unacked"),
        ("EVAL", "return redis.call('GET', 'x')", "0"),
        ("LPUSH", "other", "x"),
        ("PUBLISH", "/0.celery.pidbox", "{}"),
        ("FLUSHALL",),
        ("KEYS", "*"),
        ("CONFIG", "GET", "*"),
    ],
    ids=lambda command: " ".join(command[:2]),
)
def test_caller_may_do_no_more(
    redis_server: RedisServer, guarded: redis.Redis, command: tuple[str, ...]
):
    """A caller reads no other's messages, forges no answer and controls no worker."""
    assert guarded.ping()
    socket = str(redis_server.directory / "redis.sock")
    with (
        redis.Redis(unix_socket_path=socket, username="caller", password="CALLER_SECRET") as client,  # noqa: S106
        pytest.raises(redis.exceptions.NoPermissionError),
    ):
        client.execute_command(*command)
