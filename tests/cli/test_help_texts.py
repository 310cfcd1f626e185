"""The help of every command reads as that of Celery's own commands."""

from __future__ import annotations

import re
from inspect import cleandoc

import click
import pytest

from celery_batch.cli.main import batch

#: Characters of a command's summary that `celery batch --help` shows.
WIDEST = 70

#: First words of summaries.
VERBS = {
    "Find",
    "List",
    "Measure",
    "Pause",
    "Resume",
    "Run",
    "Serve",
    "Show",
    "Stop",
}


def commands(command=batch, name="celery batch"):
    """Yield each command with its whole name, groups too."""
    yield name, command
    for each in getattr(command, "list_commands", lambda _: ())(click.Context(command)):
        yield from commands(command.get_command(click.Context(command), each), f"{name} {each}")


ALL = dict(commands())
OPTIONS = {
    f"{name} {option.opts[-1]}": option
    for name, command in ALL.items()
    for option in command.params
    if isinstance(option, click.Option)
}


@pytest.mark.parametrize("name", ALL)
def test_a_summary_is_one_short_line_with_a_verb(name):
    """So it is whole in the list of commands, and says what the command does."""
    summary, _, rest = cleandoc(ALL[name].help).partition("\n")

    assert len(summary) <= WIDEST
    assert summary.endswith(".")
    assert summary.split()[0].rstrip(",") in VERBS
    assert not rest.strip() or rest.startswith("\n")


@pytest.mark.parametrize("name", OPTIONS)
def test_an_option_says_its_default(name):
    """Where it has one; a flag is off."""
    option = OPTIONS[name]
    has_default = isinstance(option.default, int | float | str) and not option.is_flag
    has_words = not re.search(r"\b[Bb]y default\b|unless given", option.help)

    assert option.help.endswith(".")
    assert option.show_default or not has_default
    assert has_words, "the default belongs into show_default"


@pytest.mark.parametrize("name", OPTIONS)
def test_an_option_names_its_unit_plainly(name):
    """As in "seconds to wait"."""
    assert "so many" not in OPTIONS[name].help


@pytest.mark.parametrize(
    "name", [name for name, each in OPTIONS.items() if isinstance(each.type, click.FloatRange)]
)
def test_a_number_with_a_fraction_has_a_unit(name):
    """Seconds, or requests a second."""
    assert re.search(r"\b[Ss]econds?\b", OPTIONS[name].help)
