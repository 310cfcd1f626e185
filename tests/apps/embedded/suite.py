"""A user's tests on the fixtures of `celery.contrib.pytest`, run by test_embedded_worker.py."""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
import time

import pytest
from celery import chain, chord, group, shared_task, signals
from celery.contrib.testing.worker import start_worker
from celery.exceptions import Retry

from celery_batch import BatchTask, Model
from tests.apps.canvases.digests import Broken, digest
from tests.apps.canvases.shapes import Broke, Evaluation, drawn, labelled, sign

pytest_plugins = ("celery.contrib.pytest",)

SOON = 40.0

heard: list = []
tries: list = []


@shared_task(base=BatchTask, name="their.add", max_batch_size=16)
def add(x, y=1):
    """Add two numbers."""
    return [a + b for a, b in zip(x, y, strict=True)]


@shared_task(base=BatchTask, name="their.total")
def total(numbers):
    """Add many numbers."""
    return [sum(each) for each in numbers]


@shared_task(base=BatchTask, name="their.odd")
def odd(x):
    """Fail for even numbers."""
    return [n if n % 2 else ValueError(f"even: {n}") for n in x]


@shared_task(base=BatchTask, name="their.flaky", autoretry_for=(OSError,), default_retry_delay=0)
def flaky(x):
    """Fail twice."""
    tries.extend(x)
    return [OSError("not yet") if tries.count(n) < 3 else n for n in x]


@shared_task(base=BatchTask, name="their.again")
def again(x):
    """Ask for one more try."""
    tries.extend(x)
    return [Retry("later", when=0) if tries.count(n) < 2 else n for n in x]


@shared_task(base=BatchTask, name="their.silent", ignore_result=True)
def silent(x):
    """Note what comes."""
    heard.extend(x)
    return x


@shared_task(name="their.note")
def note(*args):
    """Note a result or an error."""
    heard.append(args)


@shared_task(base=BatchTask, name="canvas.batch")
def canvas_batch(x=None, *, tag):
    """Digest a batch of values."""
    return [digest(one, mark) for one, mark in zip(x, tag, strict=True)]


@shared_task(base=BatchTask, name="canvas.batch_broken")
def canvas_broken(x=None, *, tag):  # noqa: ARG001 (what came before is sent to every task)
    """Fail each item by itself."""
    return [Broken(mark) for mark in tag]


@shared_task(name="canvas.plain")
def canvas_plain(x=None, *, tag):
    """Digest one value."""
    return digest(x, tag)


@shared_task(name="canvas.plain_broken")
def canvas_plain_broken(x=None, *, tag):  # noqa: ARG001 (as above)
    """Fail."""
    raise Broken(tag)


@shared_task(name="canvas.noted")
def canvas_noted(x, *, tag):
    """Take a result that was linked here."""


@shared_task(name="canvas.mourned")
def canvas_mourned(*_, tag):
    """Take an error that was linked here."""


class Half(Model):
    """A model that loads."""

    def load(self, device):
        """Load nothing."""

    def predict(self, batch):
        """Divide by two."""
        return [each / 2 for each in batch]


class Missing(Half):
    """A model whose weights are missing."""

    def load(self, device):  # noqa: ARG002 (it is never used)
        """Fail."""
        raise OSError("no weights")


@pytest.fixture(scope="session")
def celery_config():
    """Use the broker that the command names."""
    url = os.environ["THEIR_BROKER"]
    if url:
        return {"broker_url": url, "result_backend": url}
    return {"broker_transport_options": {"polling_interval": 0.01}}


@pytest.fixture(scope="session")
def celery_worker_pool():
    """Use the pool that the command names."""
    return os.environ["THEIR_POOL"]


@pytest.fixture(scope="session")
def celery_worker_parameters():
    """Give a busy machine longer than Celery does, ten seconds, to start and end a worker."""
    return {"ping_task_timeout": 2 * SOON, "shutdown_timeout": 2 * SOON}


@pytest.fixture(scope="session")
def celery_includes():
    """Serve the task that answers the check for the worker's start."""
    return ["celery.contrib.testing.tasks"]


def until(condition, found=lambda: ""):
    """Return when a condition holds; else say what was found."""
    end = time.monotonic() + SOON
    while not condition():
        assert time.monotonic() < end, found()
        time.sleep(0.01)


def process_state():
    """Return what a worker might change in its process, but for its threads."""
    handlers = [signal.getsignal(number) for number in sorted(signal.valid_signals())]
    # Some are Celery's and billiard's own.
    theirs = ("CELERY_", "_MP_", "PYTEST_")
    environ = {name: value for name, value in os.environ.items() if not name.startswith(theirs)}
    return environ, gc.get_threshold(), sys.getswitchinterval(), handlers


def ours():
    """Return the names of celery_batch's threads."""
    return [t.name for t in threading.enumerate() if t.name.startswith(("celery-batch", "batch-"))]


@pytest.fixture
def leaves_nothing():
    """Fail where a test, whose app and worker have ended by then, has changed the process."""
    before = process_state()
    yield
    until(lambda: not ours(), ours)
    for old, new in zip(before, process_state(), strict=True):
        assert old == new


