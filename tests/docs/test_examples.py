"""The documents are right: examples run, links work, files exist."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from celery import Celery
from kombu import pools

from celery_batch.processes.managed_process import ManagedProcess, wait_until

ROOT = Path(__file__).parents[2]
DOCUMENTS = [
    *sorted(ROOT.glob("*.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    ROOT / "examples" / "README.md",
]
README = ROOT / "README.md"
WEB = ROOT / "docs" / "how-to" / "web" / "your-app.md"
TESTING = ROOT / "docs" / "how-to" / "tasks" / "testing.md"

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\((?!https?://)([^)#]*)(?:#([^)]*))?\)")
_FOLDERS = r"celery_batch|workers|webapp|deploy|bench|examples|tests|docs"

#: Appended to an example: each model in it is loaded and warmed up, as a worker would.
_LOAD_MODELS = """
from celery_batch.runtime import registry
registry.set_device("cpu")
for thing in list(globals().values()):
    if isinstance(thing, type) and thing.__module__ == "__main__" and hasattr(thing, "load"):
        registry.instance_of(thing)
        print(thing.__name__)
registry.unload_all()
"""

#: Appended to a documented web app: prints its view's response to the test client.
_POST = {
    "fastapi_view.py": """
from fastapi.testclient import TestClient
print(TestClient(app).post("/double", json=[1, 2]).json())
""",
    "flask_view.py": """
print(app.test_client().post("/double", json=[1, 2]).json)
""",
    "array_view.py": """
import io
import numpy
file = io.BytesIO()
numpy.save(file, [1, 2])
npy = {"Accept": "application/x-npy"}
found = app.test_client().post("/double", data=file.getvalue(), headers=npy).data
print(numpy.load(io.BytesIO(found)).tolist())
""",
    "django_view.py": """
from django.test import Client
print(Client().post("/double", [1, 2], "application/json").json()["outputs"])
""",
    "django_view.py under ASGI": """
import asyncio
from django.test import AsyncClient
sent = AsyncClient().post("/adouble", [1, 2], "application/json")
print(asyncio.run(sent).json()["outputs"])
""",
}


@dataclass(frozen=True)
class Example:
    """A Python example; its first line names its file."""

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


def write_files(document: Path, folder: Path) -> dict[str, str]:
    """Write the Python examples of a document as files, and return them by name."""
    files = {each.file: each.code for each in examples() if each.document == document}
    for name, code in files.items():
        (folder / name).write_text(code)
    return files


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


@contextmanager
def documented_worker(document: Path, folder: Path, broker: str) -> Iterator[dict[str, str]]:
    """Run the document's command for a worker, and yield the environment for its clients."""
    celery, *words = next(line for line in console_lines(document) if "worker" in line)
    urls = {"CELERY_BROKER_URL": broker, "CELERY_RESULT_BACKEND": broker}
    env = {**os.environ, **urls, "PYTHONPATH": str(folder)}
    command = [str(Path(sys.executable).with_name(celery)), *words]
    with (
        ManagedProcess(command, folder / "worker.log", env=env) as worker,
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
        yield env


@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    "example", [each for each in examples() if each.file != "client.py"], ids=str
)
def test_example_runs(example: Example, in_python, tmp_path: Path):
    """Each Python example runs beside its page's others, and its models load and warm up."""
    if "HF_MODEL" in example.code:
        pytest.importorskip("transformers")
        from tests.services.tiny_transformer import save_classifier  # noqa: PLC0415 (needs it)

        save_classifier(tmp_path)
    write_files(example.document, tmp_path)
    environ = {"CELERY_BROKER_URL": "memory://"} | dict.fromkeys(
        ("HF_MODEL", "PYTHONPATH"), str(tmp_path)
    )
    printed = in_python(example.code + _LOAD_MODELS, **environ)

    assert re.findall(r"^class (\w+)\(Model\)", example.code, re.MULTILINE) == printed.split()


def test_readme_example_answers(broker: str, tmp_path: Path):
    """The README's app, served by the README's command, prints the README's outputs."""
    files = write_files(README, tmp_path)
    with documented_worker(README, tmp_path, broker) as env:
        ran = subprocess.run(
            [sys.executable, "client.py"],
            cwd=tmp_path,
            env=env,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    promised = re.findall(r"  # (.+)$", files["client.py"], re.MULTILINE)

    assert "" == ran.stderr
    assert ["42", "999000", "[2, 4, 6]", "42"] == promised == ran.stdout.splitlines()


def test_documented_tests_pass(tmp_path: Path):
    """The tests that the page on testing shows pass, in a folder of their own."""
    write_files(TESTING, tmp_path)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )

    assert "7 passed" in ran.stdout, ran.stdout + ran.stderr


def test_documented_views_answer(broker: str, tmp_path: Path, in_python):
    """Each web app of the page returns the outputs of the page's worker."""
    files = write_files(WEB, tmp_path)
    with documented_worker(WEB, tmp_path, broker) as env:
        answers = {
            name: in_python(files[name.partition(" ")[0]] + post, **env)
            for name, post in _POST.items()
        }

    assert dict.fromkeys(_POST, "[2, 4]") == answers


def test_web_variables_are_documented_with_their_defaults():
    """Each variable that the example web apps read is listed with its default."""
    documented = {row[0]: row[1] for row in table_rows(WEB) if row[0].startswith("WEBAPP_")}
    source = (ROOT / "webapp" / "tasks.py").read_text()
    defaults = dict(re.findall(r'"(WEBAPP_\w+)", "([^"]*)"', source))

    assert set(re.findall(r"\bWEBAPP_[A-Z_]+\b", source)) == defaults.keys()
    assert {name: default or "none" for name, default in defaults.items()} == documented


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(document: Path):
    """Each link to a file or to a heading has its target."""
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
    """Each file and folder that a document names exists."""
    named = set(re.findall(rf"`((?:{_FOLDERS})/[\w./-]*)`", document.read_text()))

    assert [] == [path for path in sorted(named) if not (ROOT / path).exists()]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_make_targets_exist(document: Path):
    """Each `make` command in a document is a target."""
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    inline = set(re.findall(r"`make ([\w-]+)[^`]*`", document.read_text()))
    shown = {words[1] for words in console_lines(document) if words[0] == "make"}

    assert set() == (inline | shown) - targets
