"""What the documents say is true: examples run, options exist, links lead somewhere."""

from __future__ import annotations

import dataclasses
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from celery import Celery
from kombu import pools

from celery_batch import config
from celery_batch.batching.policy import DEFAULT_LINGER
from celery_batch.cli.child import Child, wait_until
from webapp.settings import Settings as WebSettings

ROOT = Path(__file__).parents[2]
DOCUMENTS = [
    *sorted(ROOT.glob("*.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    ROOT / "examples" / "README.md",
]
README = ROOT / "README.md"
OPTIONS = ROOT / "docs" / "options.md"

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\((?!https?://)([^)#]*)(?:#([^)]*))?\)")
_ROOMS = r"celery_batch|workers|webapp|deploy|bench|examples|tests|docs"

#: Appended to an example: each model in it is loaded and warmed up, as a worker would.
_LOAD_MODELS = """
from celery_batch.serving import residents
for thing in list(globals().values()):
    if isinstance(thing, type) and thing.__module__ == "__main__" and hasattr(thing, "load"):
        residents.move_in(thing, "cpu")
        print(thing.__name__)
residents.move_out()
"""


@dataclass(frozen=True)
class Example:
    """A Python example; its first line says which file it stands for."""

    document: Path
    code: str

    @property
    def file(self) -> str:
        """The name of the file."""
        return self.code.partition("\n")[0].removeprefix("# ")

    def __str__(self) -> str:
        return f"{self.document.name}:{self.file}"


def examples() -> Iterator[Example]:
    """Find the Python examples of all documents."""
    for document in DOCUMENTS:
        for language, code in _FENCE.findall(document.read_text()):
            if language == "python":
                yield Example(document, code)


def readme_file(name: str) -> str:
    """Return the README's example of a file."""
    return next(each.code for each in examples() if (each.document, each.file) == (README, name))


def console_lines(document: Path) -> list[list[str]]:
    """Split every command of a document into words."""
    blocks = [
        code for language, code in _FENCE.findall(document.read_text()) if "console" in language
    ]
    lines = (shlex.split(line, comments=True) for block in blocks for line in block.splitlines())
    return [line for line in lines if line]


def table_rows(document: Path) -> list[list[str]]:
    """Return the cells of every table row of a document, without code marks."""
    lines = [line for line in document.read_text().splitlines() if line.startswith("| ")]
    return [
        [cell.strip().replace("`", "") for cell in line.strip("|").split("|")] for line in lines
    ]


@pytest.mark.parametrize("example", [each for each in examples() if each.file != "ask.py"], ids=str)
def test_example_runs(example: Example, in_python):
    """Each Python example runs as it stands, and its models can be loaded and warmed up."""
    printed = in_python(example.code + _LOAD_MODELS, CELERY_BROKER_URL="memory://")

    assert re.findall(r"^class (\w+)\(Model\)", example.code, re.MULTILINE) == printed.split()


def test_readme_example_answers(broker: str, tmp_path: Path):
    """The README's app, served by the README's command, gives the README's answers."""
    for name in ("tasks.py", "ask.py"):
        (tmp_path / name).write_text(readme_file(name))
    celery, *words = next(line for line in console_lines(README) if "worker" in line)
    urls = {"CELERY_BROKER_URL": broker, "CELERY_RESULT_BACKEND": broker}
    env = {**os.environ, **urls, "PYTHONPATH": str(tmp_path)}
    command = [str(Path(sys.executable).with_name(celery)), *words]
    with (
        Child(command, tmp_path / "worker.log", env=env) as worker,
        Celery(broker=broker, set_as_current=False) as client,
    ):
        ping = client.control.ping
        wait_until(
            lambda: "" if ping(timeout=0.5, limit=1) else "no answer to a ping",
            [worker],
            what="worker",
            timeout=60,
        )
        pools.reset()
        asked = subprocess.run(
            [sys.executable, "ask.py"],
            cwd=tmp_path,
            env=env,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    promised = re.findall(r"  # (.+)$", readme_file("ask.py"), re.MULTILINE)

    assert ["celery", "-A", "tasks", "worker", "--concurrency=1"] == [celery, *words]
    assert "" == asked.stderr
    assert ["42", "1", "999000", "[2, 4, 6]", "42"] == promised == asked.stdout.splitlines()


def test_every_setting_is_documented_with_its_default():
    """The page of options lists each setting of ours with its default, and no other."""
    documented = {row[0]: row[1] for row in table_rows(OPTIONS) if row[0].startswith("batch_")}

    assert {name: repr(default) for name, default in config.SETTINGS.items()} == documented


def test_every_task_option_is_documented_with_its_default():
    """Both tables of task options name the setting behind each and its default."""
    defaults = {
        option: (setting, f"{config.SETTINGS[setting] or DEFAULT_LINGER:g}")
        for option, setting in config.OPTIONS.items()
    }
    in_readme = {
        row[0]: (row[1], row[2].split()[0]) for row in table_rows(README) if row[0] in defaults
    }
    in_options = {row[0]: row[1] for row in table_rows(OPTIONS) if row[0] in defaults}

    assert defaults == in_readme
    assert all(in_options[each].startswith(": ".join(defaults[each])) for each in defaults)


def test_web_settings_are_documented_with_their_defaults():
    """Each variable that the example web server reads is listed with its default."""
    rows = table_rows(ROOT / "docs" / "web.md")
    documented = {row[0]: row[1] for row in rows if row[0].startswith("WEBAPP_")}
    defaults = {
        f"WEBAPP_{field.name.upper()}": "none"
        if field.default in (None, "")
        else str(field.default).removesuffix(".0").replace("False", "0")
        for field in dataclasses.fields(WebSettings)
    }

    assert defaults == documented


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(document: Path):
    """Each link to a file or to a heading of one finds it."""
    broken = []
    for path, heading in _LINK.findall(document.read_text()):
        target = (document.parent / path).resolve() if path else document
        if not target.exists() or (heading and heading not in headings(target)):
            broken.append(f"{path}#{heading}")

    assert [] == broken


def headings(document: Path) -> set[str]:
    """Return the anchors of a document's headings."""
    titles = re.findall(r"^#+ (.+)$", document.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_named_files_exist(document: Path):
    """Each file and folder of ours that a document names is there."""
    named = set(re.findall(rf"`((?:{_ROOMS})/[\w./-]*)`", document.read_text()))

    assert [] == [path for path in sorted(named) if not (ROOT / path).exists()]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_make_targets_exist(document: Path):
    """Each `make` command that a document gives is a target."""
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    inline = set(re.findall(r"`make ([\w-]+)[^`]*`", document.read_text()))
    shown = {words[1] for words in console_lines(document) if words[0] == "make"}

    assert set() == (inline | shown) - targets
