"""What is shown of a backfill that runs."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pytest

from celery_batch.backfill.progress import Clock, Progress
from celery_batch.cli import backfill as command
from celery_batch.cli.backfill import line, shown, summary
from celery_batch.cli.common import duration

SOON = Progress(
    done=1200,
    failed=3,
    resumed=200,
    total=5000,
    rate=100.0,
    pending=64,
    window=512,
    workers=2,
    seconds=20.0,
)
OUT = Path("out.jsonl")
DONE = Progress(done=5000, failed=3, resumed=200, total=5000, seconds=64.0, state="writing")


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0, "0 s"),
        (0.1134, "0.11 s"),
        (59.4, "59 s"),
        (61, "1 min 1 s"),
        (7500, "2 h 5 min"),
        (180_000, "2 d 2 h"),
    ],
)
def test_times_are_shown_in_two_units(seconds, words):
    """2 h 5 min, not 7,500 seconds."""
    assert words == duration(seconds)


def test_a_line_says_how_far_it_is():
    """Rows, failures, rate, window, workers, and how long it will take."""
    assert (
        "1,200 of 5,000 rows, 3 failed, 100 a second, 64 of 512 pending, 2 workers, 38 s left"
    ) == line(SOON)


def test_a_line_says_what_is_unusual():
    """That it is paused, that no worker answers, that its end is not known."""
    paused = Progress(done=5, pending=1, window=2, since_answer=75.0, state="paused")

    words = "paused: 5 rows, 0 failed, 0 a second, 1 of 2 pending, no answer for 1 min 15 s"
    assert words == line(paused)


def test_a_paused_job_has_no_end():
    """It depends on when it is resumed, and not on the rate until then."""
    assert (38.0, None) == (SOON.left, replace(SOON, state="paused").left)


def test_the_end_sums_up():
    """What there is, what failed, what an earlier run had answered, and in what time."""
    words = "5,000 rows, 3 failed; 200 answered before; 4,800 in 1 min 4 s, 75 a second"

    assert f"out.jsonl: {words}; see out.jsonl.errors" == summary(OUT, DONE)


def test_a_pause_does_not_make_it_slow(monkeypatch):
    """Seconds for which nothing was to be sent count neither for the rate nor for the average."""
    now = [100.0]
    monkeypatch.setattr("celery_batch.backfill.progress.time.monotonic", lambda: now[0])
    clock, found = Clock(None), []
    for seconds, done, state in (
        (10, 100, "running"),
        (60, 100, "paused"),
        (110, 100, "paused"),
        (111, 110, "running"),
        (112, 120, "running"),
    ):
        now[0], clock.done = 100.0 + seconds, done
        found.append(clock.progress(state=state))

    assert [10.0, 0.0, 0.0, 10.0, 10.0] == [each.rate for each in found]
    assert (100.0, 10.0) == (found[-1].paused, found[-1].average)
    assert summary(OUT, found[-1]).endswith("10 a second; paused for 1 min 40 s")


def test_a_log_has_a_line_now_and_then(monkeypatch, capsys):
    """Without a terminal there is a line each ten seconds, and no bar."""
    now = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    with shown() as show:
        for now[0] in range(25):
            show(SOON)

    assert [line(SOON), line(SOON)] == capsys.readouterr().err.splitlines()


def test_a_terminal_has_a_bar(monkeypatch):
    """With rate, failures, window and workers; what it said last stays."""

    class Terminal(io.StringIO):
        """Stands for a terminal."""

        def isatty(self):
            """Be one."""
            return True

    monkeypatch.setattr("sys.stderr", Terminal())
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setenv("TERM", "xterm")
    with shown() as show:
        show(SOON)
    import sys  # noqa: PLC0415 (the one that was put in place)

    said = sys.stderr.getvalue()
    for words in ("1200/5000", "100/s", "3 failed", "64 of 512 pending, 2 workers"):
        assert words in said


def test_no_bar_is_needed(monkeypatch, capsys):
    """Without the library that draws it there are lines."""
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    monkeypatch.setattr(command, "find_spec", lambda _: None)
    monkeypatch.setattr(command, "_EVERY", 0.0)
    with shown() as show:
        show(DONE)

    assert f"{line(DONE)}\n" == capsys.readouterr().err
