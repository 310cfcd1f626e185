"""``celery batch redis``: ready when it says so, gone when asked or orphaned."""

from __future__ import annotations

import os
import signal
import subprocess
import sysconfig
from pathlib import Path

import pytest
import redis

CELERY = Path(sysconfig.get_path("scripts")) / "celery"

#: Skipped without a Redis, failed on CI.
needs_redis = pytest.mark.usefixtures("redis_server")


def read_command(process):
    """Return the folder of the Redis that a ``celery batch redis`` process has announced."""
    url = process.stdout.readline().strip()

    assert url.startswith("redis+socket://")
    return Path(url.removeprefix("redis+socket://").split("/redis.sock")[0])


@needs_redis
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_command_runs_until_signalled(number, watch):
    """``celery batch redis`` prints its URL and how to use it, and ends in peace on a signal."""
    command = [CELERY, "batch", "redis"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes) as process:
        directory = read_command(process)
        connection = watch(directory)
        words = ""
        while (line := process.stderr.readline()) and "Ctrl-C stops it" not in line:
            words += line
        process.send_signal(number)
        process.communicate(timeout=30)
        ending = connection.recv(1)

    assert process.returncode == 0
    assert f"export CELERY_BROKER_URL='redis+socket://{directory}/redis.sock" in words
    assert f"export CELERY_RESULT_BACKEND='redis+socket://{directory}/redis.sock" in words
    assert f"export CELERY_BATCH_REDIS_BROKER='redis+socket://{directory}/redis.sock" in words
    assert ending == b""
    assert not directory.exists()


@needs_redis
def test_command_ends_with_the_process_that_started_it(watch, vanishes):
    """A killed shell takes the ``celery batch redis`` it started along."""
    shell = ["sh", "-c", '"$0" batch redis & wait', CELERY]
    with subprocess.Popen(
        shell, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        directory = read_command(process)
        connection = watch(directory)
        process.kill()
        ending = connection.recv(1)

    assert ending == b""
    assert vanishes(directory)


@needs_redis
def test_command_reports_a_redis_that_died():
    """When Redis itself dies, the command ends with an error and the log's last lines."""
    command = [CELERY, "batch", "redis"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes) as process:
        directory = read_command(process)
        with redis.Redis(unix_socket_path=f"{directory}/redis.sock") as client:
            os.kill(client.info("server")["process_id"], signal.SIGKILL)
        _, words = process.communicate(timeout=30)

    assert process.returncode == 1
    assert "redis was killed by SIGKILL" in words
    assert "ready to accept connections" in words.lower()
    assert not directory.exists()


def test_command_reports_a_missing_redis(tmp_path):
    """``celery batch redis`` with a wrong $REDIS_SERVER says so, without a traceback."""
    environment = {**os.environ, "REDIS_SERVER": str(tmp_path / "none")}
    command = [CELERY, "batch", "redis"]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=60, check=False
    )

    assert done.returncode == 1
    assert "Error: REDIS_SERVER: no such program" in done.stderr
