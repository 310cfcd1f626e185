"""What is on disk says what was answered, whenever the process ended."""

from __future__ import annotations

import os
import stat

import pytest

from celery_batch.backfill.checkpoint import Checkpoint
from celery_batch.backfill.window import Answer, Row
from celery_batch.errors import BackfillError

ABOUT = {"task": "double", "input": "12 abc"}


def answered(*positions):
    """Return an answer for each position."""
    return [Answer(Row(n, str(n), (n,)), 2 * n) for n in positions]


def test_what_was_synced_is_there_again(tmp_path):
    """A checkpoint opened again knows what was answered."""
    with Checkpoint(tmp_path / "out.jsonl", ABOUT) as checkpoint:
        checkpoint.add(answered(0, 1, 5))

    with Checkpoint(tmp_path / "out.jsonl", ABOUT) as checkpoint:
        assert [0, 1, 5] == [n for n in range(9) if n in checkpoint.done]
        assert [0, 2, 10] == [record["output"] for record in checkpoint.records()]


def test_half_a_line_is_cut_off(tmp_path):
    """A line that was being written when the power went does not count."""
    with Checkpoint(tmp_path / "out.jsonl", ABOUT) as checkpoint:
        checkpoint.add(answered(0))
    with checkpoint.partial.open("a") as file:
        file.write('{"position": 1, "key": "1", "outp')

    with Checkpoint(tmp_path / "out.jsonl", ABOUT) as checkpoint:
        checkpoint.add(answered(1))
        assert [0, 1] == [record["position"] for record in checkpoint.records()]


@pytest.mark.parametrize(
    "key", ["a", '"', "\\", '\\"', "\0\n", "é\udcff", '", "line": 1, "error": ']
)
def test_rows_are_known_whatever_their_names(tmp_path, key):
    """A name may look like any part of a line."""
    with Checkpoint(tmp_path / "out.jsonl", ABOUT) as checkpoint:
        checkpoint.add([Answer(Row(3, key, (1,)), [key]), Answer(Row(5, key, (2,)), error="E: no")])

    with Checkpoint(tmp_path / "out.jsonl", ABOUT) as checkpoint:
        assert [3, 5] == [n for n in range(9) if n in checkpoint.done]
        assert 1 == checkpoint.failed
        assert [key, key] == [record["key"] for record in checkpoint.records()]


def killed(checkpoint):
    """Leave what a checkpoint's process leaves that is killed."""
    checkpoint._file.close()


def test_what_a_killed_command_has_answered_counts(tmp_path):
    """What was taken in outlives its process, whether it was synced or not."""
    checkpoint = Checkpoint(tmp_path / "out.jsonl", ABOUT)
    checkpoint.add(answered(0, 1))
    checkpoint.add([Answer(Row(2, "2", (2,)), error="ValueError: no")])
    killed(checkpoint)

    with Checkpoint(tmp_path / "out.jsonl", ABOUT) as checkpoint:
        assert (3, 1) == (len(checkpoint.done), checkpoint.failed)
        checkpoint.add(answered(3))
        assert [0, 1, 2, 3] == [record["position"] for record in checkpoint.records()]


def test_a_new_files_name_outlives_a_power_cut(tmp_path, monkeypatch):
    """The folder is synced with the first answers: its entry is all that leads to the file."""
    synced, sync = [], os.fsync

    def noted(handle):
        synced.append(stat.S_ISDIR(os.fstat(handle).st_mode))
        sync(handle)

    monkeypatch.setattr(os, "fsync", noted)
    with Checkpoint(tmp_path / "out.jsonl", ABOUT) as checkpoint:
        checkpoint.add(answered(0))
        first = list(synced)
        checkpoint.sync()

    assert [False, True] == first
    assert [False] * len(synced[2:]) == synced[2:]


@pytest.mark.parametrize(
    "hole",
    [
        b"\0" * 40 + b"\n",
        b'{"position": 7, "key": "7", "line": 0, "output": [1, \0\0\0\0]}\n',
        b"{}\n",
        b"7\n",
        b'{"position": 0, "key": "0", "line": 0, "output": 1}\n',
    ],
    ids=["zeros", "zeros in a row", "no row", "no line of ours", "a row twice"],
)
def test_what_follows_a_hole_does_not_count(tmp_path, hole):
    """Where a power cut has left something else, all from there on is asked again."""
    checkpoint = Checkpoint(tmp_path / "out.jsonl", ABOUT)
    checkpoint.add(answered(0, 1))
    killed(checkpoint)
    lines = checkpoint.partial.read_bytes().splitlines(keepends=True)
    checkpoint.partial.write_bytes(lines[0] + lines[1] + hole + lines[2])

    with Checkpoint(tmp_path / "out.jsonl", ABOUT) as checkpoint:
        assert 0 in checkpoint.done
        assert 1 == len(checkpoint.done)
        assert lines[0] + lines[1] == checkpoint.partial.read_bytes()


