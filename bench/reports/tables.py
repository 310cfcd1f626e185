"""Tables and goals, for the terminal and for the documents alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.table import Table

__all__ = ["Case", "Effort", "Goal", "ResultTable", "goals_table", "shown", "spread", "where"]


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is measured."""

    rounds: int = 5  # how often each system is measured; they take turns
    share: float = 1.0  # of the full number of items
    peers: bool = True  # whether the peers are measured too

    def items(self, full: int) -> int:
        """Return how many items to send where the full measurement sends so many."""
        return max(10, round(full * self.share))


@dataclass(frozen=True, slots=True)
class ResultTable:
    """One table."""

    title: str  # what it shows
    headings: tuple[str, ...]  # of its columns; the first is a name, the others are figures
    rows: Sequence[tuple[str, ...]]  # as many cells each as there are headings
    notes: tuple[str, ...] = ()  # sentences below it

    def rich(self) -> Table:
        """Return it for the terminal."""
        caption = " ".join(self.notes)
        table = Table(title=self.title, title_justify="left", caption=caption or None)
        table.caption_justify = "left"
        headings, *rows = self._lines()
        for position, heading in enumerate(headings):
            table.add_column(heading, justify="right" if position else "left")
        for row in rows:
            table.add_row(*row)
        return table

    def _lines(self) -> list[tuple[str, ...]]:
        """Return headings and rows without columns that no row has: older records have fewer."""
        kept = [n for n in range(len(self.headings)) if not n or any(row[n] for row in self.rows)]
        return [tuple(line[n] for n in kept) for line in (self.headings, *self.rows)]

    def markdown(self) -> str:
        """Return it for a document."""
        headings, *rows = self._lines()
        bars = ["---", *["--:"] * (len(headings) - 1)]
        lines = [" | ".join(cells) for cells in (headings, bars, *rows)]
        table = "\n".join(f"| {line} |" for line in lines)
        return "\n\n".join(
            [f"**{self.title}**", table, *(["\n".join(self.notes)] * bool(self.notes))]
        )


@dataclass(frozen=True, slots=True)
class Goal:
    """A figure that is to be reached."""

    what: str
    measured: float | None  # where we are; None if it could not be measured
    bound: float  # where we want to be
    aim: float | None = None  # where we would like to be
    unit: str = ""  # behind the figures
    most: bool = False  # the bound is an upper one

    @property
    def met(self) -> str:
        """Say whether it is reached."""
        if self.measured is None:
            return "not measured"
        sign = -1 if self.most else 1
        if sign * self.measured < sign * self.bound:
            return "no"
        return "aim" if self.aim and sign * self.measured >= sign * self.aim else "yes"

    def row(self) -> tuple[str, ...]:
        """Return its row of the table."""
        side = "at most" if self.most else "at least"
        aim = "" if self.aim is None else f"{self.aim:g}{self.unit}"
        value = "" if self.measured is None else f"{self.measured:.2f}{self.unit}"
        return (self.what, value, f"{side} {self.bound:g}{self.unit}", aim, self.met)


def goals_table(goals: list[Goal]) -> ResultTable:
    """Return the table of goals."""
    headings = ("goal", "measured", "wanted", "aim", "met")
    return ResultTable("Goals", headings, [goal.row() for goal in goals])


#: The systems as tables name them.
_SYSTEMS = {
    "pure": "the model alone",
    "ours": "celery_batch",
    "our RedisStreamer": "celery_batch: RedisStreamer",
    "our Streamer": "celery_batch: Streamer",
    "our ThreadedStreamer": "celery_batch: ThreadedStreamer",
    "RedisStreamer": "service-streamer: RedisStreamer",
    "Streamer": "service-streamer: Streamer",
    "ThreadedStreamer": "service-streamer: ThreadedStreamer",
    "celery_batch.batches": "celery-batches' program, import line changed",
    "celery": "Celery, one item a call",
    "stock client": "Celery's client of our version",
}


def shown(kind: str) -> str:
    """Return the name of a system in a table."""
    return _SYSTEMS.get(kind, kind)


def spread(rates: Sequence[float]) -> str:
    """Return the slowest and the fastest round, as a cell of a table."""
    return f"{min(rates):,.0f} to {max(rates):,.0f}" if rates else ""


def where(about: dict[str, Any]) -> str:
    """Return the sentence that says where, when and with what a case was measured."""
    times = "1 round" if about["rounds"] == 1 else f"{about['rounds']} rounds"
    cpu = f" ({about['cpu']})" if about.get("cpu") else ""
    libraries = [f"{name} {about[key]}" for key, name in _LIBRARIES.items() if about.get(key)]
    peers = ", ".join(f"{name} {version}" for name, version in about.get("peers", {}).items())
    machine = f"{about['cores']} cores{cpu} with {about['memory_gib']} GiB"
    parts = [f"Measured {about['date']} on {machine}, load {about['load']} before"]
    parts += [f"{times}, {about['share']:.0%} of the items", ", ".join(libraries)]
    parts += [f"the peers with {peers}"] if peers else []
    parts += [f"commit {about['commit']}"] if about.get("commit") else []
    return "; ".join(parts) + "."


#: Of a record of where a case was measured; older ones have the first two alone.
_LIBRARIES = {
    "python": "Python",
    "celery": "Celery",
    "kombu": "kombu",
    "redis": "redis-py",
    "redis_server": "Redis",
}


def _no_goals(_: dict[str, Any]) -> list[Goal]:
    return []


@dataclass(frozen=True, slots=True)
class Case:
    """Something to measure."""

    #: How it is chosen.
    name: str
    #: What it measures, in one line.
    about: str
    #: Measures, and returns what can be written as JSON.
    measure: Callable[[Effort], dict[str, Any]]
    #: Makes tables of that.
    tables: Callable[[dict[str, Any]], list[ResultTable]]
    #: Holds that against what is wanted.
    goals: Callable[[dict[str, Any]], list[Goal]] = field(default=_no_goals)
    #: Measured unless others are named.
    by_default: bool = True
