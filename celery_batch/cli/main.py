"""
The commands under ``celery batch``.

Celery's command line imports this module, an entry point, before it looks at the command: so it
imports little, and each command when it is used.
"""

from __future__ import annotations

import os
from importlib import import_module

import click
from celery import VERSION_BANNER
from celery.bin.base import handle_preload_options
from celery.bin.beat import beat
from celery.bin.worker import worker
from click_didyoumean import DYMGroup  # type: ignore[import-untyped]

# So `celery inspect batch_status` knows the command.
import celery_batch.worker.control.commands  # noqa: F401
from celery_batch import __version__
from celery_batch.cli.errors import errors_in_one_line

__all__ = ["batch"]

#: The commands, each as ``module:attribute``, by name.
_COMMANDS = {
    "backfill": "celery_batch.cli.backfill:backfill",
    "bench": "celery_batch.cli.bench:bench",
    "check": "celery_batch.cli.check:check",
    "jobs": "celery_batch.cli.jobs:jobs",
    "redis": "celery_batch.cli.serve:redis",
    "serve": "celery_batch.cli.serve:serve",
    "status": "celery_batch.cli.serve:status",
    "top": "celery_batch.cli.top:top",
    "tune": "celery_batch.cli.tune:tune",
}


class _LazyGroup(DYMGroup):  # type: ignore[misc]  # it has no types
    """A group that imports a command when it is looked up, and suggests similar names."""

    def list_commands(self, _ctx: click.Context) -> list[str]:
        return sorted(_COMMANDS)

    def get_command(self, _ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        module, _, attribute = _COMMANDS[cmd_name].partition(":")
        command: click.Command = getattr(import_module(module), attribute)
        return command


@click.group(name="batch", cls=_LazyGroup)
@click.version_option(
    message=f"celery_batch {__version__}, Celery {VERSION_BANNER}",
    help="Show the versions of celery_batch and Celery, and exit.",
)
@click.pass_context
@handle_preload_options  # type: ignore[untyped-decorator]  # Celery has no types
def batch(ctx: click.Context) -> None:
    """
    Run, check and measure batch tasks.

    The app is that of `celery -A APP batch`; redis, serve and status need none.
    """
    if ctx.obj.no_color or os.environ.get("NO_COLOR"):
        ctx.color = False


for command in (worker, beat):  # Celery's commands that bind tasks
    command.callback = errors_in_one_line(command.callback)
