"""Callers hear how their tasks ended, though the result backend was away for a moment."""

from __future__ import annotations

from pathlib import Path

import pytest

from celery_batch.processes.managed_process import wait_until
from celery_batch.processes.redis_server import RedisServer
from tests.apps.memory import recall, remember
from tests.services.setup import emptied, enter_setup, environment_of, surroundings


def await_fact(kind: str) -> None:
    """Return when the task has said so."""
    wait_until(lambda: "" if recall(kind) else "not yet", [], what=kind, timeout=60)


def test_item_that_failed_before_the_model_is_told_after_an_outage(
    redis_server: RedisServer, tmp_path: Path
):
    """Its failure is stored with the answers of the others, when the backend is there again."""
    broker = emptied(redis_server)
    folder = tmp_path / "backend"
    with RedisServer(folder) as backend:
        environment = environment_of(broker, backend=backend.url, memory=broker)
        with surroundings(environment):
            setup = enter_setup(environment, tmp_path, "tests.apps.outage")
            try:
                setup.worker("-c", "1")
                wrong = setup.app.send_task("outage.held", ("too", "many"))
                last = setup.app.send_task("outage.held", ("last",))
                await_fact("entered")
                backend.stop()
                remember("stopped")
                await_fact("called")
                backend.start()
                remember("started")

                # Celery's own `get` reads before it subscribes again, and may miss what is
                # stored between.
                answer = setup.app.AsyncResult(last.id)
                wait_until(lambda: "" if answer.ready() else "not yet", [], what="end", timeout=60)
                assert "last" == answer.get(timeout=60)
                with pytest.raises(TypeError):
                    setup.app.AsyncResult(wrong.id).get(timeout=60)
                assert 1 == len(recall("called"))
            finally:
                setup.close()
