"""Sentry's own Celery integration, in a real worker."""

from __future__ import annotations

from typing import Any

import pytest
from celery.result import AsyncResult

from tests.services.launcher import Launcher

ITEMS = ("a", "bad1", "b", "bad2")
TRACES = ["1" * 32, "2" * 32, "3" * 32, "4" * 32]


@pytest.fixture(scope="module")
def sent(launcher: Launcher) -> list[AsyncResult]:
    """Send one batch of four whose senders traced it, and wait for what Sentry is told."""
    launcher.worker("tests.apps.traced", "-c", "1", OBSERVED_BY="sentry")
    app = launcher.client()
    results = [
        app.send_task(
            "traced.model",
            (item,),
            headers={"headers": {"sentry-trace": f"{trace}-{'5' * 16}-1"}},
        )
        for item, trace in zip(ITEMS, TRACES, strict=True)
    ]
    for result in results:
        result.get(timeout=30, propagate=False)
    launcher.await_facts("transaction", 4)
    launcher.await_facts("event", 2)
    return results


def told(launcher: Launcher, kind: str, sent: list[AsyncResult]) -> list[dict[str, Any]]:
    """Return what Sentry was told of these tasks, in the order in which they were sent."""
    order = [result.id for result in sent]
    found = [fact for fact in launcher.facts(kind) if fact["tags"]["celery_task_id"] in order]
    return sorted(found, key=lambda fact: order.index(fact["tags"]["celery_task_id"]))


def test_every_item_has_a_transaction_in_its_senders_trace(
    launcher: Launcher, sent: list[AsyncResult]
):
    """Each item is one transaction, with its own task id, status and sender."""
    transactions = told(launcher, "transaction", sent)
    traces = [transaction["contexts"]["trace"] for transaction in transactions]

    assert [result.id for result in sent] == [
        transaction["tags"]["celery_task_id"] for transaction in transactions
    ]
    assert TRACES == [trace["trace_id"] for trace in traces]
    assert ["ok", "internal_error", "ok", "internal_error"] == [trace["status"] for trace in traces]


def test_error_is_reported_once_with_its_item(launcher: Launcher, sent: list[AsyncResult]):
    """A failing item is one event, with the item's own task id, trace and error."""
    events = told(launcher, "event", sent)

    assert [sent[1].id, sent[3].id] == [event["tags"]["celery_task_id"] for event in events]
    assert [TRACES[1], TRACES[3]] == [event["contexts"]["trace"]["trace_id"] for event in events]
    assert ["cannot bad1", "cannot bad2"] == [
        event["exception"]["values"][-1]["value"] for event in events
    ]


def test_scope_of_an_item_is_its_own(launcher: Launcher, sent: list[AsyncResult]):
    """What a hook notes for one item is not reported with its neighbours."""
    marks = [
        [tag for tag in transaction["tags"] if tag.startswith("mark.")]
        for transaction in told(launcher, "transaction", sent)
    ]

    assert [[f"mark.{item}"] for item in ITEMS] == marks


@pytest.mark.usefixtures("sent")
def test_error_of_a_whole_batch_is_reported_for_each_item(launcher: Launcher):
    """An error that is everybody's is reported once for each task."""
    app = launcher.client()
    results = [app.send_task("traced.broken", (n,)) for n in range(3)]
    for result in results:
        result.get(timeout=30, propagate=False)
    launcher.await_facts("event", 5)

    assert [result.id for result in results] == [
        event["tags"]["celery_task_id"] for event in told(launcher, "event", results)
    ]
