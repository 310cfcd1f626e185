"""The lines of a partial file are as kombu writes them, whatever a model returns."""

from __future__ import annotations

import json
import random
from datetime import UTC, datetime
from decimal import Decimal
from enum import IntEnum
from uuid import UUID

import pytest
from kombu.utils.json import dumps

from celery_batch.backfill.checkpoint import Checkpoint
from celery_batch.backfill.window import Answer, Row

#: Texts with quotes, breaks, characters of all widths, and halves of them.
TEXTS = ["", "a", 'say "no"', "\\", "a\nb", "\u2028", "ä€", "\U0001f600", "\udcff", "\x00\x7f"]

NUMBERS = [0, -1, 10**30, True, None, 0.1, 1e300, float("inf"), float("-inf"), float("nan")]

#: What JSON has no name for, and kombu has.
OTHERS = [
    b"raw",
    b"\xff\x00",
    UUID(int=7),
    Decimal("1.50"),
    datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC),
    IntEnum("Kind", {"ONE": 1}).ONE,
]

#: What JSON cannot represent.
NONE = [object(), {(1, 2): 3}, {1, 2}, 10**5000]


def value(choose, depth=0):
    """Return a value of any kind that can be written."""
    if depth == 3 or choose.random() < 0.5:
        return choose.choice(TEXTS + NUMBERS + OTHERS)
    many = range(choose.randrange(4))
    if choose.random() < 0.5:
        kind = choose.choice((list, tuple))
        return kind(value(choose, depth + 1) for _ in many)
    names = [*TEXTS, 1, None, True, 0.5]
    return {choose.choice(names): value(choose, depth + 1) for _ in many}


def line(answer):
    """Return an answer's line by the book: a whole record at once, in kombu's JSON."""
    row = {"position": answer.row.position, "key": answer.row.key, "line": answer.row.line}
    end = {"error": answer.error} if answer.error else {"output": answer.output}
    return dumps(row | end) + "\n"


def written(path, answers):
    """Return what a checkpoint writes of answers, and how many it says have failed."""
    with Checkpoint(path / "out.jsonl", {}) as checkpoint:
        checkpoint.add(answers)
        text = checkpoint.partial.read_text().partition("\n")[2]  # behind what they are of
        return text, checkpoint.failed


@pytest.mark.parametrize("seed", range(20))
def test_any_output_and_name_is_written_as_kombu_writes_them(tmp_path, seed):
    """Whatever can be written is, to the byte, what kombu makes of the record."""
    choose = random.Random(seed)  # noqa: S311
    rows = [Row(n, choose.choice(TEXTS), (n,), line=choose.randrange(3)) for n in range(200)]
    answers = [
        Answer(row, value(choose), error=choose.choice(["", "", 'E: "x"\udcff'])) for row in rows
    ]

    text, failed = written(tmp_path, answers)

    assert "".join(map(line, answers)) == text
    assert sum(bool(answer.error) for answer in answers) == failed


@pytest.mark.parametrize("output", NONE, ids=["object", "key", "set", "digits"])
def test_an_output_that_cannot_be_written_is_an_error(tmp_path, output):
    """Its row has failed with what kombu says of it, and the one after it is written."""
    row = Row(0, "0", (0,))
    try:
        dumps(output)
    except (TypeError, ValueError) as error:
        said = f"{type(error).__name__}: {error}"

    text, failed = written(tmp_path, [Answer(row, output), Answer(Row(1, "1", (1,)), 2)])

    first, second = map(json.loads, text.splitlines())
    assert (said, 2, 1) == (first["error"], second["output"], failed)