@pytest.mark.parametrize("turn", [1, 2])
@pytest.mark.usefixtures("leaves_nothing")
def test_a_worker_for_each_test(celery_app, celery_worker, turn):
    """A worker of each test, one after another in one process, with a model."""
    half = Half.as_task(celery_app, name=f"their.half{turn}")
    celery_worker.reload()
    assert [n + turn for n in range(20)] == [
        each.get(timeout=SOON) for each in [add.delay(n, y=turn) for n in range(20)]
    ]
    assert turn / 2 == half.delay(turn).get(timeout=SOON)


def test_a_worker_that_cannot_start(celery_app):
    """The test goes on, and the log says why there is no worker."""
    Missing.as_task(celery_app, name="their.missing")
    with start_worker(celery_app, pool=os.environ["THEIR_POOL"], perform_ping_check=False):
        pass


def test_a_worker_that_ends_soon(celery_app):
    """A worker without work sees within seconds that it is to end."""
    with start_worker(celery_app, pool=os.environ["THEIR_POOL"]):
        assert 2 == celery_app.tasks["their.add"].delay(1).get(timeout=SOON)
        ends_at = time.monotonic()
    assert time.monotonic() - ends_at < 10


@pytest.mark.celery(task_always_eager=True)
@pytest.mark.usefixtures("depends_on_current_app")
def test_eager():
    """With `task_always_eager` tasks run in place."""
    assert 2 == add.delay(1).get()
    assert 6 == chord([add.s(n) for n in range(3)])(total.s()).get()


@pytest.mark.usefixtures("celery_session_app", "celery_session_worker")
def test_many_ways_to_call():
    """Many calls, a chunk, a future and a revoked call."""
    results = add.delay_many(range(40))
    late = add.apply_async((1,), countdown=60)
    late.revoke()
    assert list(range(1, 41)) == [each.get(timeout=SOON) for each in results]
    assert [2, 3] == add.delay_rows([1, 2]).get(timeout=SOON)
    assert 4 == add.delay(3).future().result(SOON)


@pytest.mark.usefixtures("celery_session_app", "celery_session_worker")
def test_canvas():
    """Chains, groups and chords; a failed header fails its chord."""
    assert 5 == chain(add.s(1), add.s(), add.s(), add.s())().get(timeout=SOON)
    assert [1, 2, 3] == group(add.s(n) for n in range(3))().get(timeout=SOON)
    assert 55 == chord([add.s(n) for n in range(10)])(total.s()).get(timeout=SOON)
    with pytest.raises(Exception, match="even"):
        chord([odd.s(n) for n in range(4)])(total.s()).get(timeout=SOON)


@pytest.mark.usefixtures("celery_session_app", "celery_session_worker")
def test_links():
    """`link` has the result, `link_error` the error."""
    heard.clear()
    add.apply_async((1,), link=note.s())
    until(lambda: heard == [(2,)])
    odd.apply_async((2,), link_error=note.s())
    until(lambda: len(heard) == 2)


@pytest.mark.usefixtures("celery_session_app", "celery_session_worker")
def test_retries():
    """`autoretry_for`, and a returned `Retry`."""
    tries.clear()
    assert 7 == flaky.delay(7).get(timeout=SOON)
    assert 8 == again.delay(8).get(timeout=SOON)
    assert [7, 7, 7, 8, 8] == sorted(tries)


@pytest.mark.usefixtures("celery_session_app", "celery_session_worker")
def test_ignored_result():
    """A task runs whose result nobody stores."""
    heard.clear()
    silent.delay(5)
    until(lambda: heard == [5])


@pytest.mark.usefixtures("celery_session_app", "celery_session_worker")
def test_signal_receivers():
    """Receivers of the test's own hear of each item."""
    states = []

    def on_end(task=None, state=None, **_):
        if task.name == add.name:  # the last test's task may end now
            states.append((task.name, state))

    signals.task_postrun.connect(on_end)
    assert 2 == add.delay(1).get(timeout=SOON)
    until(lambda: states == [("their.add", "SUCCESS")])
    signals.task_postrun.disconnect(on_end)


@pytest.mark.usefixtures("celery_session_worker")
def test_random_canvases(celery_session_app):
    """Canvases of batch tasks give what plain calls, one after the other, give."""
    name = f"{os.environ['THEIR_TRANSPORT']} {os.environ['THEIR_POOL']}"
    sent = []
    drawings = drawn(int(os.environ["THEIR_CANVASES"]), name, depth=2, largest=12)
    for index, (shape, fault) in enumerate(drawings):
        canvas = labelled(shape, f"c{index}", fault)
        sent.append((canvas, sign(canvas, celery_session_app).apply_async()))
    for canvas, result in sent:
        wanted = Evaluation().whole(canvas)
        if isinstance(wanted, Broke):
            with pytest.raises(Exception, match="|".join(wanted.tags)):
                result.get(timeout=SOON)
        else:
            assert wanted == result.get(timeout=SOON), canvas
