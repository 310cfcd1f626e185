"""One frame of ``celery batch top``: tables and bars of the state of all workers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from rich.bar import Bar
from rich.console import Group, JustifyMethod, RenderableType
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from celery_batch.cluster.state import ClusterState, TaskView
from celery_batch.formatting import figure

__all__ = ["frame"]

_STATES = {"busy": "green", "ready": "cyan", "silent": "yellow"}

#: Characters of the longest bar.
_BAR = 32

#: Characters between columns.
_GAP = 2

#: Tasks whose sizes are drawn: those with the most batches.
_DRAWN = 3

#: Shown where nothing is known.
_NOTHING = "·"


def frame(
    cluster_state: ClusterState, broker: str, clock: str, *, width: int, is_last: bool = False
) -> RenderableType:
    """Return what a terminal is to show; a narrow one lacks the less important columns."""
    tasks, workers = cluster_state.tasks(), cluster_state.workers()
    parts: list[RenderableType] = [_head(cluster_state, broker, clock)]
    if cluster_state.error:
        again = "." if is_last else "; asked again soon."
        parts.append(Text(f"The broker does not answer ({cluster_state.error}){again}", "red"))
    elif not workers:
        parts.append(Text("No worker answers. Start one: celery -A APP worker", "yellow"))
    known = [name for name in _RARE if any(getattr(task, name) is not None for task in tasks)]
    columns = (*_TASK_COLUMNS, *map(_RARE.__getitem__, known))
    parts += [_queues(tasks), Text(), _table(columns, tasks, width), Text()]
    parts += [_table(_WORKER_COLUMNS, workers, width), Text()] if workers else []
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
    depths = {task.queue: task.messages for task in tasks if task.queue}
    counts = (f"{queue} {_cell(depth)}" for queue, depth in sorted(depths.items()))
    return Text(f"messages in the broker: {', '.join(counts) or _NOTHING}")


def _size(task: TaskView) -> str:
    if not task.workers:
        return _NOTHING
    cost = task.max_batch_cost
    limit = task.max_batch_size if cost is None else f"cost {cost:,g}"
    return f"{_cell(task.batch_size, ',.1f')} of {limit}"


def _name(task: TaskView) -> Text:
    name = Text(task.name, "bold" if task.workers else "yellow")
    return name.append(f" ({task.halted})", "yellow") if task.halted else name


class _Column(NamedTuple):
    """A column; where there is little room those with the highest rank are left out first."""

    name: str
    cell: Callable[[Any], Text | str]
    rank: int
    is_word: bool = False


_TASK_COLUMNS = (
    _Column("task", _name, 0, is_word=True),
    _Column("workers", lambda task: _cell(task.workers), 7),
    _Column("waiting", lambda task: _cell(task.waiting if task.workers else None), 3),
    _Column("oldest", lambda task: _seconds(task.oldest), 6),
    _Column("running", lambda task: _cell(task.running if task.workers else None), 10),
    _Column("rows/s", lambda task: _cell(task.rows_per_second, ",.0f"), 1),
    _Column("batches/s", lambda task: _cell(task.batches_per_second, ",.1f"), 8),
    _Column("size", _size, 2),
    _Column("model", lambda task: _seconds(task.model_seconds), 4),
    _Column("wait p50", lambda task: _seconds(task.wait_p50), 9),
    _Column("wait p95", lambda task: _seconds(task.wait_p95), 5),
)

#: Those that are shown if any task has such a figure, by its name.
_RARE = {
    "padding": _Column("padding", lambda task: _cell(task.padding, ".0%"), 11),
    "late": _Column("late", lambda task: _cell(task.late, ".0%"), 12),
    "refused_per_second": _Column(
        "refused/s", lambda task: _cell(task.refused_per_second, ",.1f"), 13
    ),
}

_WORKER_COLUMNS = (
    _Column("worker", lambda worker: Text(worker.name, "bold"), 0, is_word=True),
    _Column("state", lambda worker: Text(worker.state, _STATES[worker.state]), 1, is_word=True),
    _Column("processes", lambda worker: _cell(worker.processes), 7),
    _Column("tasks", lambda worker: _cell(worker.tasks), 6),
    _Column("waiting", lambda worker: _cell(worker.waiting), 4),
    _Column("running", lambda worker: _cell(worker.running), 5),
    _Column("rows/s", lambda worker: _cell(worker.rows_per_second, ",.0f"), 2),
    _Column("busy", lambda worker: _cell(worker.busy, ".0%"), 3),
    _Column("devices", lambda worker: ", ".join(worker.devices) or _NOTHING, 8, is_word=True),
)


def _table(columns: Iterable[_Column], items: Sequence[Any], width: int) -> Table:
    cells = {column: [column.cell(item) for item in items] for column in columns}
    widths = {column: max(map(len, [column.name, *cells[column]])) + _GAP for column in cells}
    while sum(widths.values()) - _GAP > width and len(widths) > 1:
        del widths[max(widths, key=lambda column: column.rank)]
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, _GAP, 0, 0))
    for column in widths:
        justify: JustifyMethod = "left" if column.is_word else "right"
        table.add_column(column.name, justify=justify, no_wrap=True)
    for row in zip(*(cells[column] for column in widths), strict=True):
        table.add_row(*row)
    return table


def _histograms(tasks: list[TaskView], seconds: float) -> Iterator[RenderableType]:
    drawn = sorted(
        (task for task in tasks if task.batch_sizes),
        key=lambda task: -sum(task.batch_sizes.values()),
    )
    for task in drawn[:_DRAWN]:
        count = sum(task.batch_sizes.values())
        title = f"sizes of {task.name}: {count:,} batches in {seconds:.0f} s"
        yield Rule(Text(title, "dim"), align="left", style="dim", characters="─")
        yield _bars(task.batch_sizes, 1 if task.max_batch_cost else task.max_batch_size or 1)


def _bars(sizes: Mapping[int, int], largest: int) -> Table:
    bars = Table.grid(padding=(0, 1))
    bars.add_column(justify="right", width=12)
    bars.add_column()
    bars.add_column(justify="right")
    most, total, size = max(sizes.values()), sum(sizes.values()), 1
    while size < 2 * max(largest, *sizes):
        count = sizes.get(size, 0)
        upto = min(size, largest) if size < 2 * largest else size
        label = f"{size // 2 + 1} to {upto}" if upto > size // 2 + 1 else f"{upto}"
        bars.add_row(
            label, Bar(most, 0, count, width=_BAR, color="green"), f"{count:,}  {count / total:.0%}"
        )
        size *= 2
    return bars


def _cell(number: float | None, form: str = ",") -> str:
    return _NOTHING if number is None else format(number, form)


def _seconds(seconds: float | None) -> str:
    return _NOTHING if seconds is None else figure(seconds)
