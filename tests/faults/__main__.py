"""``make faults``: every fault with many seeds, and a table of what became of the items."""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

from tests.faults.fault import Fault
from tests.faults.faults import FAULTS
from tests.faults.report import table, write_json
from tests.faults.trial import KINDS, try_fault
from tests.faults.verdict import Verdict
from tests.services.servers.rabbitmq import RabbitMQServer

_console = Console()


def main() -> int:
    """Try the faults and print the table; 1 if a promise was broken."""
    options = _options()
    chosen = [
        (fault, broker, processes)
        for broker in ("redis", "rabbitmq")
        if options.broker in (broker, None)
        for fault in FAULTS
        if broker in fault.brokers and (not options.only or fault.name in options.only)
        for processes in (1, 2)
        if options.processes in (processes, None)
    ]
    verdicts: list[Verdict] = []
    with _rabbitmq(needed=any(broker == "rabbitmq" for _, broker, _ in chosen)) as rabbitmq:
        for seed in range(options.first_seed, options.first_seed + options.seeds):
            for fault, broker, processes in chosen:
                server = rabbitmq if broker == "rabbitmq" else None
                verdicts += _tried(fault, seed, processes, server, options)
                if options.json:
                    write_json(verdicts, options.json)
    _console.print(table(verdicts))
    return 0 if len(verdicts) == len(chosen) * options.seeds and all(v.ok for v in verdicts) else 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("only", nargs="*", help="faults by name; all unless named")
    parser.add_argument("--seeds", type=int, default=10, help="trials of each shape (10)")
    parser.add_argument("--first-seed", type=int, default=0, help="to repeat one (0)")
    parser.add_argument("--broker", choices=("redis", "rabbitmq"), help="both unless named")
    parser.add_argument("--processes", type=int, choices=(1, 2), help="both unless named")
    parser.add_argument("--task", choices=KINDS, default="", help="by chance unless named")
    parser.add_argument("--items", type=int, default=0, help="as many as each fault says (0)")
    parser.add_argument("--patience", type=float, default=40.0, help="seconds to an answer (40)")
    parser.add_argument("--json", type=Path, help="write every verdict to this file")
    parser.add_argument("--keep", type=Path, help="leave logs and ledgers in this folder")
    options = parser.parse_args()
    if unknown := set(options.only) - {fault.name for fault in FAULTS}:
        parser.error(f"no such fault: {', '.join(sorted(unknown))}")
    return options


def _tried(
    fault: Fault,
    seed: int,
    processes: int,
    rabbitmq: RabbitMQServer | None,
    options: argparse.Namespace,
) -> list[Verdict]:
    """Return a list of one verdict, or of none where the trial itself broke down."""
    broker = "rabbitmq" if rabbitmq else "redis"
    keep = options.keep and options.keep / f"{fault.name}-{broker}-{processes}-{seed}"
    if keep:
        shutil.rmtree(keep, ignore_errors=True)
    try:
        verdict = try_fault(
            fault,
            seed,
            processes=processes,
            rabbitmq=rabbitmq,
            task=options.task,
            size=options.items,
            patience=options.patience,
            keep=keep,
        )
    except Exception:  # noqa: BLE001 (the others are still worth their time)
        _console.print(
            f"{fault.name} on {broker}, -c {processes}, seed {seed}: no trial", style="bold red"
        )
        _console.print_exception()
        return []
    counts = f"lost {verdict.lost}, hung {verdict.hung}, wrong {verdict.wrong}"
    again = f"run again {verdict.repeated}, excused {verdict.excused}, left {verdict.left}"
    recovery = "-" if verdict.recovery is None else f"{verdict.recovery:.1f} s"
    _console.print(
        f"{verdict.name}: {counts}, {again}, recovery {recovery}",
        style=None if verdict.ok else "bold red",
        highlight=False,
    )
    for note in verdict.notes[:5]:
        _console.print(f"    {note}", highlight=False)
    return [verdict]


@contextmanager
def _rabbitmq(*, needed: bool) -> Iterator[RabbitMQServer | None]:
    if not needed:
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="rabbit-") as folder, RabbitMQServer(folder) as server:
        yield server


if __name__ == "__main__":
    sys.exit(main())
