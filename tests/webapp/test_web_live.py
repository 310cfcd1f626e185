"""The live stream: one look a second for everybody, and nobody is waited for."""

from __future__ import annotations

import asyncio
import json
import signal
import threading
import time
from contextlib import aclosing, closing

from celery_batch.cli.child import wait_until
from webapp.closing import on_stop
from webapp.latencies import Latencies
from webapp.live import Live

#: Seconds between two looks here; a test does not wait for whole ones.
PAUSE = 0.02


class Looks:
    """Something to look at, which counts how often that is done and by whom."""

    def __init__(self):
        self.count = 0
        self.threads = set()
        self.rests = 0

    def __call__(self):
        """Look."""
        self.count += 1
        self.threads.add(threading.current_thread().name)
        return {"count": self.count}

    def rest(self):
        """Look no more."""
        self.rests += 1


def counts(chunks):
    """Return what the data of server-sent events counted."""
    return [json.loads(each[6:])["count"] for each in chunks if each.startswith("data: ")]


def living():
    """Return how many threads look."""
    return sum(thread.name == "live" for thread in threading.enumerate())


def gone():
    """Return why a thread still looks, "" when none does."""
    return "" if not living() else "it still looks"


def test_a_viewer_is_told_each_look():
    """The first words say when to come back; then comes one event for each look."""
    live = Live(Looks(), pause=PAUSE)
    with closing(iter(live.stream())) as stream:
        told = [next(stream) for _ in range(4)]
    live.stop()

    assert "retry: 2000\n\n" == told[0]
    assert [1, 2, 3] == counts(told)


def test_a_thousand_viewers_share_one_look():
    """However many look, one thread looks for all of them, at its own pace."""
    looks = Looks()
    live = Live(looks, pause=PAUSE)

    async def watch():
        """Read a stream."""
        async with aclosing(aiter(live.stream())) as stream:
            return counts([await anext(stream) for _ in range(3)])

    async def crowd():
        """Have all of them watch at once."""
        return await asyncio.gather(*(watch() for _ in range(1000)))

    told = asyncio.run(crowd())
    live.stop()

    assert 1000 == len([each for each in told if len(each) == 2])
    assert {"live"} == looks.threads
    assert looks.count < 100


def test_nobody_looks_when_nobody_wants_to_know(monkeypatch):
    """The thread ends with the last viewer, lets go of what it held, and starts again."""
    monkeypatch.setattr("webapp.live._LINGER", 0.0)
    looks = Looks()
    live = Live(looks, rest=looks.rest, pause=PAUSE)
    for _ in range(2):
        with closing(iter(live.stream())) as stream:
            next(stream)
            next(stream)
        wait_until(gone, [], what="no thread", timeout=60)

    assert 2 == looks.rests


def test_a_slow_viewer_misses_what_is_old():
    """Who reads late gets the newest look, and no text is kept for them."""
    looks = Looks()
    live = Live(looks, pause=PAUSE)
    with closing(iter(live.stream())) as stream:
        next(stream)
        first = counts([next(stream)])[0]
        wait_until(lambda: "" if looks.count > first + 3 else "few", [], what="looks", timeout=60)
        second = counts([next(stream)])[0]
    live.stop()

    assert second > first + 1


def test_viewers_take_few_threads(monkeypatch):
    """Beyond a few at a time, a viewer in a thread gets one look and is sent off."""
    monkeypatch.setattr("webapp.live._LIFE", 60.0)
    live = Live(Looks(), threads=1, pause=PAUSE)
    with closing(iter(live.stream())) as seated:
        next(seated)
        passing = list(live.stream())
        told = [next(seated), next(seated)]
    live.stop()

    assert 1 == len(counts(passing))
    assert 2 == len(counts(told))


def test_a_stream_ends_by_itself(monkeypatch):
    """Its life is limited, in a thread and on an event loop."""
    monkeypatch.setattr("webapp.live._LIFE", 0.2)
    live = Live(Looks(), pause=PAUSE)

    async def watch():
        """Read a stream."""
        return [chunk async for chunk in live.stream()]

    in_thread, on_loop = list(live.stream()), asyncio.run(watch())
    live.stop()

    assert min(len(in_thread), len(on_loop)) > 2


def test_a_signal_ends_all_streams():
    """A server told to stop does not have to wait for who looks, and its own handler runs."""
    heard = []
    before = signal.signal(signal.SIGTERM, lambda number, _frame: heard.append(number))
    try:
        live = Live(Looks(), pause=PAUSE)
        on_stop(live.stop)
        stream = iter(live.stream())
        next(stream)
        signal.raise_signal(signal.SIGTERM)
        began = time.monotonic()
        rest = list(stream)
        took = time.monotonic() - began
    finally:
        signal.signal(signal.SIGTERM, before)

    assert [signal.SIGTERM] == heard
    assert len(rest) < 3
    assert took < 20


def test_a_failing_look_does_not_end_the_stream():
    """The line stays, and the next look may succeed."""
    answers = iter([ValueError("no"), {"count": 7}, {"count": 8}])

    def look():
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    live = Live(look, pause=PAUSE)
    with closing(iter(live.stream())) as stream:
        told = [next(stream) for _ in range(3)]
    live.stop()

    assert ": still here\n\n" == told[1]
    assert [7] == counts(told)


def test_percentiles_are_those_of_the_last_seconds():
    """What is older does not count; a percentile is a time that some request took."""
    now = [0.0]
    latencies = Latencies(lambda: now[0])
    latencies.observe(99.0)
    now[0] = 11.0
    for number in range(1, 101):
        latencies.observe(number / 1000)

    said = {"requests": 100, "window": 10.0, "p50": 0.05, "p95": 0.095, "p99": 0.099}
    assert said == latencies.summary()


def test_no_request_has_no_percentiles():
    """Where nobody has asked, nothing is claimed."""
    said = {"requests": 0, "window": 10.0, "p50": None, "p95": None, "p99": None}

    assert said == Latencies().summary()
