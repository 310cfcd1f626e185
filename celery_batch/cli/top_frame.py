"""One frame of ``celery batch top``: tables and bars of what is known of a fleet."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from rich.console import Group, JustifyMethod, RenderableType
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from celery_batch.cluster.state import ClusterState, TaskView, WorkerView
from celery_batch.formatting import figure

__all__ = ["frame"]

_STATES = {"busy": "green", "ready": "cyan", "silent": "yellow"}

#: Characters of the longest bar.
_BAR = 32

#: Characters between columns.
_GAP = 2

#: Tasks whose sizes are drawn: those with the most batches.
_DRAWN = 3

#: What a place holds of which nothing is known.
_NOTHING = "·"


def frame(
    cluster_state: ClusterState, broker: str, clock: str, *, width: int, is_last: bool = False
) -> RenderableType:
    """
    Return what a terminal is to show.

    Args:
        cluster_state: What is known.
        broker: Where the broker is.
        clock: The time of day.
        width: Columns of the terminal; what matters less is left out where it is narrow.
        is_last: Nobody will look again.
    """
    tasks, workers = cluster_state.tasks(), cluster_state.workers()
    parts: list[RenderableType] = [_head(cluster_state, broker, clock)]
    if cluster_state.error:
        again = "." if is_last else "; asked again soon."
        parts.append(Text(f"The broker does not answer ({cluster_state.error}){again}", "red"))
    elif not workers:
        parts.append(Text("No worker answers. Start one: celery -A APP worker", "yellow"))
    parts += [_queues(tasks), Text(), _tasks(tasks, width), Text()]
    parts += [_workers(workers, width), Text()] if workers else []
    parts += _histograms(tasks, cluster_state.seconds)
    return Group(*parts)


def _head(cluster_state: ClusterState, broker: str, clock: str) -> Table:
    head = Table.grid(expand=True)
    head.add_column(no_wrap=True)
    head.add_column(justify="right", no_wrap=True)
    over = f"rates over {cluster_state.seconds:.0f} s" if cluster_state.seconds else "no rates yet"
    head.add_row(Text(f"celery batch top  {broker}", "bold"), f"{over}  {clock}")
    return head


def _queues(tasks: list[TaskView]) -> Text:
    depths = {task.queue: task.depth for task in tasks if task.queue}
    told = (f"{queue} {_count(depth)}" for queue, depth in sorted(depths.items()))
    return Text(f"messages in the broker: {', '.join(told) or _NOTHING}")


def _tasks(tasks: list[TaskView], width: int) -> Table:
    return _table(
        [
            _Column("task", [_name(task) for task in tasks], 0, is_word=True),
            _Column("workers", [_count(task.workers) for task in tasks], 7),
            _Column("waiting", [_line(task)[0] for task in tasks], 3),
            _Column("oldest", [_line(task)[1] for task in tasks], 6),
            _Column("running", [_line(task)[2] for task in tasks], 10),
            _Column("rows/s", [_number(task.rate) for task in tasks], 1),
            _Column("batches/s", [_number(task.batches, 1) for task in tasks], 8),
            _Column("size", [_size(task) for task in tasks], 2),
            _Column("model", [_seconds(task.model) for task in tasks], 4),
            _Column("wait p50", [_seconds(task.wait[0]) for task in tasks], 9),
            _Column("wait p95", [_seconds(task.wait[1]) for task in tasks], 5),
        ],
        width,
    )


def _size(task: TaskView) -> str:
    return f"{_number(task.size, 1)} of {task.max_batch_size}" if task.workers else _NOTHING


def _line(task: TaskView) -> tuple[str, str, str]:
    """Return who waits in workers, for how long, and what runs."""
    if not task.workers:
        return _NOTHING, _NOTHING, _NOTHING
    oldest = _seconds(task.oldest) if task.waiting else _NOTHING
    return _count(task.waiting), oldest, _count(task.running)


def _name(task: TaskView) -> Text:
    name = Text(task.name, "bold" if task.workers else "yellow")
    return name.append(f" ({task.halted})", "yellow") if task.halted else name


def _workers(workers: list[WorkerView], width: int) -> Table:
    return _table(
        [
            _Column("worker", [Text(each.name, "bold") for each in workers], 0, is_word=True),
            _Column("state", [_state(each) for each in workers], 1, is_word=True),
            _Column("processes", [_count(each.processes) for each in workers], 7),
            _Column("tasks", [_count(each.tasks) for each in workers], 6),
            _Column("waiting", [_count(each.waiting) for each in workers], 4),
            _Column("running", [_count(each.running) for each in workers], 5),
            _Column("rows/s", [_number(each.rate) for each in workers], 2),
            _Column("busy", [_share(each.busy) for each in workers], 3),
            _Column("devices", [_devices(each) for each in workers], 8, is_word=True),
        ],
        width,
    )


def _state(worker: WorkerView) -> Text:
    return Text(worker.state, _STATES[worker.state])


def _devices(worker: WorkerView) -> str:
    return ", ".join(worker.devices) or _NOTHING


class _Column(NamedTuple):
    """A column, and how soon it is left out where there is little room: the highest rank first."""

    name: str
    cells: Sequence[Text | str]
    rank: int
    is_word: bool = False

    @property
    def width(self) -> int:
        """How many characters it takes, with the gap behind it."""
        return max(len(self.name), *map(len, self.cells), 0) + _GAP


def _table(columns: list[_Column], width: int) -> Table:
    while sum(column.width for column in columns) - _GAP > width and len(columns) > 1:
        columns = [each for each in columns if each.rank < max(other.rank for other in columns)]
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, _GAP, 0, 0))
    for column in columns:
        justify: JustifyMethod = "left" if column.is_word else "right"
        table.add_column(column.name, justify=justify, no_wrap=True)
    for cells in zip(*(column.cells for column in columns), strict=True):
        table.add_row(*cells)
    return table


def _histograms(tasks: list[TaskView], seconds: float) -> Iterator[RenderableType]:
    drawn = sorted(
        (task for task in tasks if task.sizes), key=lambda task: -sum(task.sizes.values())
    )
    for task in drawn[:_DRAWN]:
        count = sum(task.sizes.values())
        title = f"sizes of {task.name}: {count:,} batches in {seconds:.0f} s"
        yield Rule(Text(title, "dim"), align="left", style="dim", characters="─")
        yield _bars(task.sizes, task.max_batch_size)


def _bars(sizes: Mapping[int, int], largest: int) -> Table:
    bars = Table.grid(padding=(0, 1))
    bars.add_column(justify="right", width=12)
    bars.add_column(width=_BAR)
    bars.add_column(justify="right")
    most, total, size = max(sizes.values()), sum(sizes.values()), 1
    while size < 2 * max(largest, *sizes):
        count = sizes.get(size, 0)
        upto = min(size, largest) if size < 2 * largest else size
        label = f"{size // 2 + 1} to {upto}" if upto > size // 2 + 1 else f"{upto}"
        bars.add_row(label, Text(_bar(count / most), "green"), f"{count:,}  {count / total:.0%}")
        size *= 2
    return bars


def _bar(share: float) -> str:
    whole, part = divmod(round(share * _BAR * 8), 8)
    return "█" * whole + " ▏▎▍▌▋▊▉"[part].strip() if share else ""


def _count(number: int | None) -> str:
    return _NOTHING if number is None else f"{number:,}"


def _share(share: float | None) -> str:
    return _NOTHING if share is None else f"{share:.0%}"


def _number(number: float | None, digits: int = 0) -> str:
    return _NOTHING if number is None else f"{number:,.{digits}f}"


def _seconds(seconds: float | None) -> str:
    return _NOTHING if seconds is None else figure(seconds)
