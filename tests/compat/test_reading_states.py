"""What a process that only wants a state reads of a result."""

from __future__ import annotations

import json

from celery import Celery, states

import celery_batch.task  # noqa: F401 (which has results read with what is stored beside them)
from celery_batch.compat.results import as_stored
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
