"""``celery batch serve``, ``celery batch status`` and ``celery batch redis``: they need no app."""

from __future__ import annotations

import importlib
import os
import signal
from pathlib import Path
from typing import Any

import click
from celery.bin.base import CeleryCommand

from celery_batch.cli.errors import errors_in_one_line
from celery_batch.config import LARGEST_BATCH
from celery_batch.processes.redis_server import RedisServer
from celery_batch.serve import run_folder

__all__ = ["redis", "serve", "status"]

_FOLDER = click.Path(file_okay=False, path_type=Path)


@click.command(name="serve", cls=CeleryCommand)
@click.argument("handle", required=False, metavar="[MODULE:CLASS]")
@click.option(
    "-c",
    "--config",
    "path",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A YAML file with Handle, GPUs, ProcessPerGPU, ...  The options below override it.",
)
@click.option("--host", show_default="127.0.0.1", help="The address of the web server.")
@click.option(
    "-p",
    "--port",
    type=click.IntRange(1, 65535),
    show_default="9876",
    help="The port of the web server.",
)
@click.option(
    "--workers",
    "web_workers",
    type=click.IntRange(1),
    show_default="1",
    help="The number of processes of the web server.",
)
@click.option("--gpus", "devices", show_default="all", help='Ids of GPUs, as in "0,1", or cpu.')
@click.option(
    "--max-batch-size",
    type=click.IntRange(1, LARGEST_BATCH),
    show_default="32",
    help="The most requests in one batch.",
)
@click.option(
    "--max-wait",
    type=click.FloatRange(0),
    show_default="0.01",
    help="The most seconds for which a request waits for others.",
)
@click.option(
    "--reload", is_flag=True, help="Restart the workers when the handle's Python files change."
)
@click.option(
    "--dir",
    "directory",
    type=_FOLDER,
    show_default="one in the temporary folder",
    help="Keep sockets and logs in this folder.",
)
@errors_in_one_line
def serve(
    handle: str | None, path: Path | None, directory: Path | None, *, reload: bool, **options: Any
) -> None:
    """
    Serve a handle over HTTP.

    It starts the handle's workers, a web server, and a Redis unless one is named.  It prints
    when it is ready, and restarts every process that ends until Ctrl-C or SIGTERM.
    """
    if (handle is None) == (path is None):
        raise click.UsageError("give a handle as module:Class, or a file by -c")
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as at Ctrl-C
    try:
        served = _needed("celery_batch.cli.deployment")
        config = served.configured(path or handle, options)
        served.run(config, path.parent if path else Path.cwd(), directory, reload=reload)
    except KeyboardInterrupt:
        click.echo("Everything has stopped.", err=True)


@click.command(name="status", cls=CeleryCommand)
@click.option(
    "--dir",
    "directory",
    type=_FOLDER,
    show_default="those of this user that have no --dir",
    help="Show only what is served from this folder: the --dir of `celery batch serve`.",
)
def status(directory: Path | None) -> None:
    """
    Show the processes of `celery batch serve`.

    These are the web server, the workers and the Redis that serve handles from this machine.
    `celery -A APP batch top` shows the tasks and workers of an app on all machines, and
    `celery batch jobs` running backfills.
    """
    folders = [directory] if directory else list(run_folder.live_folders())
    if not folders:
        raise click.ClickException(
            "`celery batch serve` does not run here; for workers see `celery -A APP batch top`"
        )
    processes = _needed("celery_batch.serve.processes")
    for folder in folders:
        found = processes.read_status(folder) if run_folder.is_live(folder) else None
        if found is None:
            raise click.ClickException(f"{folder}: nothing is served from here")
        title, rows = found
        click.echo(f"{title}\n{processes.table(rows)}")


def _needed(module: str) -> Any:
    """Import a module of the extra, or say how to install that."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("celery_batch"):
            raise
        raise click.ClickException(
            f"{error}; to serve handles: pip install 'celery-batch[serve]'"
        ) from error


@click.command(name="redis", cls=CeleryCommand)
@click.option(
    "--dir",
    "directory",
    type=_FOLDER,
    show_default="a temporary folder",
    help="Keep socket, log and data in this folder, and the data over a restart; it must be"
    " yours alone (chmod 700).",
)
@click.option(
    "--port",
    type=click.IntRange(1, 65535),
    show_default="a Unix socket only",
    help="Listen on this TCP port of 127.0.0.1 too, with a random password, which --dir keeps.",
)
@errors_in_one_line
def redis(directory: Path | None, port: int | None) -> None:
    """
    Run a private Redis for development.

    It prints its URL when it is ready, and runs until Ctrl-C, SIGTERM, or the end
    of the process that started it.
    """
    parent = os.getppid()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as at Ctrl-C
    try:
        with RedisServer(directory, port=port, appendonly=directory is not None) as server:
            _explain(server)
            while os.getppid() == parent and not server.child.wait(0.5):
                pass
            server.child.check()
    except KeyboardInterrupt:
        click.echo("Redis has stopped.", err=True)


def _explain(server: RedisServer) -> None:
    """Print the URL on standard output, for scripts, and how to use it on standard error."""
    click.echo(server.url)
    click.echo(
        f"""
Redis is ready (folder {server.directory}). In the shells of your worker and web server:

  export CELERY_BROKER_URL='{server.url}'
  export CELERY_RESULT_BACKEND='{server.url}'
  export CELERY_BATCH_REDIS_BROKER='{server.url}'  # for RedisStreamer and its workers

Ctrl-C stops it.""",
        err=True,
    )
