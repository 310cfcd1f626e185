"""
Fuzzing the message path, against a real worker that serves valid tasks meanwhile.

A few seconds as a test; ``make fuzz`` takes a minute for each broker.  ``FUZZ_SECONDS`` chooses
otherwise, and ``TEST_SEED`` repeats a run.  What a failed round had sent lies
beside the worker's log.
"""

from __future__ import annotations

import itertools
import json
import os
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import redis
from kombu import Connection

from tests.conftest import Setup
from tests.fuzz.mutants import bytes_mutants, structural_mutants
from tests.plugins.seeds import SEED
from tests.services.hostile import encoded, post, valid

SECONDS = float(os.environ.get("FUZZ_SECONDS", "4"))

#: Messages of each kind in a round, and how many lie between two valid tasks.
ROUND, BETWEEN = 60, 4

#: What the worker says when something went down that must not.
DOWN = (
    "Unrecoverable error",
    "Connection to broker lost",
    "RestartFreqExceeded",
    "exited prematurely",
    "WorkerLostError",
    "Timed out waiting for UP message",
    "Could not finish",
    "Could not run a batch",
)


@dataclass
class Fuzz:
    """
    One run: what was sent, and what became of it.

    Args:
        setup: With a worker.
        send: Sends one message, made or mutated; says whether the broker can carry it.
    """

    setup: Setup
    send: Callable[[Any], bool]
    worker: Any = None
    sent: int = 0
    valid: list[Any] = field(default_factory=list)

    def run(self, seconds: float) -> None:
        """Go on in rounds until the time is up; after each, all valid tasks are answered."""
        self.worker = self.setup.worker("-c", "1")
        pid = self.worker.pid
        end = time.monotonic() + seconds
        for number in itertools.count(SEED * 1_000_000):
            self._round(number)
            assert pid == self.worker.pid
            if time.monotonic() > end:
                break
        for sign in DOWN:
            assert sign not in self.worker.log, f"the worker says {sign!r}: {self.worker.child.log}"

    def _round(self, number: int) -> None:
        payloads: dict[str, Any] = {}
        mutants = [
            *structural_mutants(ROUND, number, payloads),
            *bytes_mutants(ROUND, number, payloads),
        ]
        self._store(payloads)
        record = self.setup.folder / f"round-{number}.json"
        record.write_text(json.dumps([_shown(each) for each in mutants]))
        asked = []
        for at, mutant in enumerate(mutants):
            self.sent += self.send(mutant)
            if at % BETWEEN == 0:
                value: Any = at if at % (2 * BETWEEN) else np.full(5000, at)
                asked.append((value, self.setup.join.delay(value)))
        answers = [result.get(timeout=60) for _, result in asked]

        assert [f"{value}-!" for value, _ in asked] == answers, f"round {number}: {record}"
        self.valid += answers
        record.unlink()

    def _store(self, payloads: dict[str, Any]) -> None:
        """Store what is to be beside messages, for as long as it may matter."""
        with self.setup.memory() as client:
            pipeline = client.pipeline(transaction=False)
            for key, data in payloads.items():
                name = key.encode(errors="surrogatepass")
                if isinstance(data, list):
                    pipeline.rpush(name, *data)
                else:
                    pipeline.set(name, data)
                pipeline.expire(name, 300)
            pipeline.execute()

    def report(self, name: str) -> str:
        """Return the counts as one line."""
        log = self.worker.log
        said = {
            "refused": "Refused a message",
            "unknown": "Received unregistered task",
            "unreadable": "Can't decode message body",
            "unnamed": "Received and deleted unknown message",
            "failed": "raised unexpected",
            "without their values": "InvalidPayload",
            "unheard of": "callback raised exception",  # ordinary tasks; Celery's own
            "ran": "succeeded in",
        }
        counts = Counter({what: log.count(sign) for what, sign in said.items()})
        counts["ran"] -= len(self.valid)
        kinds = ", ".join(f"{what} {count:,}" for what, count in counts.items())
        return (
            f"fuzz on {name}, seed {SEED}: {self.sent:,} hostile messages ({kinds});"
            f" {len(self.valid):,} valid tasks, all answered; 0 crashes"
        )


def _shown(mutant: Any) -> str:
    return mutant.decode("latin-1") if isinstance(mutant, bytes) else repr(mutant)


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str]) -> Callable[[str], None]:
    """Print a line that is seen without asking for it."""

    def say(line: str) -> None:
        with capsys.disabled():
            print(f"\n{line}")  # noqa: T201 (the counts are what the run is for)

    return say


@pytest.mark.timeout(SECONDS * 3 + 180)
def test_redis_worker_survives_fuzzed_messages(setup: Setup, say: Callable[[str], None]):
    """Whatever lies in its lists, the worker answers every valid task and never goes down."""
    lists = itertools.cycle(["celery", "celery", "celery\x06\x163", "celery\x06\x169"])
    client: redis.Redis = setup.memory()

    def send(mutant: Any) -> bool:
        try:
            raw = mutant if isinstance(mutant, bytes) else encoded(mutant)
        except UnicodeEncodeError:
            return False
        client.lpush(next(lists), raw)
        return True

    fuzz = Fuzz(setup, send)
    fuzz.run(SECONDS)
    client.close()
    say(fuzz.report("Redis"))

    assert fuzz.sent > len(fuzz.valid)


@pytest.mark.timeout(SECONDS * 3 + 180)
def test_rabbitmq_worker_survives_fuzzed_messages(rabbit_setup: Setup, say: Callable[[str], None]):
    """The same with whatever AMQP can carry."""
    connection = Connection(rabbit_setup.url)

    def send(mutant: Any) -> bool:
        if isinstance(mutant, bytes):
            mutant = {**valid("shop.join"), "body": mutant}
        try:
            return post(connection.default_channel, mutant)
        except connection.connection_errors:  # the server has hung up on the sender
            connection.release()
            return False

    fuzz = Fuzz(rabbit_setup, send)
    fuzz.run(SECONDS)
    connection.release()
    say(fuzz.report("RabbitMQ"))

    assert fuzz.sent > len(fuzz.valid)
