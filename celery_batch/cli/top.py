"""``celery batch top``: what tasks, workers and devices do, now and all the time."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import click
from celery.bin.base import CeleryCommand

from celery_batch.cluster.control_client import ControlClient
from celery_batch.cluster.state import ClusterState
from celery_batch.task import BatchTask
from celery_batch.worker.scheduling.routing import queue_of

__all__ = ["top"]

#: Seconds over which rates are averaged.
_WINDOW = 10.0

#: Seconds without a further answer after which all workers count as heard.
_LISTEN = 0.4

#: The same for a script, which will not ask again.
_LISTEN_ONCE = 2.0

#: Columns where there is no terminal to say how many.
_COLUMNS = 120


@click.command(name="top", cls=CeleryCommand)
@click.option(
    "--once",
    is_flag=True,
    help="Look twice, with the interval between, print, and end: with 1 if the broker is away.",
)
@click.option(
    "--interval",
    type=click.FloatRange(0.1, 3600),
    default=1.0,
    show_default=True,
    help="Seconds from one look to the next.",
)
@click.pass_context
def top(ctx: click.Context, *, once: bool, interval: float) -> None:
    """
    Show what batch tasks and their workers do, until Ctrl-C.

    Where the output is no terminal it prints one plain frame after the other.
    """
    signal.signal(signal.SIGTERM, _interrupt)
    if find_spec("rich") is None:
        raise click.ClickException("This needs rich: pip install 'celery-batch[top]'")
    app = ctx.obj.app
    control_client = ControlClient(app)
    try:
        show = _on_screen if sys.stdout.isatty() and not once else _in_lines
        show(_TopView(app, control_client, _LISTEN_ONCE if once else _LISTEN), interval, once)
    except KeyboardInterrupt:
        click.echo("", err=True)
    finally:
        control_client.close()


class _TopView:
    """Looks at the fleet, and makes frames of what it sees."""

    def __init__(self, app: Any, control_client: ControlClient, listen: float) -> None:
        from celery_batch.cli.top_frame import frame  # noqa: PLC0415 (where rich may be missing)

        app.loader.import_default_modules()
        app.finalize()
        tasks = [task for task in app.tasks.values() if isinstance(task, BatchTask)]
        self._queues = {task.name: queue_of(app, task) for task in tasks}
        self._cluster_state = ClusterState(self._queues, _WINDOW)
        self._control_client, self._listen = control_client, listen
        self._frame = frame
        with app.connection_for_write() as connection:
            self._broker = connection.as_uri()

    def look(self) -> None:
        """Ask all workers once more."""
        queues = {*self._queues.values()}
        self._cluster_state.add(self._control_client.snapshot(queues, self._listen))

    @property
    def error(self) -> str:
        """Why the broker did not answer the last time; empty if it did."""
        return self._cluster_state.error

    def frame(self, width: int, *, is_last: bool = False) -> Any:
        """Return what is to be shown in so many columns."""
        clock = time.strftime("%H:%M:%S")
        return self._frame(self._cluster_state, self._broker, clock, width=width, is_last=is_last)


def _on_screen(watch: _TopView, interval: float, _once: bool) -> None:  # noqa: FBT001
    from rich.console import Console  # noqa: PLC0415 (only a terminal needs it)
    from rich.live import Live  # noqa: PLC0415 (likewise)

    console = Console()
    with Live(console=console, screen=True, auto_refresh=False) as live:

        def show() -> None:
            live.update(watch.frame(console.width), refresh=True)

        _go_on(watch, show, interval)


def _in_lines(watch: _TopView, interval: float, once: bool) -> None:  # noqa: FBT001
    from rich.console import Console  # noqa: PLC0415 (likewise)

    console = Console(width=None if sys.stdout.isatty() else _COLUMNS)
    if not once:
        _go_on(watch, lambda: console.print(watch.frame(console.width)), interval)
        return
    watch.look()
    time.sleep(interval)
    watch.look()
    console.print(watch.frame(console.width, is_last=True))
    if watch.error:
        sys.exit(1)


def _go_on(watch: _TopView, show: Callable[[], None], interval: float) -> None:
    while True:
        began = time.monotonic()
        watch.look()
        show()
        time.sleep(max(interval - (time.monotonic() - began), 0.0))


def _interrupt(_number: int, _frame: object) -> None:
    raise KeyboardInterrupt
