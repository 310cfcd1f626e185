"""A batch task whose test takes the result backend away just before the model is called."""

from __future__ import annotations

from typing import Any

from celery_batch import BatchTask
from celery_batch.processes.managed_process import wait_until
from tests.apps.memory import recall, remember
from tests.apps.small_app import small_app


def await_fact(kind: str) -> None:
    """Return when the test has said so."""
    wait_until(lambda: "" if recall(kind) else "not yet", [], what=kind, timeout=60)


class Held(BatchTask):
    """Waits in the hook of its last item, when the other item has ended already."""

    def before_start(self, _task_id: str, args: Any, _kwargs: Any) -> None:
        """Go on when the test says that the backend is stopped."""
        if args == ["last"]:
            remember("entered")
            await_fact("stopped")


app = small_app("outage")


@app.task(base=Held, name="outage.held", max_batch_size=2, max_wait=30, linger=30)
def held(x):
    """Answer when the test says that the backend is there again."""
    remember("called")
    await_fact("started")
    return x
