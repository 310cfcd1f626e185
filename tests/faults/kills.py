"""``python -m tests.faults.kills``: many kills in each trial, and what becomes of large arrays."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from random import Random

from tests.faults.fault import Fault
from tests.faults.process_faults import restart
from tests.faults.setup import Needs, Setup
from tests.faults.trial import try_fault
from tests.services.servers.rabbitmq import RabbitMQServer

_KILLS = 8

#: How often a pool process, else a worker, else Redis is killed.
_OF_POOL, _OF_WORKERS = 0.6, 0.85


class ManyKills(Fault):
    """SIGKILL to pool processes, workers and Redis, again and again under load."""

    name = "many-kills"
    keeps_striking = breaks_sending = True
    size = 600
    #: Who is killed so often by chance is no poison.
    needs = Needs(seconds_per_item=0.03, conf={"batch_max_worker_losses": 50})

    def __init__(self, broker: str) -> None:
        self._has_redis = broker == "redis"
        #: By what was killed.
        self.kills: Counter[str] = Counter()

    def inject(self, setup: Setup, chance: Random) -> None:
        """Kill one after the other; a worker and Redis are started again."""
        for _ in range(_KILLS):
            dice = chance.random()
            if dice < _OF_POOL:
                self._kill_process(setup, chance)
            elif dice < _OF_WORKERS or not self._has_redis:
                setup.victims |= set(setup.workers[0].signal(signal.SIGKILL))
                self.kills["worker"] += 1
                restart(setup)
            else:
                setup.victims |= set(setup.pool())
                setup.broker.kill()
                self.kills["redis"] += 1
                time.sleep(0.5)
                setup.broker.revive()
            time.sleep(chance.uniform(0.4, 1.2))

    def _kill_process(self, setup: Setup, chance: Random) -> None:
        deadline = time.monotonic() + 20
        while not (pool := setup.pool()) and time.monotonic() < deadline:
            time.sleep(0.05)
        victim = chance.choice(pool)
        setup.victims.add(victim)
        os.kill(victim, signal.SIGKILL)
        self.kills["process"] += 1


def main() -> int:
    """Try, and print what was killed and what became of the items; 1 if a promise was broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.kills", description=__doc__)
    parser.add_argument("--trials", type=int, default=25, help=f"of {_KILLS} kills each (25)")
    parser.add_argument("--first-seed", type=int, default=0, help="to repeat one (0)")
    parser.add_argument("--broker", choices=("redis", "rabbitmq"), default="redis")
    options = parser.parse_args()
    fault, found = ManyKills(options.broker), Counter[str]()
    with ExitStack() as stack:
        rabbitmq = None
        if options.broker == "rabbitmq":
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="rabbit-"))
            rabbitmq = stack.enter_context(RabbitMQServer(folder))
        for seed in range(options.first_seed, options.first_seed + options.trials):
            task, processes = ("plain", "options")[seed // 2 % 2], 1 + seed % 2
            verdict = try_fault(
                fault, seed, processes=processes, rabbitmq=rabbitmq, task=task, patience=60.0
            )
            counts = {
                name: getattr(verdict, name)
                for name in ("accepted", "lost", "hung", "wrong", "excused", "left", "stored")
            }
            counts["without_payload"] = sum("InvalidPayload" in note for note in verdict.notes)
            found.update(counts, ok=verdict.ok)
            print(verdict.name, counts, *verdict.notes[:4], sep="\n    ", flush=True)  # noqa: T201
    print(f"kills {dict(fault.kills)}, items {dict(found)}")  # noqa: T201
    return 0 if found["ok"] == options.trials else 1


if __name__ == "__main__":
    sys.exit(main())
