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
from celery_batch.compat.results import as_stored
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
