"""What a frame of ``celery batch top`` shows."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from celery_batch.cli.top_frame import frame
from celery_batch.cluster.state import ClusterSnapshot, ClusterState


@pytest.fixture
def drawn():
    """Draw what some looks have found, as plain text of so many columns."""

    def drawn(*looks, columns=120):
        cluster_state = ClusterState({"tasks.infill": "celery"}, 10.0)
        for look in looks:
            cluster_state.add(look)
        console = Console(file=io.StringIO(), width=columns)
        console.print(frame(cluster_state, "redis://here", "12:00:00", width=columns))
        return console.file.getvalue()

    return drawn


def look(time, batches, **sizes):
    """Return a look at one worker with one task."""
    task = {
        "served": True,
        "waiting": 5,
        "oldest_age": 0.125,
        "max_batch_size": 48,
        "batches": batches,
        "rows": 10 * batches,
        "ended": batches,
        "model": {"seconds": 0.02 * batches},
        "wait": {"buckets": {"0.003": 0, "0.005": 18 * batches, "1": 0, "1.5": 2 * batches}},
        "sizes": {size.removeprefix("upto"): [count, 0] for size, count in sizes.items()},
    }
    about = {"processes": 2, "seconds": time, "device_idle_seconds": time, "devices": ["cuda:0"]}
    return ClusterSnapshot(
        time=time,
        answers={"w1@host": {**about, "tasks": {"tasks.infill": task}}},
        depths={"celery": 1234},
    )


def test_a_loaded_worker(drawn):
    """Rates, sizes, waits, model and device time stand where their columns say."""
    lines = drawn(look(0.0, 0), look(2.0, 40, upto1=4, upto16=32, upto64=4)).splitlines()
    task = next(line for line in lines if line.startswith("tasks.infill"))
    worker = next(line for line in lines if line.startswith("w1@host"))
    bars = [line.split() for line in lines if "%" in line and "█" in line]

    assert "rates over 2 s  12:00:00" in lines[0]
    assert "messages in the broker: celery 1,234" in lines
    assert task.split() == [
        "tasks.infill", "1", "5", "125", "ms", "0", "200", "20.0", "10.0", "of", "48",
        "20", "ms", "4.11", "ms", "1.25", "s",
    ]  # fmt: skip
    assert ["w1@host", "ready", "2", "1", "5", "0", "200", "50%", "cuda:0"] == worker.split()
    assert [["1", "4", "10%"], ["9", "to", "16", "32", "80%"], ["33", "to", "48", "4", "10%"]] == [
        [word for word in bar if "█" not in word] for bar in bars
    ]
    assert [4, 32, 4] == [bar.count("█") for bar in ("".join(words) for words in bars)]


def test_a_task_with_a_cost_shows_it(drawn):
    """Its limit is a cost and no number of rows, and the share of padding is shown."""
    looks = [look(0.0, 0), look(2.0, 40, upto16=40)]
    for each, cost in zip(looks, (0.0, 300.0), strict=True):
        task = each.answers["w1@host"]["tasks"]["tasks.infill"]
        task |= {"max_batch_size": 1024, "max_batch_cost": 2048.0}
        task |= {"cost": cost, "padded_cost": cost / 0.75}
    shown = drawn(*looks, columns=140)

    assert "10.0 of cost 2,048" in shown
    assert "padding" in shown
    assert "25%" in next(line for line in shown.splitlines() if line.startswith("tasks.infill"))
    assert "1024" not in shown


def test_padding_rows_are_padding(drawn):
    """So are rows that fill calls up to fixed sizes; without either there is no column."""
    looks = [look(0.0, 0), look(2.0, 40)]
    assert "padding" not in drawn(*looks, columns=140)
    for each, rows in zip(looks, (0, 100), strict=True):
        each.answers["w1@host"]["tasks"]["tasks.infill"]["padding_rows"] = rows
    shown = drawn(*looks, columns=140)

    assert "20%" in next(line for line in shown.splitlines() if line.startswith("tasks.infill"))


def test_a_task_with_a_latency_target_shows_what_it_misses(drawn):
    """The share of late results and the rate of refused requests are of the last seconds."""
    looks = [look(0.0, 0), look(2.0, 40)]
    assert "refused/s" not in drawn(*looks, columns=140)
    for each, count in zip(looks, (50, 80), strict=True):
        latency = {"in_time": 3 * count, "late": count, "refused": count - 25}
        each.answers["w1@host"]["tasks"]["tasks.infill"]["latency"] = latency
    shown = drawn(*looks, columns=140)

    row = next(line for line in shown.splitlines() if line.startswith("tasks.infill"))
    assert "wait p95  late  refused/s" in shown
    assert ["25%", "15.0"] == row.split()[-2:]


def test_nothing_is_known_yet(drawn):
    """Without a worker it says what to do, and shows dots where it knows nothing."""
    shown = drawn(ClusterSnapshot(time=0.0))

    assert "No worker answers. Start one" in shown
    assert "no rates yet" in shown
    assert "·" in next(line for line in shown.splitlines() if line.startswith("tasks.infill"))


def test_the_broker_is_away(drawn):
    """A broker that does not answer is said, beside what was known before."""
    shown = drawn(look(0.0, 5), ClusterSnapshot(time=1.0, error="connection refused"))

    assert "The broker does not answer (connection refused)" in shown
    assert "silent" in shown


@pytest.mark.parametrize("columns", [40, 60, 80, 200])
def test_any_width_will_do(drawn, columns):
    """On a narrow terminal what matters less is left out, and what is there is whole."""
    shown = drawn(look(0.0, 0), look(1.0, 40, upto1=4), columns=columns)
    head = next(line.split() for line in shown.splitlines() if line.startswith("task"))

    assert columns >= max(map(len, shown.splitlines()))
    assert ["task", "rows/s"] == [name for name in head if name in ("task", "rows/s")]
    assert (columns == 200) == ("running" in head)
    assert "…" not in shown.split("sizes of", maxsplit=1)[0].split("messages in", maxsplit=1)[1]
