"""The reference names what the package offers."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import click
import pytest

import celery_batch
from celery_batch.checks.checkup import CHECKS
from celery_batch.cli.main import batch
from tests.docs.test_docstrings import MODULES

#: Names that a module passes on from that of Starlette, which has them on the page.
OF_STARLETTE = {
    "celery_batch.web.fastapi": {"add_exception_handlers", "array_response"},
}

REFERENCE = Path(__file__).parents[2] / "docs" / "reference"
API = REFERENCE / "api.md"

#: Sphinx's configuration for the page of the command line alone.
CONFIGURATION = """
extensions = ["myst_parser", "sphinx_click"]
root_doc = "cli"
"""


def commands(command=batch, name="celery batch"):
    """Yield each command with its whole name, groups too."""
    context = click.Context(command)
    yield name, command
    if isinstance(command, click.Group):
        for each in command.list_commands(context):
            yield from commands(command.get_command(context, each), f"{name} {each}")


def bare(text):
    """Return a text without white space, quotes and emphasis: what any output format keeps."""
    return re.sub(r"[\s`'*\"]", "", text)


@pytest.fixture(scope="module")
def command_line(tmp_path_factory):
    """Return the text of each section of the built page of the command line, by its heading."""
    source = tmp_path_factory.mktemp("source")
    (source / "conf.py").write_text(CONFIGURATION)
    shutil.copy(REFERENCE / "cli.md", source)
    sphinx = [sys.executable, "-m", "sphinx", "-q", "-n", "-W", "-b", "text", source, source / "_"]
    subprocess.run(sphinx, check=True, timeout=60)
    text = (source / "_" / "cli.txt").read_text()
    parts = re.split(r"^(.+)\n[*=~-]{3,}$", text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def test_every_public_name_is_in_the_reference():
    """And nothing else, so no name stays after it has gone."""
    directive = re.compile(r"^\.\. auto(?:class|function|exception):: (\w+)$", re.MULTILINE)
    listed = directive.findall(API.read_text())

    assert sorted(listed) == sorted({*celery_batch.__all__} - {"__version__"})


@pytest.mark.parametrize("module", MODULES)
def test_every_name_of_a_module_for_users_is_in_the_reference(module):
    """The page documents the module, with all of its names or with a list that has them."""
    _, found, rest = API.read_text().partition(f".. automodule:: {module}\n")
    block = rest.partition("```")[0]
    options = re.findall(r"^   :members:(.*)$", block, re.MULTILINE)
    data = re.findall(rf"^\.\. autodata:: {module}\.(\w+)$", block, re.MULTILINE)
    listed = {name.strip() for name in ",".join([*options, *data]).split(",") if name.strip()}
    names = {*import_module(module).__all__} - OF_STARLETTE.get(module, set())

    assert found
    assert not listed or names == listed


@pytest.mark.parametrize(("name", "command"), [*commands()], ids=[name for name, _ in commands()])
def test_every_command_is_in_the_reference(command_line, name, command):
    """With its help, and with all its options and theirs."""
    heading = name if command is batch else command.name
    section = bare(command_line[heading])
    options = [param for param in command.params if isinstance(param, click.Option)]

    assert command.help
    assert bare(command.help)[:40] in section
    assert all(param.opts[-1] in section for param in options)
    assert all(bare(param.help)[:20] in section for param in options)


@pytest.mark.parametrize("page", ["reference/check-and-top.md", "tutorial/embeddings.md"])
def test_quoted_checks_exist(page: str):
    """Each line of `celery batch check` that a page shows begins with a check's id."""
    text = (REFERENCE.parent / page).read_text()
    quoted = re.findall(r"^(?:ok|warning|problem) +([\w-]+):", text, re.MULTILINE)

    assert quoted
    assert set() == set(quoted) - CHECKS.keys()
