"""Celery's signed messages with batch tasks: what nobody trusted has signed is not run."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import redis
import trustme

from celery_batch.processes.managed_process import ManagedProcess, wait_until
from celery_batch.processes.redis_server import RedisServer
from tests.services.hostile import encoded, valid
from tests.services.setup import CELERY, ROOT, emptied


def identity(folder: Path, name: str) -> dict[str, str]:
    """Make a key and a certificate; return the environment of a program that signs with them."""
    signed = trustme.CA().issue_cert(f"{name}.example", key_type=trustme.KeyType.RSA)
    signed.private_key_pem.write_to_path(folder / f"{name}.key")
    signed.cert_chain_pems[0].write_to_path(folder / f"{name}.pem")
    return {
        "SIGNED_KEY": str(folder / f"{name}.key"),
        "SIGNED_CERTIFICATE": str(folder / f"{name}.pem"),
        "SIGNED_STORE": str(folder / "trusted" / "*.pem"),
    }


@pytest.fixture
def environment(redis_server: RedisServer, tmp_path: Path) -> dict[str, str]:
    """What client and worker have in common."""
    (tmp_path / "trusted").mkdir()
    url = emptied(redis_server)
    return {
        **os.environ,
        "CELERY_BROKER_URL": url,
        "CELERY_RESULT_BACKEND": url,
        "PYTHONPATH": str(ROOT),
        "PYTHONUNBUFFERED": "1",
    }


@pytest.fixture
def send(environment: dict[str, str], tmp_path: Path) -> Callable[[str, int], list[str]]:
    """Send tasks signed by somebody, from a process of its own; return their ids."""

    def send(name: str, count: int) -> list[str]:
        command = [sys.executable, "-m", "tests.apps.signed_tasks", str(count)]
        env = {**environment, **identity(tmp_path, name)}
        done = subprocess.run(
            command, env=env, cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
        )
        return json.loads(done.stdout)

    return send


def tampered(raw: bytes) -> bytes:
    """Return a signed message with another number in it, under the old signature."""
    message = json.loads(raw)
    signed = base64.b64decode(message["body"])
    packed = base64.b64decode(signed)
    assert packed.count(b"[[1], {}") == 1
    message["body"] = base64.b64encode(base64.b64encode(packed.replace(b"[[1]", b"[[7]"))).decode()
    return json.dumps(message).encode()


def test_only_signed_messages_run(redis_server, environment, send, tmp_path: Path):
    """Signed tasks are batched; changed, unsigned and foreign ones are refused, each alone."""
    good = send("client", 4)
    (tmp_path / "client.pem").rename(tmp_path / "trusted" / "client.pem")
    foreign = send("stranger", 2)
    forged = valid("signed.double")
    client = redis.Redis(unix_socket_path=str(redis_server.directory / "redis.sock"))
    messages = client.lrange("celery", 0, -1)
    (changed,) = [raw for raw in messages if json.loads(raw)["headers"]["id"] == good[1]]
    client.lrem("celery", 1, changed)
    client.lpush("celery", tampered(changed), encoded(forged))
    command = [CELERY, "-A", "tests.apps.signed_tasks", "worker", "-c", "1"]
    env = {**environment, **identity(tmp_path, "worker")}
    log = tmp_path / "worker.log"
    ids = [*good, *foreign, forged["headers"]["id"]]

    def stored(task_id: str) -> dict:
        return json.loads(client.get(f"celery-task-meta-{task_id}") or "{}")

    def waiting() -> str:
        return ", ".join(each for each in ids if not stored(each))

    with ManagedProcess(
        [*command, "-l", "INFO", "--without-mingle", "--without-gossip"], log, env=env
    ) as w:
        wait_until(waiting, [w], what="results", timeout=60)
    left = client.llen("celery"), client.hlen("unacked")
    answers = [stored(each) for each in ids]
    client.close()
    states = ["SUCCESS", "FAILURE", "SUCCESS", "SUCCESS", "FAILURE", "FAILURE", "FAILURE"]

    assert states == [answer["status"] for answer in answers]
    assert [0, 4, 6] == [answers[n]["result"] for n in (0, 2, 3)]
    assert {"MessageRefused"} == {
        answer["result"]["exc_type"] for answer in answers if answer["status"] == "FAILURE"
    }
    assert 4 == log.read_text().count("Refused a message")
    assert (0, 0) == left
