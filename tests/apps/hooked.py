"""An app with its own task class, whose hooks remember whom they were called for."""

from __future__ import annotations

from typing import Any

from celery import Task, shared_task

from celery_batch import BatchTask
from tests.apps.small_app import remember, small_app


class Hooked(Task):
    """Remembers each hook with the task's id and the arguments it was given."""

    def before_start(self, task_id: str, args: Any, _kwargs: Any) -> None:
        """Come first."""
        remember("hooks", [task_id, "before_start", args[0], self.request.id])

    def on_success(self, retval: Any, task_id: str, _args: Any, _kwargs: Any) -> None:
        """Come when it has worked."""
        remember("hooks", [task_id, "on_success", retval, self.request.id])

    def on_failure(self, exc: Exception, task_id: str, _args: Any, *_: Any) -> None:
        """Come when it has not."""
        remember("hooks", [task_id, "on_failure", str(exc), self.request.id])

    def on_retry(self, exc: Exception, task_id: str, _args: Any, *_: Any) -> None:
        """Come when it will be tried again."""
        remember("hooks", [task_id, "on_retry", str(exc), self.request.id])

    def after_return(self, status: str, _retval: Any, task_id: str, *_: Any) -> None:
        """Come last."""
        remember("hooks", [task_id, "after_return", status, self.request.id])


class HookedBatch(Hooked, BatchTask):
    """The same for batches, with a call of its own."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Remember for whom it is called."""
        remember("called", self.request.id)
        return super().__call__(*args, **kwargs)


app = small_app("hooked", task_cls=Hooked)
_seen: set[tuple[str, Any]] = set()


@shared_task(
    base=HookedBatch,
    name="hooked.batch",
    max_batch_size=8,
    max_wait=1,
    linger=0.3,
    autoretry_for=(ConnectionError,),
    retry_backoff=False,
    default_retry_delay=0,
)
def batch(x):
    """Double each item; some fail, some only the first time."""
    remember("sizes", len(x))
    return [_answer("batch", one) for one in x]


@app.task(name="hooked.plain", autoretry_for=(ConnectionError,), default_retry_delay=0)
def plain(x):
    """Do the same as an ordinary task."""
    answer = _answer("plain", x)
    if isinstance(answer, Exception):
        raise answer
    return answer


def _answer(kind: str, one: Any) -> Any:
    match one:
        case "bad":
            return ValueError("a bad item")
        case "flaky" if (kind, one) not in _seen:
            _seen.add((kind, one))
            return ConnectionError("not yet")
    return one * 2
