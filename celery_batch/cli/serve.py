"""``celery batch serve`` and ``celery batch status``."""

from __future__ import annotations

import importlib
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import click
from celery.bin.base import CeleryCommand

from celery_batch.cli import run_folder
from celery_batch.errors import BatchError
from celery_batch.serving.devices import why_doubtful

__all__ = ["serve", "status"]

_FOLDER = click.Path(file_okay=False, path_type=Path)


@click.command(name="serve", cls=CeleryCommand)
@click.option(
    "-c",
    "--config",
    "path",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    required=True,
    help="A YAML file with Handle, GPUs, ProcessPerGPU, ...",
)
@click.option("-p", "--port", type=click.IntRange(1, 65535), help="Instead of the file's Port.")
@click.option(
    "--dir",
    "directory",
    type=_FOLDER,
    help="Keep sockets and logs in this folder.  By default one in the temporary folder.",
)
def serve(path: Path, port: int | None, directory: Path | None) -> None:
    """
    Serve a handle over HTTP: its workers, a web server, and a Redis unless one is named.

    It says when it is ready, and keeps every process alive until Ctrl-C or SIGTERM.
    """
    signal.signal(signal.SIGTERM, _interrupt)
    try:
        config = _needed("celery_batch.serve.config").read_config(path)
        config = replace(config, port=port or config.port)
        folder = directory or run_folder.usual_folder(config.port)
        with _needed("celery_batch.cli.deployment").Deployment(config, folder) as deployment:
            _serve(deployment, path)
    except KeyboardInterrupt:
        click.echo("Everything has stopped.", err=True)
    except BatchError as error:
        raise click.ClickException(str(error)) from error


def _serve(deployment: Any, path: Path) -> None:
    config = deployment.config
    if doubt := why_doubtful(config.devices):
        click.echo(f"Warning: GPUs: {doubt}; write GPUs: cpu to serve without", err=True)
    click.echo(f"Starting {config.handle}; logs in {deployment.folder}", err=True)
    deployment.start(path.parent)
    deployment.wait_until_ready()
    workers = len(config.devices) * config.slots
    click.echo(deployment.url)
    click.echo(
        f"{config.handle} is ready on {', '.join(config.devices)}:"
        f" {workers} {'worker' if workers == 1 else 'workers'}, queue {config.queue}."
        f"  `celery batch status` shows how they fare; Ctrl-C stops them.",
        err=True,
    )
    for warning in deployment.warnings():
        click.echo(f"Warning: {warning}", err=True)
    while not deployment.ended(0.5):
        pass
    deployment.check()


@click.command(name="status", cls=CeleryCommand)
@click.option(
    "--dir", "directory", type=_FOLDER, help="Of one `serve`; by default all of this user's."
)
def status(directory: Path | None) -> None:
    """Show how the processes of `celery batch serve` fare."""
    deployments = _needed("celery_batch.cli.deployment").Deployment
    table = _needed("celery_batch.serve.supervision").table
    folders = [directory] if directory else list(run_folder.live_folders())
    if not folders:
        raise click.ClickException("nothing is served: start `celery batch serve` first")
    away = []
    for folder in folders:
        try:
            deployment = deployments.running_in(folder)
            title = f"{deployment.config.handle} at {deployment.url} (logs in {folder})"
            click.echo(f"{title}\n{table(deployment.health())}")
        except BatchError as error:  # the others may fare better
            away.append(str(error))
    if away:
        raise click.ClickException("\n".join(away))


def _needed(module: str) -> Any:
    """Import what only these commands need, and say how to get what it needs."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("celery_batch"):
            raise
        raise click.ClickException(
            f"{error}; to serve handles, install celery-batch[serve]"
        ) from error


def _interrupt(_number: int, _frame: object) -> NoReturn:
    """Make SIGTERM end the command the way Ctrl-C does."""
    raise KeyboardInterrupt
