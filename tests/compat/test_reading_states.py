"""What a process that only wants a state reads of a result."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import redis
from celery import Celery, states
from celery.result import AsyncResult

import celery_batch.task  # noqa: F401 (which has results read with what is stored beside them)
from celery_batch.client.results.result import BatchResult
from celery_batch.compat.backend_hooks import as_stored
from celery_batch.payloads.results import with_stored_result
from celery_batch.processes.redis_server import RedisServer
from celery_batch.protocol import PAYLOADS


def test_a_state_is_read_without_what_is_stored_beside_it():
    """A worker that looks whether a request has ended reads no large value, nor misses one."""
    app = Celery("states", backend="cache+memory://", set_as_current=False)
    meta = {"task_id": "one", "status": "SUCCESS", "result": 1, PAYLOADS: ["0" * 32, [8], 0]}
    app.backend.set(app.backend.get_key_for_task("one"), json.dumps(meta))
    with as_stored():
        seen = app.backend.get_task_meta("one", cache=False)["status"]

    assert states.SUCCESS == seen
    assert states.FAILURE == app.backend.get_task_meta("one", cache=False)["status"]  # it is gone


def test_states_are_read_so_until_the_outer_one_ends():
    """Whatever reads or forgets inside it may want no more, either."""
    app = Celery("states", backend="cache+memory://", set_as_current=False)
    meta = {"task_id": "one", "status": "SUCCESS", "result": 1, PAYLOADS: ["no reference"]}
    app.backend.set(app.backend.get_key_for_task("one"), json.dumps(meta))
    with as_stored():
        with as_stored():
            pass
        seen = app.backend.get_task_meta("one", cache=False)["status"]

    assert states.SUCCESS == seen


@pytest.mark.parametrize("kind", [AsyncResult, BatchResult])
def test_a_parent_is_forgotten_with_its_payload(redis_server: RedisServer, kind: Any):
    """By a result of a batch task, too."""
    app = Celery("states", backend=redis_server.url, set_as_current=False)
    backend: Any = app.backend
    for name in ("first", "then"):
        meta = {"task_id": name, "status": "SUCCESS", "result": np.ones(1 << 15)}
        value = backend.encode(with_stored_result(backend, meta))
        backend.set(backend.get_key_for_task(name), value)
    kind("then", app=app, parent=AsyncResult("first", app=app)).forget()

    with redis.Redis(unix_socket_path=f"{redis_server.directory}/redis.sock") as client:
        for name in ("first", "then"):
            assert not client.exists(backend.get_key_for_task(name))
            assert not list(client.scan_iter(f"celery-batch-payload-{name}-*"))


@pytest.mark.parametrize("serializer", ["json", "batch-msgpack", "pickle"])
@pytest.mark.parametrize("large", [False, True])
def test_of_a_large_result_the_end_is_read(
    redis_server: RedisServer, monkeypatch: Any, serializer: str, large: Any
):
    """It says whether anything is stored beside it, with the most values and large ones left."""
    app = Celery("states", backend=redis_server.url, set_as_current=False)
    app.conf.update(result_serializer=serializer, accept_content=[serializer])
    backend: Any = app.backend
    output = ["x" * (1 << 20), *[np.ones(1 << 15, "u1")] * (1000 if large else 0)]
    meta = {"task_id": "long", "status": "SUCCESS", "result": output}
    key = backend.get_key_for_task("long")
    backend.set(key, backend.encode(with_stored_result(backend, meta)))
    read = []
    monkeypatch.setattr(backend, "get", lambda key: read.append(key) or backend.client.get(key))
    AsyncResult("long", app=app).forget()

    assert read == ([key] if large else [])
    with redis.Redis(unix_socket_path=f"{redis_server.directory}/redis.sock") as client:
        assert not list(client.scan_iter("celery-batch-payload-long-*"))


@pytest.mark.parametrize("setting", [None, "nonsense", False], ids=repr)
def test_a_result_is_forgotten_with_what_is_stored_beside_it(
    redis_server: RedisServer, setting: Any
):
    """By Celery's own result, which is forgotten in any case; other results keep theirs."""
    app = Celery("states", backend=redis_server.url, set_as_current=False)
    backend: Any = app.backend
    for name in ("forgotten", "kept"):
        meta = {"task_id": name, "status": "SUCCESS", "result": np.ones(1 << 15)}
        stored = with_stored_result(backend, meta)
        backend.set(backend.get_key_for_task(name), backend.encode(stored))
    app.conf.batch_payload_store = setting
    with redis.Redis(unix_socket_path=f"{redis_server.directory}/redis.sock") as client:
        AsyncResult("forgotten", app=app).forget()
        ours = ("forgotten", "kept")  # the server may have payloads of other tests
        left = [
            key.decode()
            for name in ours
            for key in client.scan_iter(f"celery-batch-payload-{name}-*")
        ]
        assert not client.exists(backend.get_key_for_task("forgotten"))
        client.delete(*left, backend.get_key_for_task("kept"))

    names = [key.removeprefix("celery-batch-payload-").partition("-")[0] for key in left]
    assert (["kept"] if setting is None else ["forgotten", "kept"]) == sorted(names)
