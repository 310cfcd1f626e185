"""OpenTelemetry's own Celery instrumentation, in a real worker."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import pytest
from celery.result import AsyncResult

from tests.services.launcher import Launcher

ITEMS = ("a", "bad1", "b", "bad2")
#: What an instrumented sender would have put into the message's headers.
TRACES = [int(f"{n}" * 32, 16) for n in (1, 2, 3, 4)]
SENDERS = [int(f"{n}" * 16, 16) for n in (1, 2, 3, 4)]


@pytest.fixture(scope="module")
def sent(launcher: Launcher) -> list[AsyncResult]:
    """Send one batch of four whose senders traced it, and wait until all spans have ended."""
    launcher.worker("tests.apps.traced", "-c", "1", OBSERVED_BY="opentelemetry")
    app = launcher.client()
    results = [
        app.send_task(
            "traced.model", (item,), headers={"traceparent": f"00-{trace:032x}-{sender:016x}-01"}
        )
        for item, trace, sender in zip(ITEMS, TRACES, SENDERS, strict=True)
    ]
    for result in results:
        result.get(timeout=30, propagate=False)
    launcher.await_facts("spans", 6)
    return results


def spans(launcher: Launcher) -> dict[str, list[dict[str, Any]]]:
    """Return the spans by name, in the order in which they ended."""
    found = defaultdict(list)
    for span in launcher.facts("spans"):
        found[span["name"]].append(span)
    return found


def items(launcher: Launcher, sent: list[AsyncResult]) -> list[dict[str, Any]]:
    """Return the items' spans in the order in which they were sent."""
    by_task = {
        span["task_id"]: span for span in spans(launcher)["run/traced.model"] if span["task_id"]
    }
    return [by_task[result.id] for result in sent]


def test_every_item_has_a_span_in_its_senders_trace(launcher: Launcher, sent: list[AsyncResult]):
    """An item's span is the child of its own sender's, never of a neighbour's."""
    own = items(launcher, sent)

    assert TRACES == [span["trace"] for span in own]
    assert SENDERS == [span["parent"] for span in own]


def test_span_of_an_item_covers_the_model(launcher: Launcher, sent: list[AsyncResult]):
    """Each span begins before the model's call and ends after it, the last to begin first."""
    own = items(launcher, sent)
    (batch,) = spans(launcher)["batch/traced.model"]

    assert all(span["begin"] <= batch["begin"] for span in own)
    assert all(span["end"] >= batch["end"] for span in own)
    assert own == sorted(own, key=lambda span: span["begin"])
    assert own == sorted(own, key=lambda span: -span["end"])
    assert batch["end"] - batch["begin"] >= 0.2e9


def test_error_is_recorded_once_with_its_item(launcher: Launcher, sent: list[AsyncResult]):
    """The spans of failing items carry their error; those of the others do not."""
    own = items(launcher, sent)

    assert ["UNSET", "ERROR", "UNSET", "ERROR"] == [span["status"] for span in own]
    assert [[], ["exception"], [], ["exception"]] == [span["events"] for span in own]


def test_batch_has_a_span_that_links_its_items(launcher: Launcher, sent: list[AsyncResult]):
    """The model's call has one span, linked to each item's and back, in none of their traces."""
    own = items(launcher, sent)
    (batch,) = spans(launcher)["batch/traced.model"]

    assert [span["id"] for span in own] == batch["links"]
    assert [[batch["id"]]] * 4 == [span["links"] for span in own]
    assert batch["parent"] is None
    assert batch["trace"] not in TRACES
    about = dict(batch["attributes"])
    assert 0 < about.pop("celery_batch.wait") < 120
    assert "@" in about.pop("celery.hostname")
    assert {
        "celery.task_name": "traced.model",
        "celery_batch.reason": "full",
        "messaging.batch.message_count": 4,
    } == about


def test_span_inside_the_model_belongs_to_the_batch(launcher: Launcher, sent: list[AsyncResult]):
    """What a library traces while the model runs is a child of the batch's span."""
    assert len(sent) == 4
    (batch,) = spans(launcher)["batch/traced.model"]
    (inside,) = spans(launcher)["inside"]

    assert batch["id"] == inside["parent"]


@pytest.mark.usefixtures("sent")
def test_item_without_a_traced_sender_has_a_trace_of_its_own(launcher: Launcher):
    """Where nobody traced the sending, each item begins a trace: neighbours are no parents."""
    app = launcher.client()
    results = [app.send_task("traced.broken", (n,)) for n in range(3)]
    for result in results:
        result.get(timeout=30, propagate=False)
    launcher.await_facts("spans", 10)
    own = spans(launcher)["run/traced.broken"]

    assert 3 == len(own)
    assert [None] * 3 == [span["parent"] for span in own]
    assert 3 == len({span["trace"] for span in own})
    assert ["ERROR"] * 3 == [span["status"] for span in own]
