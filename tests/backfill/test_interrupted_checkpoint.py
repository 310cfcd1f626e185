"""What a signal interrupts counts if it is written, and nothing counts that is not."""

from __future__ import annotations

import datetime as dt

import pytest

from celery_batch.backfill.checkpoint import Checkpoint
from celery_batch.backfill.window import Answer, Row
from celery_batch.errors import BackfillError

ABOUT = {"task": "double", "input": "12 abc"}


def answered(*positions):
    """Return an answer for each position."""
    return [Answer(Row(n, str(n), (n,)), 2 * n) for n in positions]


class Interrupted:
    """A set of rows whose change is interrupted by Ctrl-C."""

    def __init__(self, own):
        self.own = own

    def __len__(self):
        return len(self.own)

    def add(self, number):
        """Take one in, and be interrupted."""
        self.own.add(number)
        raise KeyboardInterrupt


def test_interrupted_between_counting_and_writing(tmp_path):
    """Rows are done if they are written, and written if they are done."""
    checkpoint = Checkpoint(tmp_path / "out.jsonl", ABOUT)
    checkpoint.add(answered(0))
    checkpoint.sync()
    checkpoint.done = Interrupted(checkpoint.done)
    with pytest.raises(KeyboardInterrupt), checkpoint:
        checkpoint.add(answered(1, 2))

    with Checkpoint(tmp_path / "out.jsonl", ABOUT) as again:
        written = [record["position"] for record in again.records()]
        assert written == [n for n in range(9) if n in again.done] == [0, 1, 2]


def test_what_is_not_of_json_does_not_end_the_job(tmp_path):
    """Bytes, times and halves of characters are written down; what cannot be, has failed."""
    outputs = [b"\xff\x00", dt.date(2026, 1, 2), "\ud800", object()]
    with Checkpoint(tmp_path / "out.jsonl", ABOUT) as checkpoint:
        checkpoint.add(Answer(Row(n, "\udcff", (n,)), each) for n, each in enumerate(outputs))
        found = list(checkpoint.records())

    assert [True, True, True, False] == ["output" in record for record in found]
    assert "\ud800" == found[2]["output"]
    assert found[3]["error"].startswith("TypeError: ")
    assert 1 == checkpoint.failed


def test_what_is_being_written_is_not_forgotten(tmp_path):
    """A command that begins anew does not remove the files of another process."""
    out = tmp_path / "out.jsonl"
    with Checkpoint(out, ABOUT) as checkpoint:
        checkpoint.add(answered(0))
        with pytest.raises(BackfillError, match="another backfill is writing it"):
            Checkpoint.forget(out)
        assert checkpoint.partial.exists()

    Checkpoint.forget(out)
    assert [] == list(tmp_path.iterdir())
