"""Signals and hooks: for each item what an ordinary task gets, in the same order."""

from __future__ import annotations

import pytest

from tests.services.place import Place, eventually

pytestmark = pytest.mark.alike_on_brokers

BOTH_WAYS = ("prefork", "solo")


@pytest.mark.pools(*BOTH_WAYS)
@pytest.mark.parametrize("word", ["good", "fail", "ignore", "reject", "retry"])
def test_an_item_has_an_ordinary_tasks_signals_and_hooks(place: Place, word: str):
    """Whatever becomes of an item, its signals and hooks are those of an ordinary task."""
    stories = []
    for task in (place.hooked_plain, place.hooked):
        result = task.delay(place.unique(word))
        last = "task_failure" if word in ("fail", "reject") else "task_postrun"
        stories.append(_story(place, result.id, [last] * (2 if word == "retry" else 1)))

    assert stories[0] == stories[1]
    assert "task_prerun" in stories[1]


def _story(place: Place, task_id: str, last: list[str]) -> list[str]:
    def names() -> list[str]:
        return [fact["name"] for fact in place.recall("signal") if fact.get("id") == task_id]

    def is_over() -> bool:
        return "task_postrun" in names() and last == [n for n in names() if n == last[0]]

    eventually(is_over, "the end of the story")
    # Told from two processes, the worker's part may come at any time in between.
    told_by_worker = {"task_received", "task_failure", "task_revoked"}
    mine = [name for name in names() if name not in told_by_worker]
    return [*mine, *sorted(set(names()) & told_by_worker)]


@pytest.mark.pools(*BOTH_WAYS)
def test_the_model_runs_between_prerun_and_postrun_of_every_item(place: Place):
    """All items of a batch have begun when the model runs, and none has ended."""
    results = [place.hooked.delay(place.unique("good")) for _ in range(4)]
    place.get(results)
    story = eventually(lambda: _whole_story(place, len(results)), "the end of the story")
    batches = "".join({"task_prerun": "(", "MODEL": "M", "task_postrun": ")"}[n] for n in story)
    sizes = [len(batch) for batch in place.batches("act")]

    assert "".join("(" * size + "M" + ")" * size for size in sizes) == batches


def _whole_story(place: Place, items: int) -> list[str]:
    wanted = ("task_prerun", "MODEL", "task_postrun")
    story = [fact["name"] for fact in place.recall("signal") if fact["name"] in wanted]
    return story if story.count("task_postrun") == items else []


def test_a_revoked_item_has_its_signal(place: Place):
    """``task_revoked`` is sent for the item that was revoked, which has no other but receipt."""
    gate = place.close_gate()
    result, other = place.hooked.delay("unwanted"), place.hooked.delay("good")
    place.wait_for_buffered("f.hooked", 2)
    place.app.control.revoke(
        result.id, reply=True, timeout=60.0, limit=1, destination=[place.worker.name]
    )
    place.open_gate(gate)
    other.get(timeout=30)
    result.get(timeout=30, propagate=False)

    def names() -> list[str]:
        return [fact["name"] for fact in place.recall("signal") if fact.get("id") == result.id]

    assert eventually(lambda: "task_revoked" in names(), "the signal")
    assert ["task_received", "task_revoked"] == names()
