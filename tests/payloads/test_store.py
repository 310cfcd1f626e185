"""Every store keeps payloads until they expire or are deleted, and says what it cannot do."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from celery import Celery

from celery_batch.compat.deadline import waiting_until
from celery_batch.errors import ConfigurationError
from celery_batch.payloads import bounded_calls
from celery_batch.payloads.app_payloads import AppPayloads
from celery_batch.payloads.store import (
    DirectoryPayloads,
    PayloadStore,
    StoreAway,
    StoreError,
    StoreRefused,
    open_store,
)
from celery_batch.processes.managed_process import wait_until
from celery_batch.processes.redis_server import RedisServer
from tests.services.eventually import eventually


@pytest.fixture
def client(redis_server: RedisServer) -> Iterator[redis.Redis]:
    """A connection to the Redis that keeps payloads."""
    with redis.Redis(unix_socket_path=f"{redis_server.directory}/redis.sock") as client:
        yield client


@pytest.fixture(params=["redis", "directory", "objects"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[PayloadStore]:
    """Each kind of store."""
    app = Celery("stores", set_as_current=False)
    if request.param == "redis":
        yield open_store(app, request.getfixturevalue("redis_server").url)
    else:
        scheme = "file" if request.param == "directory" else "local"
        yield open_store(app, f"{scheme}://{tmp_path}/payloads")


def test_what_is_stored_comes_back(store: PayloadStore):
    """Many at once, in order, with None for what is not there."""
    store.put("a-1", b"first", 60)
    store.put("b-2", memoryview(b"second"), 60)

    assert [b"second", None, b"first"] == store.get(["b-2", "c-3", "a-1"], [6, 1, 5])
    assert [] == store.get([], [])


def test_what_is_deleted_is_gone(store: PayloadStore):
    """Also if it never was there."""
    store.put("a-1", b"first", 60)
    store.delete(["a-1", "never-2"])

    assert [None] == store.get(["a-1"], [5])
    store.renew({"a-1": 60})


def test_a_task_id_may_be_any_text(store: PayloadStore):
    """It leads to no other place."""
    for key in ("../../up-1", "/etc/passwd-1", "ä ö*?-1", "..-1"):
        store.put(key, key.encode(), 60)
        assert [key.encode()] == store.get([key], [len(key.encode())])
        store.delete([key])


def test_no_more_is_read_than_was_stored(store: PayloadStore):
    """What has grown since is not read whole: one byte more shows it."""
    store.put("a-1", b"x" * 1000, 60)

    assert [b"x" * 11] == store.get(["a-1"], [10])


def test_large_payloads_take_several_round_trips(redis_server: RedisServer, monkeypatch: Any):
    """Of each no more than a limit, unless one alone is larger."""
    monkeypatch.setattr("celery_batch.payloads.store._MOST_BYTES", 10)
    store = open_store(Celery("stores", set_as_current=False), redis_server.url)
    sizes = [3, 8, 2, 50, 1]
    for n, size in enumerate(sizes):
        store.put(f"k-{n}", bytes([n]) * size, 60)

    found = store.get([f"k-{n}" for n in range(5)], sizes)
    assert [bytes([n]) * size for n, size in enumerate(sizes)] == found


def test_redis_expires_them(redis_server: RedisServer, client: redis.Redis):
    """After the time that was given, which can be made longer."""
    store = open_store(Celery("stores", set_as_current=False), redis_server.url)
    began = time.monotonic()
    store.put("a-1", b"first", 300.9)
    left = client.pttl("celery-batch-payload-a-1")
    passed = 1000 * (time.monotonic() - began)
    assert 300_900 - passed - 100 < left <= 300_900

    store.renew({"a-1": 900})
    assert 800_000 < client.pttl("celery-batch-payload-a-1") <= 900_000


def test_files_expire(tmp_path: Path):
    """An expired file is not read, and the sweep deletes it; what is no payload stays."""
    store = DirectoryPayloads(tmp_path / "payloads")
    store.put("old-1", b"old", 60)
    store.put("new-2", b"new", 60)
    (tmp_path / "payloads" / "other").write_text("not ours")
    (tmp_path / "payloads" / ".profile").write_text("not ours either")
    (tmp_path / "payloads" / ".celery-batch-payload-1f").write_text("of a process that died")
    ago = time.time() - 7200
    for name in ("celery-batch-payload-old-1", "other", ".profile", ".celery-batch-payload-1f"):
        os.utime(tmp_path / "payloads" / name, (ago, ago))

    assert [None, b"new"] == store.get(["old-1", "new-2"], [3, 3])
    assert store.sweep() == 2
    assert [".profile", "celery-batch-payload-new-2", "other"] == sorted(
        each.name for each in (tmp_path / "payloads").iterdir()
    )
    assert DirectoryPayloads(tmp_path / "never").sweep() == 0


def test_a_store_that_is_away():
    """Its errors are ours, whatever was tried."""
    app = Celery("stores", set_as_current=False)
    app.conf.result_backend_transport_options = {"retry_policy": {"max_retries": 0}}
    store = open_store(app, "redis://127.0.0.1:1/0")

    for call in (
        lambda: store.put("a", b"x", 1),
        lambda: store.get(["a"], [1]),
        lambda: store.delete(["a"]),
        lambda: store.renew({"a": 1}),
    ):
        with pytest.raises(StoreError):
            call()


def test_many_payloads(store: PayloadStore):
    """All are stored, and the store has a name that says where."""
    assert {} == store.put_many((str(n), b"%d" % n, 60.0) for n in range(3))
    assert [b"0", b"1", b"2"] == store.get(["0", "1", "2"], [1, 1, 1])
    assert store.name.startswith(("redis+socket://", "file://", "local://"))


def test_a_payload_may_have_a_long_key(tmp_path: Path):
    """It is longer than the name of a file may be."""
    store, long = DirectoryPayloads(tmp_path), "x" * 300
    failed = store.put_many([("a", b"1", 60.0), (long, b"2", 60.0), (long + "y", b"3", 60.0)])
    found = store.get(["a", long, long + "y"], [1, 1, 1])
    store.delete([long])

    assert {} == failed
    assert [b"1", b"2", b"3"] == found
    assert [None, b"3"] == store.get([long, long + "y"], [1, 1])


def test_a_directory_that_fails_is_written_to_once(tmp_path: Path, monkeypatch: Any):
    """Each of many payloads might wait as long for it."""
    store, tries = DirectoryPayloads(tmp_path / "new"), []

    def mkdir(*args: Any, **_options: Any) -> None:
        tries.append(args)
        raise OSError("no such device")

    monkeypatch.setattr(Path, "mkdir", mkdir)
    failed = store.put_many((str(n), b"", 60.0) for n in range(3))

    assert ["0", "1", "2"] == list(failed)
    assert len(tries) == 1


def test_a_user_who_may_not(redis_server: RedisServer, client: redis.Redis):
    """A Redis whose ACL forbids it has refused, which is another thing than being away."""
    client.execute_command("ACL", "SETUSER", "reader", "on", ">secret", "~*", "+@read", "+ping")
    try:
        url = redis_server.url.replace("redis://", "redis://reader:secret@")
        if url == redis_server.url:
            url = redis_server.url.replace("redis+socket://", "redis+socket://reader:secret@")
        store = open_store(Celery("stores", set_as_current=False), url)
        with pytest.raises(StoreRefused):
            store.put("a", b"x", 1)
    finally:
        client.execute_command("ACL", "DELUSER", "reader")


def test_a_directory_that_cannot_be_written(tmp_path: Path):
    """A file in its place is an error of the store."""
    (tmp_path / "payloads").write_text("a file")
    store = DirectoryPayloads(tmp_path / "payloads")

    with pytest.raises(StoreError):
        store.put("a", b"x", 1)


@pytest.mark.parametrize(
    ("directory", "umask", "mode"),
    [
        (None, 0o000, 0o600),
        (0o777, 0o000, 0o600),
        (0o2770, 0o002, 0o640),
        (0o2770, 0o077, 0o600),
    ],
)
def test_who_may_read_a_file(tmp_path: Path, directory: Any, umask: int, mode: int):
    """Its owner, and the group of a directory that is setgid, unless the umask forbids that."""
    path, before = tmp_path / "payloads", os.umask(umask)
    try:
        if directory is not None:
            path.mkdir()
            path.chmod(directory)
        DirectoryPayloads(path).put("a", memoryview(b"x"), 60)
    finally:
        os.umask(before)

    (file,) = path.iterdir()
    assert oct(mode) == oct(file.stat().st_mode & 0o7777)
    assert oct(directory or 0o700) == oct(path.stat().st_mode & 0o7777)


def test_a_directory_in_a_setgid_one_is_for_the_group_too(tmp_path: Path):
    """The group may enter it, and delete from it, as in one that an operator has made."""
    tmp_path.chmod(0o2770)
    before = os.umask(0o002)
    try:
        DirectoryPayloads(tmp_path / "payloads").put("a", memoryview(b"x"), 60)
    finally:
        os.umask(before)

    assert oct(0o2770) == oct((tmp_path / "payloads").stat().st_mode & 0o7777)


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("payloads", "file:///var/payloads or s3://bucket/folder, got 'payloads'"),
        ("localhost:6379", "a URL such as redis://localhost:6379/1, file:///var/payloads"),
        ("reds://u:secret@h/1", "got 'reds://u:**@h/1': Protocol not known: reds"),
        ("s3://bucket/x", "s3://bucket/x needs pip install 'celery-batch[objects]'"),
        ("redis:/localhost", "must be the URL of a Redis, such as redis://localhost:6379/1, got"),
        ("redis://localhost:one", "redis://localhost:6379/1: Port could not be cast to integer"),
    ],
)
def test_urls_that_name_no_store(url: str, says: str):
    """The error names the setting and what it may be, and no password."""
    with pytest.raises(ConfigurationError, match="batch_payload_store: ") as raised:
        open_store(Celery("stores", set_as_current=False), url)

    assert says in str(raised.value)
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize(
    ("url", "right"),
    [
        ("file://tmp/payloads", "such as file:///tmp/payloads, got 'file://tmp/payloads'"),
        ("file:payloads", "such as file:///payloads, got"),
        ("file://", "such as file:///var/payloads, got"),
        ("local://tmp/payloads", "such as file:///tmp/payloads, got 'local://tmp/payloads'"),
        ("local:payloads", "such as file:///payloads, got"),
        ("memory://", "belongs to one process"),
        ("memory://payloads", "such as redis://localhost:6379/1 or file:///var/payloads, got"),
    ],
)
def test_urls_of_what_others_do_not_share(url: str, right: str):
    """Another directory would be written to, or none that another process reads."""
    with pytest.raises(ConfigurationError, match="batch_payload_store: ") as raised:
        open_store(Celery("stores", set_as_current=False), url)

    assert right in str(raised.value)


def test_this_host_may_be_named_in_the_url_of_a_directory():
    """It is the only one whose directory a URL can mean."""
    store: Any = open_store(Celery("stores", set_as_current=False), "file://localhost/var/a%20b")

    assert Path("/var/a b") == store.path


def test_what_is_no_payload_keeps_no_other_from_being_read(
    client: redis.Redis, redis_server: RedisServer, tmp_path: Path
):
    """A key of another type, a folder, and a name that no file can have are none."""
    app = Celery("stores", set_as_current=False)
    client.delete("celery-batch-payload-list-1")
    client.rpush("celery-batch-payload-list-1", "x")
    (tmp_path / "celery-batch-payload-list-1").mkdir()
    keys = ["list-1", "b-2", "x" * 250 + "-3"]
    for store in (open_store(app, redis_server.url), open_store(app, f"file://{tmp_path}")):
        store.put("b-2", b"data", 60)

        assert [None, b"data", None] == store.get(keys, [4, 4, 4])
        store.renew(dict.fromkeys(keys, 60.0))
        store.delete(keys)
        assert [None] == store.get(["b-2"], [4])


@pytest.mark.parametrize("scheme", ["file", "local"])
def test_a_payload_that_may_not_be_read(tmp_path: Path, monkeypatch: Any, scheme: str):
    """The others are read, as is said in the log."""
    store = open_store(Celery("stores", set_as_current=False), f"{scheme}://{tmp_path}")
    for key in ("a-1", "b-2"):
        store.put(key, b"data", 60)

    def refuse(real: Any) -> Any:
        def opened(path: Any, *args: Any, **options: Any) -> Any:
            if "a-1" in str(path):
                raise PermissionError(f"not yours: {path}")
            return real(path, *args, **options)

        return opened

    monkeypatch.setattr("io.open", refuse(open))
    monkeypatch.setattr("builtins.open", refuse(open))

    assert [None, b"data"] == store.get(["a-1", "b-2"], [4, 4])


@pytest.mark.parametrize("scheme", ["file", "local"])
def test_a_store_that_blocks_is_given_up(tmp_path: Path, monkeypatch: Any, scheme: str):
    """Callers get an error at their deadline, later ones at once, until the call has returned."""
    monkeypatch.setattr(bounded_calls, "_BLOCKED_AFTER", 0.0)
    store = open_store(Celery("stores", set_as_current=False), f"{scheme}://{tmp_path}")
    pipe = tmp_path / "celery-batch-payload-a-1"
    os.mkfifo(pipe)  # reading it blocks until it is written
    with waiting_until(time.monotonic() + 0.1), pytest.raises(StoreAway, match="not returned in"):
        store.get(["a-1"], [4])
    with pytest.raises(StoreAway, match="an earlier call has not returned"):
        store.put("b-2", b"data", 60)
    pipe.write_bytes(b"")

    def why_not() -> str:
        try:
            store.put("b-2", b"data", 60)
        except StoreAway as error:
            return str(error)
        return ""

    wait_until(why_not, [], what="store", timeout=20.0)
    assert [b"data"] == store.get(["b-2"], [4])


@pytest.mark.parametrize("scheme", ["file", "local"])
def test_many_payloads_may_take_long(tmp_path: Path, monkeypatch: Any, scheme: str):
    """Each has the time that a call may take: a store that answers is not given up."""
    monkeypatch.setattr("celery_batch.payloads.store._CALL_TIMEOUT", 1.0)
    store: Any = open_store(Celery("stores", set_as_current=False), f"{scheme}://{tmp_path}")
    keys = [f"{letter}-1" for letter in "abcdefgh"]
    for key in keys:
        store.put(key, b"data", 60)
    kind, names = (Path, ("open", "unlink"))
    if scheme == "local":
        kind, names = store._fs, ("cat_file", "rm_file")
    for name in names:
        monkeypatch.setattr(kind, name, slowly(getattr(kind, name)))

    # A busy machine may take a second for one call, but not each time.
    assert [b"data"] * 8 == eventually(lambda: store.get(keys, [4] * 8))
    eventually(lambda: store.delete(keys))
    assert not list(tmp_path.iterdir())


def slowly(method: Any) -> Any:
    """Return a method that takes a while."""

    def run(*args: Any, **options: Any) -> Any:
        time.sleep(0.15)
        return method(*args, **options)

    return run


def test_a_file_that_may_not_be_deleted(tmp_path: Path, monkeypatch: Any):
    """It stays, which is said, and all others are deleted and renewed."""
    store: Any = open_store(Celery("stores", set_as_current=False), f"file://{tmp_path}")
    keys = [f"{name}-1" for name in "abc"]
    for key in keys:
        store.put(key, b"data", -10)
    real = Path.unlink

    def unlink(path: Path, **options: Any) -> None:
        if "a-1" in path.name:
            raise PermissionError("not yours")
        real(path, **options)

    monkeypatch.setattr(Path, "unlink", unlink)

    for work in (store.sweep, lambda: store.delete(keys)):
        for key in keys:
            store.put(key, b"data", -10)
        with pytest.raises(StoreError, match="not yours"):
            work()
        assert ["celery-batch-payload-a-1"] == [each.name for each in tmp_path.iterdir()]


@pytest.mark.parametrize(
    ("broker", "has_store"),
    [
        ("redis://one:6379/1", True),
        ("redis://one:6379/1;redis://two:6379/1", False),
        (["redis://one:6379/1", "redis://two:6379/1"], False),
        ("sentinel://one:26379/1;sentinel://two:26379/1", False),
        ("amqp://", False),
    ],
)
def test_the_broker_keeps_payloads_if_it_is_one_redis(broker: Any, has_store: Any):
    """Another may have the message after a failover; a URL of sentinels does not name theirs."""
    app = Celery("stores", broker=broker, backend="rpc://", set_as_current=False)

    assert has_store == (AppPayloads.of(app).store is not None)
