"""A batch task of a worker that makes no batches: it has Celery's strategy and steps alone."""

from __future__ import annotations

from celery_batch import BatchTask
from tests.apps.small_app import remember, small_app

app = small_app("stock")
_seen: set[str] = set()


@app.task(
    base=BatchTask,
    name="stock.doubled",
    Strategy="celery.worker.strategy:default",
    autoretry_for=(Exception,),
    default_retry_delay=0,
    retry_backoff=False,
    max_retries=3,
)
def doubled(x, word):
    """Double each array; the word "again" has the first try fail."""
    remember("doubled", *word)
    return [_doubled(*each) for each in zip(x, word, strict=True)]


def _doubled(x, word):
    if word.startswith("again") and word not in _seen:
        _seen.add(word)
        return ConnectionError("not yet")
    return 2 * x


app.finalize()
for steps in app.steps.values():
    steps.difference_update([each for each in steps if "celery_batch" in str(each)])
