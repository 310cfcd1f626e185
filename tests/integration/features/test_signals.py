"""Signals and hooks: for each item what an ordinary task gets, in the same order."""

from __future__ import annotations

import pytest

from tests.services.shared_setup import SharedSetup, eventually

pytestmark = pytest.mark.alike_on_brokers

BOTH_WAYS = ("prefork", "solo")


@pytest.mark.pools(*BOTH_WAYS)
@pytest.mark.parametrize("word", ["good", "fail", "ignore", "reject", "retry"])
def test_an_item_has_an_ordinary_tasks_signals_and_hooks(shared: SharedSetup, word: str):
    """Whatever becomes of an item, its signals and hooks are those of an ordinary task."""
    stories = []
    for task in (shared.hooked_plain, shared.hooked):
        result = task.delay(shared.unique(word))
        last = "task_failure" if word in ("fail", "reject") else "task_postrun"
        stories.append(_story(shared, result.id, [last] * (2 if word == "retry" else 1)))

    assert stories[0] == stories[1]
    assert "task_prerun" in stories[1]


def _story(shared: SharedSetup, task_id: str, last: list[str]) -> list[str]:
    def names() -> list[str]:
        return [fact["name"] for fact in shared.recall("signal") if fact.get("id") == task_id]

    def is_over() -> bool:
        return "task_postrun" in names() and last == [n for n in names() if n == last[0]]

    eventually(is_over, "the end of the story")
    # Told from two processes, the worker's part may come at any time in between.
    told_by_worker = {"task_received", "task_failure", "task_revoked"}
    mine = [name for name in names() if name not in told_by_worker]
    return [*mine, *sorted(set(names()) & told_by_worker)]


@pytest.mark.pools(*BOTH_WAYS)
def test_the_model_runs_between_prerun_and_postrun_of_every_item(shared: SharedSetup):
    """All items of a batch have begun when the model runs, and none has ended."""
    results = [shared.hooked.delay(shared.unique("good")) for _ in range(4)]
    shared.get(results)
    story = eventually(lambda: _whole_story(shared, len(results)), "the end of the story")
    batches = "".join({"task_prerun": "(", "MODEL": "M", "task_postrun": ")"}[n] for n in story)
    sizes = [len(batch) for batch in shared.batches("act")]

    assert "".join("(" * size + "M" + ")" * size for size in sizes) == batches


def _whole_story(shared: SharedSetup, items: int) -> list[str]:
    wanted = ("task_prerun", "MODEL", "task_postrun")
    story = [fact["name"] for fact in shared.recall("signal") if fact["name"] in wanted]
    return story if story.count("task_postrun") == items else []


def test_a_revoked_item_has_its_signal(shared: SharedSetup):
    """``task_revoked`` is sent for the item that was revoked, which has no other but receipt."""
    gate = shared.close_gate()
    result, other = shared.hooked.delay("unwanted"), shared.hooked.delay("good")
    shared.wait_for_buffered("f.hooked", 2)
    shared.app.control.revoke(
        result.id, reply=True, timeout=60.0, limit=1, destination=[shared.worker.name]
    )
    shared.open_gate(gate)
    other.get(timeout=30)
    result.get(timeout=30, propagate=False)

    def names() -> list[str]:
        return [fact["name"] for fact in shared.recall("signal") if fact.get("id") == result.id]

    assert eventually(lambda: "task_revoked" in names(), "the signal")
    assert ["task_received", "task_revoked"] == names()
