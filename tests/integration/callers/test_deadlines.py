"""Calls with a deadline and headers of their own, as each web request makes, to their end."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from celery.exceptions import TaskRevokedError

from tests.services.shared_setup import SharedSetup, eventually

SOON = {"timeout": 30}


def test_a_deadline_and_headers_come_to_the_task(each_shared: SharedSetup):
    """The task sees a call's own headers and its deadline where Celery has them."""
    until = datetime.now(UTC) + timedelta(seconds=60)
    options = {"expires": until, "headers": {"request_id": "a", "tenant": {"name": "b"}}}
    answers = [each_shared.about.apply_async((n,), **options).get(**SOON) for n in range(3)]

    assert ["a"] * 3 == [request_id for request_id, _, _ in answers]
    assert [("a", {"name": "b"})] * 3 == [
        (headers["request_id"], headers["tenant"]) for _, headers, _ in answers
    ]
    assert [until.isoformat()] * 3 == [expires for _, _, expires in answers]


def test_who_expires_behind_a_running_batch_never_runs(each_shared: SharedSetup):
    """A batch that lies ready in the pool process loses who expires there, and runs without."""
    setup = each_shared
    assert "first" == setup.drowsy.delay("first").get(**SOON)
    running = setup.drowsy.delay("doze")
    eventually(lambda: len(setup.recall("drowsy")) > 1, "a batch that runs")
    until = datetime.now(UTC) + timedelta(seconds=1)
    late = [setup.drowsy.apply_async((f"late {n}",), expires=until) for n in range(7)]
    wanted = setup.drowsy.apply_async(("wanted",), expires=60, headers={"request_id": "a"})
    eventually(lambda: datetime.now(UTC) > until, "the time to pass")
    setup.module.remember("wake")

    assert ["doze", "wanted"] == [each.get(**SOON) for each in (running, wanted)]
    for each in late:
        with pytest.raises(TaskRevokedError, match="expired"):
            each.get(**SOON)
    assert {"REVOKED"} == {each.state for each in late}
    assert [["first"], ["doze"], ["wanted"]] == setup.batches("drowsy")
