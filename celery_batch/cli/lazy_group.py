"""A group of commands whose modules are imported when a command is used."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import click
from click_didyoumean import DYMGroup  # type: ignore[import-untyped]

__all__ = ["LazyGroup"]


class LazyGroup(DYMGroup):  # type: ignore[misc]  # it has no types
    """
    A click group that imports a command when it is looked up, and suggests similar names.

    Args:
        lazy: The commands, each as ``module:attribute``, by name.
    """

    def __init__(self, *args: Any, lazy: Mapping[str, str], **options: Any) -> None:
        super().__init__(*args, **options)
        self._lazy = lazy

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands, sorted."""
        return sorted([*super().list_commands(ctx), *self._lazy])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command, or None if there is none of this name."""
        if cmd_name not in self._lazy:
            found: click.Command | None = super().get_command(ctx, cmd_name)
            return found
        module, _, attribute = self._lazy[cmd_name].partition(":")
        command: click.Command = getattr(import_module(module), attribute)
        return command
