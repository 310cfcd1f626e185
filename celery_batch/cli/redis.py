"""``celery batch redis``: a private Redis for development."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import click
from celery.bin.base import CeleryCommand

from celery_batch.cli.errors import errors_in_one_line
from celery_batch.processes.redis_server import RedisServer

__all__ = ["redis"]


@click.command(name="redis", cls=CeleryCommand)
@click.option(
    "--dir",
    "directory",
    type=click.Path(file_okay=False, path_type=Path),
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
