"""What Celery's command line imports of this package, and what it knows of it all the same."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from pathlib import Path

import celery
import pytest
from click.testing import CliRunner

import celery_batch
from celery_batch.cli.main import batch

CELERY = Path(sysconfig.get_path("scripts")) / "celery"

#: Imports Celery's command line, and prints our modules.
PROGRAM = """
import sys

import celery.bin.celery

print(*(name for name in sys.modules if name.split(".")[0] == "celery_batch"))
"""

#: What Celery's command line imports of the package in every command.
FEW = {
    "celery_batch",
    "celery_batch.cli",
    "celery_batch.cli.errors",
    "celery_batch.cli.main",
    "celery_batch.compat",
    "celery_batch.compat.backend_hooks",
    "celery_batch.compat.kombu_json",
    "celery_batch.errors",
    "celery_batch.protocol",
    "celery_batch.worker",
    "celery_batch.worker.control",
    "celery_batch.worker.control.commands",
}

#: What kombu imports in each process: an entry point, too.
SERIALIZERS = "celery_batch.serialization"


def test_celery_imports_little_of_the_package():
    """``celery --help`` and ``celery worker`` do not pay for commands that they do not run."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, timeout=60
    )
    found = done.stdout.split()

    assert {name for name in found if not name.startswith(SERIALIZERS)} == FEW


def test_each_name_is_its_commands():
    """The group's names, which are there before the commands, are those of the commands."""
    context = batch.make_context("batch", [], resilient_parsing=True)

    assert batch.list_commands(context) == [
        command.name
        for name in batch.list_commands(context)
        if (command := batch.get_command(context, name))
    ]


@pytest.mark.parametrize(
    ("kind", "commands"),
    [
        ("inspect", ("batch_stats", "batch_status")),
        ("control", ("batch_config", "batch_drain", "batch_pause", "batch_reload")),
    ],
)
def test_celery_lists_the_remote_commands(kind, commands):
    """Celery's own command line knows our remote control commands and their help."""
    done = subprocess.run(
        [CELERY, kind, "--list"], capture_output=True, text=True, check=True, timeout=60
    )

    assert all(f"  {command} " in done.stdout for command in commands)


def test_a_misspelt_command_is_suggested():
    """As Celery's own group does."""
    done = CliRunner().invoke(batch, ["backfil"])

    assert done.exit_code == 2
    assert "Did you mean" in done.output
    assert "backfill" in done.output


def test_the_versions_are_shown():
    """Ours and Celery's, as a report of a bug needs them."""
    done = CliRunner().invoke(batch, ["--version"])

    assert done.exit_code == 0
    assert (
        done.output == f"celery_batch {celery_batch.__version__}, Celery {celery.VERSION_BANNER}\n"
    )
