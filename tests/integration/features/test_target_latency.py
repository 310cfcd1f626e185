"""Batches that are chosen so that results come in time, and calls that are refused for it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from celery import Celery
from celery.result import AsyncResult

from celery_batch import BatchPlan, QueueFull, apredict, predict
from celery_batch.cluster.state import grown
from celery_batch.protocol import SENT
from celery_batch.web.errors import http_error, task_error
from tests.services.shared_setup import SOON, SharedSetup, batch_info, eventually

TASK = "f.paced"

EVERY_POOL = ("prefork", "solo", "threads")


def latency_of(shared: SharedSetup) -> dict[str, Any]:
    """Return what the worker says of the task's latency."""
    return dict(shared.worker.status()[TASK]["latency"])


def teach(shared: SharedSetup) -> None:
    """Run batches of several sizes."""
    for n in (1, 4, 8):
        shared.get([shared.paced.delay(each) for each in range(n)])
    shared.wait_for_batches(TASK)


@pytest.fixture
def taught(shared: SharedSetup) -> Iterator[SharedSetup]:
    """A place whose worker knows how long the task's batches take."""
    while latency_of(shared)["learnt_from"] < 10:
        teach(shared)
    yield shared
    shared.worker.ask("batch_config", words=[TASK, "default"])


def configured(shared: SharedSetup, **values: Any) -> dict[str, Any]:
    """Change the task's options in the worker."""
    return dict(shared.worker.ask("batch_config", task=TASK, **values)["ok"])


@pytest.mark.alike_on_brokers
@pytest.mark.pools(*EVERY_POOL)
def test_the_worker_learns_how_long_batches_take(taught: SharedSetup):
    """What a call takes and what each row adds are reported, and why batches are as large."""
    while not latency_of(taught)["b"]:  # on a busy machine, small batches may take the longest
        teach(taught)
    found = latency_of(taught)

    # It sleeps for at least so long; a busy machine adds to it, now to few rows and now to many.
    assert 0.015 < found["a"] + 8 * found["b"]
    assert found["a"] < 0.5
    assert found["b"] < 0.3
    assert 0 < found["overhead"] < 1
    assert 16 >= found["limit"]
    assert "learning" != found["why"]


@pytest.mark.alike_on_brokers
def test_results_tell_how_their_batch_was_chosen(taught: SharedSetup):
    """They have the model as it was known, the limit with its reason, and what was predicted."""
    result = taught.paced.delay(21)
    assert 42 == result.get(timeout=SOON)
    info = batch_info(result)

    assert isinstance(info.plan, BatchPlan)
    assert info.reason in {"idle", "timeout", "ahead"}
    assert info.plan.limit <= 16
    assert info.plan.a + info.plan.b * info.size < info.plan.predicted < 1
    assert taught.double.delay(1).get(timeout=SOON) == 2


@pytest.mark.alike_on_brokers
def test_padding_is_told(shared: SharedSetup):
    """What part of the work was padding is known where items have a cost, or calls a size."""
    result = shared.tokens.delay_rows(["x" * 10, "x" * 10, "x" * 4])
    result.get(timeout=SOON)
    info = batch_info(result)

    fixed = shared.sizes.delay_rows([1, 2, 3, 4])
    plain = shared.double.delay(1)
    fixed.get(timeout=SOON)
    plain.get(timeout=SOON)

    assert pytest.approx(6 / 30, abs=1e-3) == info.padding
    assert info.plan is None
    assert 0.0 == batch_info(fixed).padding
    assert batch_info(plain).padding is None


def test_calls_that_would_be_late_are_refused(taught: SharedSetup):
    """Each of a burst gets its answer or is refused, in whatever client reads the result."""
    before = taught.worker.status()[TASK]
    results = taught.paced.delay_many(range(300))
    answers = taught.get(results)
    refused = [each for each in answers if isinstance(each, QueueFull)]
    stored = taught.app.AsyncResult(
        next(each.id for each, answer in zip(results, answers, strict=True) if answer in refused)
    )

    assert refused
    assert all(answer == 2 * n or answer in refused for n, answer in enumerate(answers))
    lately = grown(before, taught.worker.status()[TASK])  # as check and top see it
    assert len(refused) == lately.targets["refused"]
    assert all(each.retry_after >= 0.4 for each in refused)
    assert "later than target_latency; try again in" in str(refused[0])
    url = taught.app.backend.as_uri(include_password=True)
    error = AsyncResult(stored.id, app=Celery(set_as_current=False, backend=url))
    assert (type(refused[0]), refused[0].args) == (type(error.result), error.result.args)
    assert (429, refused[0].retry_after) == (
        http_error(task_error(error.result)).status,
        http_error(task_error(error.result)).retry_after,
    )


def _in_loop(*args: Any, **options: Any) -> Any:
    return asyncio.run(apredict(*args, **options))


