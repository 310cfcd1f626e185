"""A worker's main process deletes payloads that are not needed, and renews those that are."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest
from celery import Celery

from celery_batch.payloads.app_payloads import AppPayloads
from celery_batch.payloads.release import PayloadRelease
from tests.services.shared_setup import eventually


class Request:
    """As much of a request as is looked at."""

    def __init__(self, key: str, eta: str | None = None) -> None:
        self.payload_key: str | None = key
        self.request_dict = {"eta": eta}


@pytest.fixture
def app(tmp_path: Path) -> Celery:
    """An app whose payloads are files."""
    app = Celery("release", broker="memory://", set_as_current=False)
    app.conf.batch_payload_store = f"file://{tmp_path}/payloads"
    app.conf.batch_payload_expires = 6.0
    return app


def put(app: Celery, *keys: str, seconds: float = 60) -> None:
    """Store payloads."""
    for key in keys:
        AppPayloads.of(app).store.put(key, b"data", seconds)  # type: ignore[union-attr]


def there(app: Celery, *keys: str) -> list[bool]:
    """Return whether each payload is there."""
    store: Any = AppPayloads.of(app).store
    return [each is not None for each in store.get(keys, [4] * len(keys))]


def test_what_is_released_is_deleted(app: Celery):
    """And nothing else."""
    put(app, "a-1", "b-2")
    first, second = Request("a-1"), Request("b-2")
    release = PayloadRelease.of(app)
    for each in (first, second):
        release.hold(each)
    release.release(first)

    eventually(lambda: not there(app, "a-1")[0], "the end of the first")
    assert [False, True] == there(app, "a-1", "b-2")
    assert first.payload_key is None


def test_what_is_held_is_renewed(app: Celery):
    """A request that waits for longer than its payload would live finds it."""
    put(app, "a-1", "b-2", seconds=5)
    held = [Request("a-1")]
    release = PayloadRelease.of(app)
    release.hold(held[0])
    release.hold(Request("b-2"))  # which is gone at once
    until = time.monotonic() + 7
    eventually(lambda: time.monotonic() > until, "more time than a payload lives")

    # Where this process has stood still, the first is renewed a moment later.
    eventually(lambda: [True, False] == there(app, "a-1", "b-2"), "the first, and no other")


def test_files_that_have_expired_are_swept(app: Celery, tmp_path: Path):
    """Those of callers whose messages never came."""
    put(app, "old-1", "new-2")
    ago = time.time() - 100
    os.utime(tmp_path / "payloads" / "celery-batch-payload-old-1", (ago, ago))
    request = Request("new-2")
    PayloadRelease.of(app).hold(request)
    PayloadRelease.of(app).release(request)

    eventually(lambda: not any((tmp_path / "payloads").iterdir()), "the end of all files")


def test_files_of_results_are_swept(app: Celery, tmp_path: Path):
    """Also where no request has a payload: only the results are large."""
    put(app, "old-1", seconds=-100)
    PayloadRelease.of(app).start()

    eventually(lambda: not any((tmp_path / "payloads").iterdir()), "the end of all files")


def test_the_end_of_a_worker(app: Celery):
    """What was released just before is deleted."""
    put(app, "a-1")
    request = Request("a-1")
    release = PayloadRelease.of(app)
    release.hold(request)
    release.release(request)
    PayloadRelease.of(app).close()

    assert [False] == there(app, "a-1")


def test_a_worker_after_another(app: Celery):
    """In one process, as in tests: it deletes as the first one did."""
    PayloadRelease.of(app).close()
    for key in ("a-1", "b-2"):
        put(app, key)
        request = Request(key)
        PayloadRelease.of(app).hold(request)
        PayloadRelease.of(app).release(request)
        PayloadRelease.of(app).close()

        assert [False] == there(app, key)


def test_the_last_is_not_deleted_sooner(app: Celery):
    """Each payload is kept for as long, also while another waits for its end."""
    put(app, "a-1", "b-2")
    first, second = Request("a-1"), Request("b-2")
    release = PayloadRelease.of(app)
    for each in (first, second):
        release.hold(each)
    release.release(first)
    time.sleep(0.8)
    began = time.monotonic()
    release.release(second)
    eventually(lambda: not there(app, "a-1")[0], "the end of the first")

    assert there(app, "b-2")[0] or time.monotonic() - began >= 1.0  # a busy machine was slow
