"""An app whose results are kept wherever its settings say."""

from __future__ import annotations

from celery_batch import BatchTask, QueueFull
from tests.apps.small_app import remember, small_app

app = small_app("kept")
BATCH = {"base": BatchTask, "max_batch_size": 8, "max_wait": 0.5, "linger": 0.1}
_seen: set[str] = set()


@app.task(
    name="kept.echo",
    autoretry_for=(ConnectionError,),
    default_retry_delay=0,
    retry_backoff=False,
    **BATCH,
)
def echo(x):
    """Hand back each item; some fail, some only the first time."""
    remember("kept", *x)
    return [_answer(one) for one in x]


def _answer(one):
    match one:
        case "bad":
            return ValueError("a bad item")
        case "full":
            return QueueFull("no room", retry_after=2.5)
        case "flaky" if one not in _seen:
            _seen.add(one)
            return ConnectionError("not yet")
    return one


@app.task(name="kept.doubled", **BATCH)
def doubled(x):
    """Double each array."""
    return [2 * each for each in x]


@app.task(name="kept.doubled_as_lists", outputs="lists", **BATCH)
def doubled_as_lists(x):
    """Double each list of numbers, or each array, all in one array."""
    import numpy as np  # noqa: PLC0415 (only this task needs it)

    return 2 * np.stack([np.asarray(each, "f4") for each in x])


@app.task(name="kept.total", **BATCH)
def total(numbers):
    """Add up what a chord has gathered."""
    return [sum(each) for each in numbers]
