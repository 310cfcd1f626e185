"""How many more messages are of use, by the tasks that a queue may bring."""

from __future__ import annotations

from dataclasses import replace

from celery_batch.batching.batch import LEAST_URGENT
from tests.worker.doubles import Call, Worker


def limit(worker: Worker, tasks: set[str] | None) -> int:
    """Return the limit for messages that overtake no request."""
    return worker.scheduler.fetch_limits.usable(tasks, [LEAST_URGENT])[0]


def test_the_fullest_task_sets_the_limit(worker: Worker):
    """A queue of several tasks is read for the one with the lowest limit."""
    worker.send("pairs", *"abcdef")
    worker.send("trios", "x")

    assert 8 == limit(worker, {"trios"})
    assert 0 == limit(worker, {"pairs", "trios"})
    assert not worker.scheduler.fetch_limits.has_capacity()


def test_a_queue_of_which_nothing_is_known_is_read(worker: Worker):
    """The first messages show what it brings: no more of them than some task could use."""
    worker.send("pairs", *"abcdef")
    worker.send("trios", "x")

    assert 8 == limit(worker, None)


def test_other_tasks_are_not_ours_to_count(worker: Worker):
    """A queue of ordinary tasks is read as far as the prefetch goes."""
    worker.send("pairs", *"abcdef")

    assert limit(worker, set()) > 1000
    assert limit(worker, {"ordinary"}) > 1000


def test_overtaken_requests_do_not_count(worker: Worker):
    """An urgent message is read although less urgent requests fill the queue; others are not."""
    task_queue = worker.scheduler.task_queue(worker.app.tasks["pairs"])
    worker.send("pairs", *"abcd")  # on their way: nobody overtakes them
    for task_id in "efgh":
        task_queue.add(Call(task_id, worker.events), urgency=6)

    usable = worker.scheduler.fetch_limits.usable

    assert [2, 2, 0, 0] == usable({"pairs"}, (0, 3, 6, 9))
    assert [2, 2, 0, 0] == usable({"pairs"}, (0, 3, 6, 9), 0)  # also beyond the prefetch
    assert [0, 0, 0, 0] == usable(None, (0, 3, 6, 9), 0)  # but no ordinary tasks


def test_messages_that_overtake_none_have_the_same_limit(worker: Worker):
    """If all waiting requests are most urgent, the limit is the same for all messages."""
    worker.send("pairs", *"abcde")

    assert [1, 1, 1, 1] == worker.scheduler.fetch_limits.usable({"pairs"}, (0, 3, 6, 9))


def test_some_less_urgent_messages_are_read_first(worker: Worker):
    """Their share of two batches, while more urgent requests wait; not if it is here already."""
    task_queue = worker.scheduler.task_queue(worker.app.tasks["crowds"])
    steps = (0, 3, 6, 9)

    assert [0, 0, 0, 0] == worker.scheduler.fetch_limits.guaranteed({"crowds"}, steps)

    task_queue.add(Call("urgent", worker.events), urgency=3)
    for task_id in "abc":
        task_queue.add(Call(task_id, worker.events), urgency=9)

    assert [0, 0, 8, 5] == worker.scheduler.fetch_limits.guaranteed({"crowds"}, steps)
    assert [0, 0, 8, 5] == worker.scheduler.fetch_limits.guaranteed(None, steps)
    assert [0, 0, 0, 0] == worker.scheduler.fetch_limits.guaranteed({"pairs"}, steps)

    task_queue.policy = replace(task_queue.policy, low_priority_share=0.0)

    assert [0] == worker.scheduler.fetch_limits.guaranteed({"crowds"}, [9])