def _sent_before() -> dict[str, Any]:
    """Return the option of calls most of whose time is over, so that few of them come in time."""
    return {"headers": {SENT: int(time.time() * 1000) - 300}}


@pytest.mark.alike_on_brokers
@pytest.mark.parametrize("ask", [predict, _in_loop], ids=["predict", "apredict"])
def test_a_refused_item_ends_its_whole_request(taught: SharedSetup, ask: Callable[..., Any]):
    """The other calls of the same `predict` are revoked, and those that wait do not run."""
    revoked = lambda: len(taught.worker.ask("revoked"))  # noqa: E731
    seen, known = len(taught.items("paced")), revoked()
    gate = taught.close_gate()
    with pytest.raises(QueueFull, match="later than target_latency") as caught:
        ask(taught.paced, range(100), timeout=SOON, **_sent_before())
    eventually(lambda: revoked() > known, "revoked calls")
    taught.open_gate(gate)
    taught.wait_for_nobody()

    assert caught.value.index > 0
    assert len(taught.items("paced")) - seen <= 16  # of the batch that lay ready in the pool


@pytest.mark.alike_on_brokers
@pytest.mark.parametrize("ask", [predict, _in_loop], ids=["predict", "apredict"])
def test_a_refusal_counts_for_more_than_the_deadline(
    taught: SharedSetup, ask: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
):
    """In a client that does not know of the target, and so waits for all calls."""
    monkeypatch.setattr(type(taught.app.tasks[TASK]), "target_latency", None)
    gate = taught.close_gate()
    with pytest.raises(QueueFull, match="later than target_latency") as caught:
        ask(taught.paced, range(100), timeout=5.0, **_sent_before())
    taught.open_gate(gate)
    taught.wait_for_nobody()
    error = http_error(caught.value)

    assert (429, True) == (error.status, int(error.headers["Retry-After"]) >= 1)


@pytest.mark.alike_on_brokers
def test_outputs_beside_refusals_may_be_wanted(taught: SharedSetup):
    """With `return_exceptions` the accepted items of a request run."""
    taught.wait_for_nobody()
    answers = predict(taught.paced, range(100), timeout=SOON, return_exceptions=True)
    outputs = {n: each for n, each in enumerate(answers) if not isinstance(each, QueueFull)}

    assert 0 < len(outputs) < 100
    assert {n: 2 * n for n in outputs} == outputs


@pytest.mark.alike_on_brokers
def test_an_operator_turns_the_target_off_and_on(taught: SharedSetup):
    """Without one all calls run, however late."""
    reply = configured(taught, target_latency=None, shed=False)
    answers = taught.get(taught.paced.delay_many(range(100)))

    assert (None, False) == (reply["target_latency"], reply["shed"])
    assert [2 * n for n in range(100)] == answers


@pytest.mark.parametrize("path", ["fast", "celery's"])
def test_time_in_the_broker_counts(taught: SharedSetup, path: str):
    """Calls say when they were sent; one that says that it is old is late."""
    options = {"link": []} if path == "fast" else {"producer": None, "retry": True}
    taught.paced.apply_async((1,), **options).get(timeout=SOON)
    taught.wait_for_batches(TASK)
    before = latency_of(taught)
    old = taught.paced.apply_async(
        (1,), headers={SENT: int(time.time() * 1000) - 60_000}, **options
    )

    assert 2 == old.get(timeout=SOON)  # it runs at once, so it is not refused
    assert eventually(lambda: latency_of(taught)["late"] == before["late"] + 1, "a late one")


@pytest.mark.alike_on_brokers
def test_a_clock_that_is_ahead_does_no_harm(taught: SharedSetup):
    """What says that it comes from the future has just been sent."""

    def is_in_time() -> bool:
        """Say whether one call is; on a busy machine it may take longer than the target."""
        before = latency_of(taught)
        ahead = taught.paced.apply_async((1,), headers={SENT: int(time.time() * 1000) + 60_000})
        assert 2 == ahead.get(timeout=SOON)
        taught.wait_for_batches(TASK)
        after = latency_of(taught)
        grown = {name: after[name] - before[name] for name in ("in_time", "late")}
        assert grown in ({"in_time": 1, "late": 0}, {"in_time": 0, "late": 1})
        return bool(grown["in_time"])

    taught.wait_for_batches(TASK)
    assert eventually(is_in_time, "one in time")


@pytest.mark.alike_on_brokers
def test_rows_of_a_backfill_are_not_refused(taught: SharedSetup):
    """They may wait, and all of them run."""
    before = latency_of(taught)["refused"]
    options = {"headers": {SENT: 0}}
    answers = taught.get(taught.paced.apply_many([((n,), {}) for n in range(150)], **options))

    assert [2 * n for n in range(150)] == answers
    assert before == latency_of(taught)["refused"]
