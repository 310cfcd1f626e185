"""Arrivals and costs that are recorded from running workers."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import pytest

from celery_batch.cli.trace import load_of, record
from celery_batch.errors import ConfigurationError
from tests.services.shared_setup import SharedSetup

pytestmark = pytest.mark.alike_on_brokers


def test_a_trace_has_what_arrived_and_what_it_cost(shared: SharedSetup, tmp_path: Path):
    """
    Each request once, with its cost and rows; it can be simulated.

    Workers of other tests, which consume other queues, are not counted.
    """
    path, is_recording, is_done = tmp_path / "trace.jsonl", Event(), Event()

    def report(_: str) -> None:
        """End the recording as Ctrl-C does."""
        is_recording.set()
        if is_done.is_set():
            raise KeyboardInterrupt

    with ThreadPoolExecutor() as pool:
        recording = pool.submit(record, shared.app, "f.tokens", path, 100.0, report)
        assert is_recording.wait(30)
        lengths = [10 + n % 40 for n in range(240)]
        results = shared.tokens.delay_many(["x" * length for length in lengths])
        shared.get(results)
        shared.tokens.delay_rows(["x" * 10, "x" * 30]).get(timeout=30)
        is_done.set()
        count, processes = recording.result(60)
    load = load_of(path, "f.tokens")

    assert (241, 1) == (count, processes) == (len(load.arrivals), 1)
    assert sorted(lengths) == sorted(load.costs[:240])
    assert {"cost": 30.0, "rows": 2}.items() <= json.loads(
        path.read_text().splitlines()[-1]
    ).items()
    assert 0 < load.rate


def test_nothing_arrives(shared: SharedSetup, tmp_path: Path):
    """An empty trace is not written."""
    with pytest.raises(ConfigurationError, match=r"f\.tokens: no request arrived in 0\.1 s"):
        record(shared.app, "f.tokens", tmp_path / "trace.jsonl", 0.1, print)


def test_wrong_arguments_are_refused(shared: SharedSetup):
    """A worker says what is wrong; nothing is recorded."""
    errors = [
        shared.worker.ask("batch_trace", words=words)["error"]
        for words in (["f.tokens", "seconds=soon"], ["f.tokens", "rows=3"], ["f.token"])
    ]

    assert "seconds: must be a number from 0 up, got 'soon'" == errors[0]
    assert "rows" in errors[1]
    assert "did you mean f.tokens" in errors[2]
