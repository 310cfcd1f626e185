"""``celery batch top``: shows what tasks, workers and devices do, continuously."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable
from contextlib import closing
from importlib.util import find_spec
from typing import Any

import click
from celery.bin.base import CeleryCommand

from celery_batch.cli.errors import errors_in_one_line
from celery_batch.cluster.control_client import ControlClient
from celery_batch.cluster.state import ClusterState
from celery_batch.worker.scheduling.routing import batch_tasks, queue_of

__all__ = ["top"]

#: Seconds over which rates are averaged.
_WINDOW = 10.0

#: Seconds without a further answer after which all workers have answered.
_TIMEOUT = 0.4

#: The same for a script, which does not ask again.
_TIMEOUT_ONCE = 2.0

#: Columns where there is no terminal.
_COLUMNS = 120


@click.command(name="top", cls=CeleryCommand)
@click.option(
    "--once",
    is_flag=True,
    help="Ask twice, with the interval between, print, and end: with 1 if the broker is away.",
)
@click.option(
    "--interval",
    type=click.FloatRange(0.1, 3600),
    default=1.0,
    show_default=True,
    help="Seconds from one frame to the next.",
)
@click.pass_context
@errors_in_one_line
def top(ctx: click.Context, *, once: bool, interval: float) -> None:
    """
    Show what batch tasks and their workers do, until Ctrl-C.

    Where the output is no terminal it prints one plain frame after the other.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if find_spec("rich") is None:
        raise click.ClickException("This needs rich: pip install 'celery-batch[top]'")
    from rich.console import Console  # noqa: PLC0415 (rich may be missing)

    console = Console(width=None if sys.stdout.isatty() else _COLUMNS)
    with closing(_View(ctx.obj.app, console)) as view:
        try:
            if once:
                _print_once(view, interval)
            elif sys.stdout.isatty():
                _on_screen(view, interval)
            else:
                view.repeat(console.print, interval)
        except KeyboardInterrupt:
            click.echo("", err=True)


class _View:
    """Collects snapshots of the cluster, and makes frames of its state."""

    def __init__(self, app: Any, console: Any) -> None:
        app.loader.import_default_modules()
        app.finalize()
        queues = {task.name: queue_of(app, task) for task in batch_tasks(app)}
        self._queues = {*queues.values()}
        self.state = ClusterState(queues, _WINDOW)
        self.console = console
        self._client = ControlClient(app)
        with app.connection_for_write() as connection:
            self._broker = connection.as_uri()

    def close(self) -> None:
        self._client.close()

    def update(self, timeout: float = _TIMEOUT, *, is_last: bool = False) -> Any:
        """Ask all workers once more; return what the console is to show."""
        from celery_batch.cli.top_frame import frame  # noqa: PLC0415 (where rich may be missing)

        self.state.add(self._client.snapshot(self._queues, timeout))
        clock = time.strftime("%H:%M:%S")
        return frame(self.state, self._broker, clock, width=self.console.width, is_last=is_last)

    def repeat(self, show: Callable[[Any], object], interval: float) -> None:
        """Show one frame after the other."""
        while True:
            began = time.monotonic()
            show(self.update())
            time.sleep(max(interval - (time.monotonic() - began), 0.0))


def _print_once(view: _View, interval: float) -> None:
    view.update(_TIMEOUT_ONCE)
    time.sleep(interval)
    view.console.print(view.update(_TIMEOUT_ONCE, is_last=True))
    if view.state.error:
        sys.exit(1)


def _on_screen(view: _View, interval: float) -> None:
    from rich.live import Live  # noqa: PLC0415 (only a terminal needs it)

    with Live(console=view.console, screen=True, auto_refresh=False) as live:
        view.repeat(lambda frame: live.update(frame, refresh=True), interval)
