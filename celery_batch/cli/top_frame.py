"""One frame of ``celery batch top``: tables and bars of what is known of a fleet."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rich.console import Group, RenderableType
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from celery_batch.fleet.picture import Picture, TaskView, WorkerView

__all__ = ["frame"]

_STATES = {"busy": "green", "ready": "cyan", "silent": "yellow"}

#: Characters of the longest bar.
_BAR = 32

#: Tasks whose sizes are drawn: those with the most batches.
_DRAWN = 3

#: What a place holds of which nothing is known.
_NOTHING = "·"


def frame(picture: Picture, broker: str, clock: str) -> RenderableType:
    """
    Return what a terminal is to show.

    Args:
        picture: What is known.
        broker: Where the broker is.
        clock: The time of day.
    """
    tasks, workers = picture.tasks(), picture.workers()
    parts: list[RenderableType] = [_head(picture, broker, clock)]
    if picture.error:
        parts.append(
            Text(f"The broker does not answer ({picture.error}); asked again soon.", "red")
        )
    elif not workers:
        parts.append(Text("No worker answers. Start one: celery -A APP worker", "yellow"))
    parts += [_queues(tasks), Text(), _tasks(tasks), Text()]
    parts += [_workers(workers), Text()] if workers else []
    parts += _histograms(tasks, picture.seconds)
    return Group(*parts)


def _head(picture: Picture, broker: str, clock: str) -> Table:
    head = Table.grid(expand=True)
    head.add_column(no_wrap=True)
    head.add_column(justify="right", no_wrap=True)
    over = f"rates over {picture.seconds:.0f} s" if picture.seconds else "no rates yet"
    head.add_row(Text(f"celery batch top  {broker}", "bold"), f"{over}  {clock}")
    return head


def _queues(tasks: list[TaskView]) -> Text:
    depths = {task.queue: task.depth for task in tasks if task.queue}
    told = (f"{queue} {_count(depth)}" for queue, depth in sorted(depths.items()))
    return Text(f"messages in the broker: {', '.join(told) or _NOTHING}")


def _tasks(tasks: list[TaskView]) -> Table:
    names = ("workers", "waiting", "oldest", "running", "rows/s", "batches/s", "size", "model")
    table = _table("task", *names, "wait p50", "p95")
    for task in tasks:
        size = f"{_number(task.size, 1)} of {task.max_batch_size}" if task.workers else _NOTHING
        table.add_row(
            _name(task),
            f"{task.workers}",
            *_line(task),
            _number(task.rate),
            _number(task.batches, 1),
            size,
            _seconds(task.model),
            *map(_seconds, task.wait),
        )
    return table


def _line(task: TaskView) -> tuple[str, str, str]:
    """Return who waits in workers, for how long, and what runs."""
    if not task.workers:
        return _NOTHING, _NOTHING, _NOTHING
    oldest = _seconds(task.oldest) if task.waiting else _NOTHING
    return _count(task.waiting), oldest, _count(task.running)


def _name(task: TaskView) -> Text:
    name = Text(task.name, "bold" if task.workers else "yellow")
    return name.append(f" ({task.halted})", "yellow") if task.halted else name


def _workers(workers: list[WorkerView]) -> Table:
    names = ("state", "processes", "tasks", "waiting", "running", "rows/s", "busy", "devices")
    table = _table("worker", *names)
    for worker in workers:
        table.add_row(
            Text(worker.name, "bold"),
            Text(worker.state, _STATES[worker.state]),
            _count(worker.processes),
            _count(worker.tasks),
            _count(worker.waiting),
            _count(worker.running),
            _number(worker.rate),
            _NOTHING if worker.busy is None else f"{worker.busy:.0%}",
            ", ".join(worker.devices) or _NOTHING,
        )
    return table


def _table(first: str, *others: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    table.add_column(first, no_wrap=True)
    for name in others:
        is_word = name in ("state", "devices")
        table.add_column(name, justify="left" if is_word else "right", no_wrap=True)
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


def _number(number: float | None, digits: int = 0) -> str:
    return _NOTHING if number is None else f"{number:,.{digits}f}"


def _seconds(seconds: float | None) -> str:
    if seconds is None:
        return _NOTHING
    return f"{seconds:.3g} s"
