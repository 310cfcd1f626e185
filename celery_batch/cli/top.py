"""``celery batch top``: shows what tasks, workers and devices do, continuously."""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict
from importlib.util import find_spec
from typing import Any

import click
from celery.bin.base import CeleryCommand

from celery_batch.cli.errors import INTERRUPTED, errors_in_one_line
from celery_batch.cluster.control_client import ControlClient, url_of
from celery_batch.cluster.state import ClusterState
from celery_batch.worker.scheduling.routing import batch_tasks, queue_of

__all__ = ["top"]

#: Seconds over which rates are averaged.
_WINDOW = 10.0

#: Seconds without a further answer after which all workers have answered.
_TIMEOUT = 0.4

#: The same for a script, which does not ask again; and what it waits beyond the interval.
_TIMEOUT_ONCE = 2.0

#: Columns where there is no terminal.
_COLUMNS = 120


@click.command(name="top", cls=CeleryCommand)
@click.option(
    "--once",
    is_flag=True,
    help="Ask twice, print, and exit; with code 1 if the broker is away.",
)
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Ask as --once does, and print the numbers as one JSON object.",
)
@click.option(
    "--interval",
    type=click.FloatRange(0.1, 3600),
    default=1.0,
    show_default=True,
    help="Seconds from one question to the next.",
)
@click.pass_context
@errors_in_one_line
def top(ctx: click.Context, *, once: bool, as_json: bool, interval: float) -> None:
    """
    Show what batch tasks and their workers do.

    It asks the app's workers again and again, until Ctrl-C.
    Where the output is no terminal it prints one plain frame after the other.
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if not as_json and find_spec("rich") is None:
        raise click.ClickException("This needs rich: pip install 'celery-batch[cli]'")
    with closing(_Observer(ctx.obj.app)) as observer:
        try:
            if as_json:
                observer.ask_twice(interval)
                click.echo(json.dumps(_as_data(observer), indent=2))
            else:
                _show(observer, interval, once=once)
        except KeyboardInterrupt:
            click.echo("", err=True)
            if once or as_json:  # which have printed nothing
                ctx.exit(INTERRUPTED)
        if (once or as_json) and observer.state.error:
            ctx.exit(1)


class _Observer:
    """Asks the workers of an app, and keeps the state of their cluster."""

    def __init__(self, app: Any) -> None:
        app.loader.import_default_modules()
        app.finalize()
        queues = {task.name: queue_of(app, task) for task in batch_tasks(app)}
        self._queues = {*queues.values()}
        self.state = ClusterState(queues, _WINDOW)
        self._client = ControlClient(app)
        with app.connection_for_write() as connection:
            self.broker = url_of(connection)

    def close(self) -> None:
        self._client.close()

    def ask(self, timeout: float = _TIMEOUT) -> None:
        """Ask the workers once more."""
        self.state.add(self._client.snapshot(self._queues, timeout))

    def ask_twice(self, interval: float) -> None:
        """Ask all workers twice, as rates need it."""
        self.ask(_TIMEOUT_ONCE)
        time.sleep(_TIMEOUT_ONCE + interval)
        self.ask(_TIMEOUT_ONCE)


def _as_data(observer: _Observer) -> dict[str, Any]:
    """Return what a frame shows as plain data; times are in seconds."""
    state = observer.state
    return {
        "time": time.time(),
        "broker": observer.broker,
        "error": state.error,
        "seconds": state.seconds,
        "tasks": [asdict(task) for task in state.tasks()],
        "workers": [asdict(worker) for worker in state.workers()],
    }


def _show(observer: _Observer, interval: float, *, once: bool) -> None:
    from rich.console import Console  # noqa: PLC0415 (rich may be missing)

    console = Console(width=None if sys.stdout.isatty() else _COLUMNS)
    if once:
        observer.ask_twice(interval)
        console.print(_frame(observer, console, is_last=True))
    elif sys.stdout.isatty():
        _on_screen(observer, console, interval)
    else:
        _repeat(observer, console, console.print, interval)


def _frame(observer: _Observer, console: Any, *, is_last: bool = False) -> Any:
    from celery_batch.cli.top_frame import frame  # noqa: PLC0415 (where rich may be missing)

    clock = time.strftime("%H:%M:%S")
    return frame(observer.state, observer.broker, clock, width=console.width, is_last=is_last)


def _repeat(
    observer: _Observer, console: Any, show: Callable[[Any], object], interval: float
) -> None:
    """Show one frame after the other."""
    while True:
        began = time.monotonic()
        observer.ask()
        show(_frame(observer, console))
        time.sleep(max(interval - (time.monotonic() - began), 0.0))


def _on_screen(observer: _Observer, console: Any, interval: float) -> None:
    from rich.live import Live  # noqa: PLC0415 (only a terminal needs it)

    with Live(console=console, screen=True, auto_refresh=False) as live:
        _repeat(observer, console, lambda frame: live.update(frame, refresh=True), interval)
