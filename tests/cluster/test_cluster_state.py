"""The state of several workers: rates, shares, silent and restarted workers."""

from __future__ import annotations

import pytest

from celery_batch.cluster.state import ClusterSnapshot, ClusterState

QUEUES = {"t": "celery", "u": "other"}


def report(**counts):
    """Return a worker's report of one task."""
    return {"served": True, "max_batch_size": 64, "batches": 0, "rows": 0, "sizes": {}, **counts}


def answer(task=None, **numbers):
    """Return a worker's answer."""
    return {"processes": 1, "tasks": {} if task is None else {"t": task}, **numbers}


@pytest.fixture
def cluster_state():
    """A state with a window of ten seconds."""
    return ClusterState(QUEUES, 10.0)


def test_one_snapshot_has_no_rate(cluster_state):
    """What was counted before is no throughput: rates need two snapshots."""
    cluster_state.add(ClusterSnapshot(time=1.0, answers={"w": answer(report(batches=9, rows=90))}))
    (worker,) = cluster_state.workers()

    assert ("w", "ready", None, None) == (
        worker.name,
        worker.state,
        worker.rows_per_second,
        worker.busy,
    )
    assert (None, None, {}) == (
        cluster_state.tasks()[0].rows_per_second,
        cluster_state.tasks()[0].batch_size,
        cluster_state.tasks()[0].batch_sizes,
    )


def test_two_snapshots_have_a_rate(cluster_state):
    """Rows, batches, sizes, model and idle time are those between the two, of all workers."""
    before = report(batches=10, rows=100, ended=10, model={"seconds": 1.0}, sizes={"16": [10, 0]})
    after = report(batches=14, rows=200, ended=14, model={"seconds": 2.0}, running=1, waiting=5)
    after["sizes"] = {"16": [11, 0], "32": [3, 0]}
    began = answer(before, seconds=5.0, device_idle_seconds=2.0)
    ended = {"seconds": 7.0, "device_idle_seconds": 2.5}
    cluster_state.add(ClusterSnapshot(time=0.0, answers={"v": began, "w": began}))
    cluster_state.add(
        ClusterSnapshot(
            time=2.0,
            answers={"v": answer(after, **ended), "w": answer(after, **ended)},
            depths={"celery": 7},
        )
    )
    task, _ = cluster_state.tasks()

    assert (100.0, 4.0, 25.0) == (task.rows_per_second, task.batches_per_second, task.batch_size)
    assert ({16: 2, 32: 6}, 0.25) == (task.batch_sizes, task.model_seconds)
    assert (10, 2, 7) == (task.waiting, task.running, task.messages)
    assert 2 * [("busy", 50.0, 0.75)] == [
        (each.state, each.rows_per_second, each.busy) for each in cluster_state.workers()
    ]


def waited(**buckets):
    """Return an answer with the waits of requests, by upper bound in seconds."""
    return answer(report(wait={"p95": 9.0, "buckets": buckets}))


def test_waits_are_those_between_the_snapshots(cluster_state):
    """Waits are of all workers' requests together; earlier ones do not count, however many."""
    long_ago = waited(**{"0.005": 0, "0.01": 10_000})
    now = waited(**{"0.005": 0, "0.01": 10_010, "0.015": 0, "0.5": 0, "0.75": 10})
    other = waited(**{"0.02": 0, "0.03": 20})
    cluster_state.add(ClusterSnapshot(time=0.0, answers={"v": long_ago, "w": answer(report())}))
    cluster_state.add(ClusterSnapshot(time=1.0, answers={"v": now, "w": other}))
    task, _ = cluster_state.tasks()

    assert (0.025, 0.7) == pytest.approx((task.wait_p50, task.wait_p95))


def test_old_snapshots_do_not_count(cluster_state):
    """Rates are those of the window, however long the state is kept."""
    for second in range(100):
        rows = 10 * second if second < 50 else 490
        cluster_state.add(
            ClusterSnapshot(
                time=float(second), answers={"w": answer(report(rows=rows, batches=rows))}
            )
        )

    assert 10.0 == cluster_state.seconds
    assert 0.0 == cluster_state.tasks()[0].rows_per_second


def test_a_restarted_worker_counts_from_none(cluster_state):
    """A worker whose uptime shrank was restarted; all its counts are new."""
    cluster_state.add(
        ClusterSnapshot(time=0.0, answers={"w": answer(report(batches=2, rows=500), seconds=99.0)})
    )
    cluster_state.add(
        ClusterSnapshot(time=1.0, answers={"w": answer(report(batches=3, rows=20), seconds=0.5)})
    )

    assert 40.0 == cluster_state.tasks()[0].rows_per_second
    assert cluster_state.workers()[0].busy is None


def test_rates_are_those_of_each_worker_in_its_own_time(cluster_state):
    """New workers and workers that answer slowly count with their own rate."""
    old, new = (answer(report(batches=0), seconds=seconds) for seconds in (50.0, 1.0))
    cluster_state.add(ClusterSnapshot(time=0.0, answers={"old": old}))
    cluster_state.add(ClusterSnapshot(time=8.0, answers={"new": new}))
    old = answer(report(batches=10, rows=100), seconds=60.0)
    new = answer(report(batches=2, rows=20), seconds=3.0)
    cluster_state.add(ClusterSnapshot(time=9.0, answers={"old": old, "new": new}))

    assert (20.0, 2.0) == (
        cluster_state.tasks()[0].rows_per_second,
        cluster_state.tasks()[0].batches_per_second,
    )
    assert [10.0, 10.0] == [worker.rows_per_second for worker in cluster_state.workers()]


def test_worker_without_an_answer_is_silent_for_a_while(cluster_state):
    """A worker that is busy or gone keeps its last answer for a while."""
    cluster_state.add(ClusterSnapshot(time=0.0, answers={"w": answer(report(waiting=3))}))
    cluster_state.add(ClusterSnapshot(time=1.0))
    silent = [(worker.state, worker.waiting) for worker in cluster_state.workers()]
    cluster_state.add(ClusterSnapshot(time=31.0, error="refused"))

    assert [("silent", 3)] == silent
    assert [] == cluster_state.workers()
    assert "refused" == cluster_state.error


@pytest.mark.parametrize(
    ("commands", "halted"),
    [
        ([{"paused": False}, {"paused": True, "drained": False}], "paused"),
        ([{"paused": False}, {"paused": True, "drained": True}], "drained"),
        ([{"paused": True}, {"paused": True, "drained": True}], "drained, paused"),
        ([{"paused": False}], ""),
    ],
)
def test_a_task_that_an_operator_has_halted(cluster_state, commands, halted):
    """One worker that does not run a task is enough to show it, and by which command."""
    answers = {str(n): answer(report(**changed)) for n, changed in enumerate(commands)}
    cluster_state.add(ClusterSnapshot(time=0.0, answers=answers))

    assert [halted, ""] == [task.halted for task in cluster_state.tasks()]


def test_an_error_for_an_answer_is_no_task(cluster_state):
    """A worker that does not know the question is there, with nothing to say."""
    cluster_state.add(
        ClusterSnapshot(time=0.0, answers={"w": {"error": "KeyError('batch_stats')"}})
    )

    assert [("w", 0)] == [(worker.name, worker.tasks) for worker in cluster_state.workers()]
