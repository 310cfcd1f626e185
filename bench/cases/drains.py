"""One process sends thousands of single items and waits for all: items/s, ours and the peers'."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from bench.reports.tables import Case, Effort, Goal, ResultTable, shown, spread
from bench.servers.testbed import OURS, Testbed, testbed
from tests.services.servers.rabbitmq import RabbitMQServer, find_rabbitmq_server

__all__ = ["CASES"]

_FULL = 6400

#: Who would take minutes gets fewer items.
_ITEMS = {"celery": 640}

#: How each sends many single items in one call; the model alone has no calls.
_BULK = {
    "ours": "delay_many",
    "celery_batch.batches": "group",
    "celery-batches": "group",
    "celery": "group",
    **dict.fromkeys(("our RedisStreamer", "RedisStreamer"), "submit of all"),
    **dict.fromkeys(("Streamer", "ThreadedStreamer"), "submit of all"),
}

_ON_CELERY = ("ours", "celery_batch.batches", "celery-batches", "celery")

#: Peers whose workers may be on other machines, as ours.
_PEERS = ("RedisStreamer", "celery-batches", "celery")

_ALL = (
    "pure",
    "ours",
    "our RedisStreamer",
    "RedisStreamer",
    "Streamer",
    "ThreadedStreamer",
    "celery_batch.batches",
    "celery-batches",
    "celery",
)


@dataclass(frozen=True, slots=True)
class Drain:
    """One model on several systems."""

    #: The reference model.
    model: str
    #: The systems; the others' rates are divided by that of "pure".
    kinds: tuple[str, ...]
    #: How many workers, one measurement each.
    workers: tuple[int, ...] = (1,)
    #: Measure calls for one item each beside calls for all of them.
    singly: bool = field(default=True)
    #: Send ours over RabbitMQ; the results are kept in Redis.
    rabbitmq: bool = field(default=False)

    def measure(self, effort: Effort) -> dict[str, Any]:
        """Let all take turns, with each number of workers."""
        kinds = [kind for kind in self.kinds if effort.peers or kind in OURS]
        rows: list[dict[str, Any]] = []
        with testbed() as bed, ExitStack() as exits:
            env = {}
            if self.rabbitmq:
                find_rabbitmq_server()
                env["CELERY_BROKER_URL"] = exits.enter_context(RabbitMQServer()).url
            for workers in self.workers:
                rows += self._pool(bed, kinds, workers, effort, env)
        return {"rows": rows}

    def _pool(
        self, bed: Testbed, kinds: list[str], workers: int, effort: Effort, env: dict[str, str]
    ) -> list[dict[str, Any]]:
        runs = [(kind, singly) for kind in kinds for singly in self._ways(kind)]
        rounds: dict[tuple[str, bool], list[dict[str, Any]]] = {run: [] for run in runs}
        with bed.systems(kinds, self.model, workers, **env) as systems:
            for kind, singly in runs:
                n = effort.items(_wanted(kind, workers) // 10)
                systems[kind].ask("drain", n=n, singly=singly)
            for _ in range(effort.rounds):
                for kind, singly in runs:
                    n = effort.items(_wanted(kind, workers))
                    rounds[kind, singly].append(systems[kind].ask("drain", n=n, singly=singly))
        return [_row(run, workers, each) for run, each in rounds.items()]

    def _ways(self, kind: str) -> tuple[bool, ...]:
        """Return whether it sends items singly, in bulk or, in turns, both."""
        return (False, True) if self.singly and kind in _BULK else (False,)


def _wanted(kind: str, workers: int) -> int:
    # The pure loop is one process: what k of them do is k times as much.
    return _FULL // workers if kind == "pure" else _ITEMS.get(kind, _FULL)


def _row(run: tuple[str, bool], workers: int, rounds: list[dict[str, Any]]) -> dict[str, Any]:
    kind, singly = run
    n = rounds[0]["n"]
    times = workers if kind == "pure" else 1

    def middle(figure: Callable[[dict[str, Any]], float]) -> float:
        return median(figure(one) for one in rounds)

    return {
        "kind": kind,
        "call": _call(kind, singly=singly),
        "workers": workers,
        "n": n,
        "rates": [times * n / one["seconds"] for one in rounds],
        "rate": times * middle(lambda one: n / one["seconds"]),
        "submit_rate": middle(lambda one: n / one["submit_seconds"]),
        "client_cpu": middle(lambda one: one["client_cpu"] / n),
        "worker_cpu": middle(lambda one: one["worker_cpu"] / n),
    }


def _call(kind: str, *, singly: bool) -> str:
    one = "delay" if kind in _ON_CELERY else "submit of one"
    return one if singly else _BULK.get(kind, "")


def _called(row: dict[str, Any]) -> str:
    """Return the call of a row; older records have one row a system, and do not name it."""
    kind = row["kind"]
    default = _call(kind, singly=not kind.startswith("our") and kind in _BULK)
    return str(row.get("call", default))


def rate(data: dict[str, Any], *kinds: str, workers: int = 1) -> float | None:
    """Return the median rate of the fastest of these systems; None if none was measured."""
    found = [row for row in data["rows"] if row["kind"] in kinds and row["workers"] == workers]
    return max((float(row["rate"]) for row in found), default=None)


def _ratio(data: dict[str, Any], *kinds: str, workers: int = 1, mine: str = "ours") -> float | None:
    ours, theirs = rate(data, mine, workers=workers), rate(data, *kinds, workers=workers)
    return ours / theirs if ours and theirs else None


def _sheets(title: str) -> Callable[[dict[str, Any]], list[ResultTable]]:
    def make(data: dict[str, Any]) -> list[ResultTable]:
        base = "pure" if rate(data, "pure") else "ours"
        figures = ("workers", "items", "items/s", "slowest to fastest", f"of {shown(base)}")
        rows = [
            (
                shown(row["kind"]),
                _called(row),
                *_figures(row, rate(data, base, workers=row["workers"])),
            )
            for row in data["rows"]
        ]
        note = "Medians of interleaved rounds; ms are CPU time for each item."
        headings = ("", "call", *figures, "client ms", "workers' ms")
        return [ResultTable(title, headings, rows, (note,))]

    return make


def _figures(row: dict[str, Any], base: float | None) -> tuple[str, ...]:
    share = f"{row['rate'] / base:.3f}" if base else ""
    cpu = [f"{1000 * row[process]:.3f}" for process in ("client_cpu", "worker_cpu")]
    counts = (str(row["workers"]), f"{row['n']:,}", f"{row['rate']:,.0f}")
    return (*counts, spread(row["rates"]), share, *cpu)


def _cost_goals(data: dict[str, Any]) -> list[Goal]:
    return [
        Goal('"cost", delay_many: of pure', _ratio(data, "pure"), 0.80, 0.95),
        Goal('"cost", delay_many: over the best peer', _ratio(data, *_PEERS), 1.25, unit=" times"),
        _import_goal("cost", data),
    ]


def _import_goal(model: str, data: dict[str, Any]) -> Goal:
    ratio = _ratio(data, "celery-batches", mine="celery_batch.batches")
    return Goal(f'"{model}", import line changed: over celery-batches', ratio, 1.5, unit=" times")


def _noop_goals(data: dict[str, Any]) -> list[Goal]:
    cpu = next(row["worker_cpu"] for row in data["rows"] if row["kind"] == "ours")
    name = '"noop", delay_many: over'
    return [
        Goal(f"{name} the best peer", _ratio(data, *_PEERS), 2.5, 5, " times"),
        Goal(f"{name} celery-batches", _ratio(data, "celery-batches"), 12, 25, " times"),
        _import_goal("noop", data),
        Goal('"noop", our RedisStreamer: of delay_many', _ratio(data, "ours", mine=_MINE), 0.95),
        Goal("worker CPU per single-item task", 1000 * cpu, 0.3, unit=" ms", most=True),
    ]


_MINE = "our RedisStreamer"


def _bert_goals(data: dict[str, Any]) -> list[Goal]:
    workers = sorted({row["workers"] for row in data["rows"]})
    return [
        Goal(f'"bert" on {k} workers: of pure', _ratio(data, "pure", workers=k), 0.97)
        for k in workers
    ]


def _rabbitmq_goals(data: dict[str, Any]) -> list[Goal]:
    return [Goal('"cost" over RabbitMQ: of pure', _ratio(data, "pure"), 0.6)]


_COST = Drain("cost", _ALL)
_NOOP = Drain("noop", _ALL[1:])
_BERT = Drain(
    "bert", ("pure", "ours", "our RedisStreamer", "RedisStreamer"), (1, 2, 4), singly=False
)
_RABBITMQ = Drain("cost", ("pure", "ours"), rabbitmq=True)

CASES = [
    Case(
        "cost",
        "10 ms a call and 0.1 ms an item",
        _COST.measure,
        _sheets('"cost": 10 ms a call and 0.1 ms an item, in batches of 64'),
        _cost_goals,
    ),
    Case(
        "noop",
        "a model that costs nothing",
        _NOOP.measure,
        _sheets('"noop": nothing but the way there and back'),
        _noop_goals,
    ),
    Case(
        "bert",
        "20 ms a call and 2.05 ms an item, on 1, 2 and 4 workers",
        _BERT.measure,
        _sheets('"bert": 20 ms a call and 2.05 ms an item, in batches of 64'),
        _bert_goals,
    ),
    Case(
        "rabbitmq",
        '"cost" over RabbitMQ, results in Redis',
        _RABBITMQ.measure,
        _sheets('"cost" over RabbitMQ, results in Redis'),
        _rabbitmq_goals,
    ),
]