def test_another_command_does_not_get_a_killed_ones_answers(tmp_path):
    """They are of the task and the input that the first line names."""
    checkpoint = Checkpoint(tmp_path / "out.jsonl", ABOUT)
    checkpoint.add(answered(0))
    killed(checkpoint)

    with pytest.raises(BackfillError, match="the input has changed since"):
        Checkpoint(tmp_path / "out.jsonl", ABOUT | {"input": "13 abd"})


@pytest.mark.parametrize("line", ["mine\n", "{}\n", "7\n", '{"position": 0, "output": 1}\n'])
def test_a_file_of_no_backfill_is_refused(tmp_path, line):
    """It was overwritten: the error names it, and the way out; it stays as it is."""
    partial = tmp_path / "out.jsonl.partial"
    partial.write_text(line)

    with pytest.raises(BackfillError, match=r"out\.jsonl\.partial: cannot be read: .*--restart"):
        Checkpoint(tmp_path / "out.jsonl", ABOUT)

    assert line == partial.read_text()


@pytest.mark.parametrize("begun", ['{"about": {"task": "dou', "\0" * 200])
def test_half_a_first_line_is_no_answer(tmp_path, begun):
    """What was being written first when the power went does not count."""
    (tmp_path / "out.jsonl.partial").write_text(begun)

    with Checkpoint(tmp_path / "out.jsonl", ABOUT) as checkpoint:
        assert ([], 0) == (list(checkpoint.records()), len(checkpoint.done))
        checkpoint.add(answered(0))

    with Checkpoint(tmp_path / "out.jsonl", ABOUT) as checkpoint:
        assert [0] == [record["output"] for record in checkpoint.records()]


def test_another_input_is_refused(tmp_path):
    """What was answered of another input or task is not gone on with."""
    with Checkpoint(tmp_path / "out.jsonl", ABOUT) as checkpoint:
        checkpoint.add(answered(0))

    with pytest.raises(BackfillError, match=r"partial: the input has changed since; use --restart"):
        Checkpoint(tmp_path / "out.jsonl", ABOUT | {"input": "13 abd"})


def test_nothing_is_left_of_nothing(tmp_path):
    """A command that was wrong, or stopped before its first answer, leaves no file."""
    Checkpoint(tmp_path / "out.jsonl", ABOUT).close()

    assert [] == list(tmp_path.iterdir())


def test_where_nothing_was_answered_anything_may_change(tmp_path):
    """Where a process was killed before its first answer, any other command may begin."""
    checkpoint = Checkpoint(tmp_path / "out.jsonl", ABOUT)
    checkpoint.add(answered(0))
    killed(checkpoint)
    head, _ = checkpoint.partial.read_text().splitlines(keepends=True)
    checkpoint.partial.write_text(head)
    other = ABOUT | {"field": "text", "input": "13 abd"}

    with Checkpoint(tmp_path / "out.jsonl", other) as checkpoint:
        assert 0 == len(checkpoint.done)
        checkpoint.add(answered(0))

    with Checkpoint(tmp_path / "out.jsonl", other) as checkpoint:
        assert 1 == len(checkpoint.done)


def test_two_at_once_are_refused(tmp_path):
    """One process writes an output at a time."""
    with (
        Checkpoint(tmp_path / "out.jsonl", ABOUT),
        pytest.raises(BackfillError, match="another backfill is writing it"),
    ):
        Checkpoint(tmp_path / "out.jsonl", ABOUT)


def test_failures_are_counted_over_runs(tmp_path):
    """How many rows have failed is known after a restart."""
    with Checkpoint(tmp_path / "out.jsonl", ABOUT) as checkpoint:
        checkpoint.add([Answer(Row(0, "0", (0,)), error="ValueError: no")])

    with Checkpoint(tmp_path / "out.jsonl", ABOUT) as checkpoint:
        assert 1 == checkpoint.failed
        assert "ValueError: no" == next(checkpoint.records())["error"]
