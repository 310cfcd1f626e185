"""One fault, once: send under load, strike, send on, wait, judge."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from random import Random

from tests.faults.clients import Item
from tests.faults.fault import Fault
from tests.faults.setup import Setup
from tests.faults.verdict import Evidence, Verdict, judge
from tests.services.servers.rabbitmq import RabbitMQServer

__all__ = ["KINDS", "try_fault"]

#: Tasks of a trial: a batch task, one with all options by which batches are chosen, and one that
#: is written for celery-batches.
KINDS = ("plain", "options", "requests")

#: Items that harm their batch, where the fault is theirs.
_HARMFUL = 4


def try_fault(
    fault: Fault,
    seed: int,
    *,
    processes: int,
    rabbitmq: RabbitMQServer | None = None,
    task: str = "",
    size: int = 0,
    patience: float = 25.0,
    keep: Path | None = None,
) -> Verdict:
    """
    Try one fault on a fresh setup.

    Args:
        fault: What goes wrong.
        seed: Of the moment, the victim and everything else left to chance.
        processes: Pool processes of each worker; with one, batches overlap in it.
        rabbitmq: The broker, running; a Redis of the trial's own if None.
        task: "plain", "options" or "requests": what kind of task it is; by chance if "".
        size: How many items; as many as the fault's if 0.
        patience: Seconds after the fault until an item without an answer counts as lost.
        keep: Where logs and ledger are left; by default they are removed.
    """
    chance = Random(f"{fault.name} {processes} {seed}")
    items = _items(fault, chance, size or fault.size)
    chosen = chance.choice(KINDS)
    task = task or chosen
    broker = "rabbitmq" if rabbitmq else "redis"
    verdict = Verdict(fault.name, broker, processes, seed, task)
    with tempfile.TemporaryDirectory(prefix="faults-") as folder:
        place = keep or Path(folder)
        place.mkdir(parents=True, exist_ok=True)
        with Setup(fault.needs, place, rabbitmq, patience, processes, task=task) as setup:
            evidence = _play(fault, setup, items, chance, patience)
    return judge(fault, evidence, verdict)


def _items(fault: Fault, chance: Random, size: int) -> list[Item]:
    harmful = chance.sample(range(size), _HARMFUL) if fault.mood else ()
    return [
        Item(number, mood=fault.mood if number in harmful else "good") for number in range(size)
    ]


def _play(
    fault: Fault, setup: Setup, items: list[Item], chance: Random, patience: float
) -> Evidence:
    setup.answers.expect(item.id for item in items)
    early = len(items) * 2 // 3
    setup.clients.send(items[:early])
    setup.ledger.wait_for(chance.randint(early // 20, early // 2), timeout=60)
    time.sleep(chance.uniform(0.0, 0.03))  # anywhere in a batch
    veterans = set(setup.pool())
    injected = time.monotonic()
    fault.inject(setup, chance)
    struck = time.monotonic()
    time.sleep(fault.lasts)
    fault.clear(setup)
    cleared = time.monotonic()
    setup.clients.send(items[early:])
    setup.clients.join()
    setup.answers.wait((item.id for item in items if item.accepted), patience)
    setup.settle(timeout=3.0)
    setup.stop_workers()
    lost = [each for worker in setup.workers for each in worker.lost_broker()]
    return Evidence(
        items=items,
        runs=setup.ledger.by_item(),
        first=dict(setup.answers.first),
        last=setup.answers.look(item.id for item in items),
        left=setup.broker.left(),
        payloads=setup.payloads(),
        injected=injected,
        struck=struck,
        cleared=cleared,
        victims=setup.victims,
        veterans=veterans,
        noticed=min((each for each in lost if each > injected), default=struck),
    )
