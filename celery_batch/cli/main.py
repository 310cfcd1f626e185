"""The commands under ``celery batch``."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import click
from celery.bin.base import CeleryCommand, handle_preload_options
from celery.bin.beat import beat
from celery.bin.worker import worker

# Celery's command line imports every extension before it looks at the command,
# so `celery inspect batch_status` knows the command.
import celery_batch.worker.control.commands  # noqa: F401
from celery_batch.cli.backfill import backfill
from celery_batch.cli.check import check
from celery_batch.cli.common import errors_in_one_line
from celery_batch.cli.jobs import jobs
from celery_batch.cli.serve import serve, status
from celery_batch.cli.top import top
from celery_batch.cli.tune import tune
from celery_batch.processes.redis_server import RedisServer

__all__ = ["batch"]


@click.group(name="batch")
@click.pass_context
@handle_preload_options  # type: ignore[untyped-decorator]  # Celery has no types
def batch(_ctx: click.Context) -> None:
    """Batched model serving."""


for command in (backfill, check, jobs, serve, status, top, tune):
    batch.add_command(command)

for command in (worker, beat):  # Celery's commands that bind tasks
    command.callback = errors_in_one_line(command.callback)


@batch.command(name="redis", cls=CeleryCommand)
@click.option(
    "--dir",
    "directory",
    type=click.Path(file_okay=False, path_type=Path),
    help="Keep socket, log and data in this folder, and the data over a restart; it must be"
    " yours alone (chmod 700).  By default a temporary folder.",
)
@click.option(
    "--port",
    type=click.IntRange(1, 65535),
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
