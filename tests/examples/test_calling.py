"""The example that calls a task in every way."""

from __future__ import annotations

import json

from examples import calling
from tests.services.setup import ROOT, Setup


def test_every_way_has_the_same_outputs(setup: Setup):
    """One by one, at once, as a chunk, in a coroutine, as a backfill."""
    setup.worker("-c", "1")
    outputs = calling.main(setup.double, ["ab", "c"])

    assert {name: ["abab", "cc"] for name in calling.WAYS} == outputs


def test_sentences_are_rows_of_the_example_task():
    """Each line of the sample input has a name and a sentence with a word to find."""
    lines = (ROOT / "examples" / "sentences.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]

    assert list(range(1, len(rows) + 1)) == [row["id"] for row in rows]
    assert all("[MASK]" in row["item"] for row in rows)
