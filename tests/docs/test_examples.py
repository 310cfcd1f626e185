"""The documents are right: examples run, links work, files exist."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import httpx
import pytest
from celery import Celery
from kombu import pools

from celery_batch.processes.managed_process import ManagedProcess, wait_until
from tests.services import forked
from tests.services.servers.ports import quiet_port

ROOT = Path(__file__).parents[2]
DOCUMENTS = [
    *sorted(ROOT.glob("*.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    ROOT / "examples" / "README.md",
]
README = ROOT / "README.md"
WEB = ROOT / "docs" / "how-to" / "web"
ANY_APP, FASTAPI, FLASK, DJANGO = (
    WEB / f"{name}.md" for name in ("your-app", "fastapi", "flask", "django")
)
EASY_SERVE = ROOT / "docs" / "how-to" / "migrate" / "easy-serve.md"
TUTORIAL = ROOT / "docs" / "tutorial" / "embeddings.md"
EXAMPLE_APPS = ROOT / "docs" / "tutorial" / "example-apps.md"
TESTING = ROOT / "docs" / "how-to" / "tasks" / "testing.md"

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\((?!https?://)([^)#]*)(?:#([^)]*))?\)")
#: A link to an example of another page, which a page's own examples import.
_TAKEN = re.compile(r"\[`(\w+\.py)`\]\(([\w-]+\.md)#")
_FOLDERS = r"celery_batch|workers|webapp|deploy|bench|examples|tests|docs"

#: What takes long to import in several examples, and its parts that they use.
_SLOW = {
    "fastapi": ["fastapi"],
    "flask": ["flask"],
    "pytest": ["pytest"],
    "torch": ["torch"],
    "transformers": ["transformers.models.bert.modeling_bert", "transformers.pipelines"],
}

#: Plugins that the documented tests do without; the second takes half a second to import.
_WITHOUT = ("-p", "no:cacheprovider", "-p", "no:schemathesis")

#: Writes a model for the examples that want one.
_SAVE_CLASSIFIER = """
import transformers
from pathlib import Path
from tests.apps.models.tiny_transformer import save_classifier
save_classifier(Path({folder!r}))
"""

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

#: Appended to a documented view: prints its response to the test client.
_POST_ARRAY = """
import io
import numpy
file = io.BytesIO()
numpy.save(file, [1, 2])
npy = {"Accept": "application/x-npy"}
found = app.test_client().post("/double", data=file.getvalue(), headers=npy).data
print(numpy.load(io.BytesIO(found)).tolist())
"""

#: Appended to the README's view: prints what it answers where there is no Redis.
_POST_NUMBERS = """
from fastapi.testclient import TestClient
answer = TestClient(app, raise_server_exceptions=False).post("/double", json=[1, 2])
print(answer.status_code, answer.headers.get("Retry-After"))
"""

#: Appended to a page's handle: prints what a worker's model answers to an envelope.
_RUN_HANDLE = """
import json
import os
import sys
from celery_batch.serve.handle_model import HandleModel
sys.modules["handle"] = sys.modules["__main__"]
model = type("Served", (HandleModel,), {"handle_name": os.environ["HANDLE"]})()
model.load("cpu")
print(json.dumps(model.predict([json.loads(os.environ["ENVELOPE"])])))
"""

#: A test of somebody who uses Celery's fixtures: calls on the default queue and on a routed one.
_FIXTURE_TEST = """
from shop_tasks import price

def test_worker_of_the_app(celery_session_worker):
    calls = [price.delay(1), price.apply_async((2,), queue="gpu")]
    assert [each.get(timeout=10) for each in calls] == [2, 4]
"""

#: For each page on a web framework: the tests of its view, and the paths that its servers answer.
_PAGES = {FASTAPI: (4, ["/double"]), FLASK: (5, ["/double"]), DJANGO: (6, ["/double", "/adouble"])}


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
    """Write a document's Python examples, and those that it takes from others, as files."""
    wanted = {(document.parent / page, name) for name, page in _TAKEN.findall(document.read_text())}
    files = {
        each.file: each.code
        for each in examples()
        if each.document == document or (each.document, each.file) in wanted
    }
    for name, code in files.items():
        (folder / name).write_text(code)
    return files


def console_lines(document: Path) -> list[list[str]]:
    """Split every command of a document into words."""
    blocks = [
        code for language, code in _FENCE.findall(document.read_text()) if "console" in language
    ]
    joined = (block.replace("\\\n", "") for block in blocks)
    lines = (shlex.split(line, comments=True) for block in joined for line in block.splitlines())
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


def printed_by(code: str, folder: Path) -> str:
    """Return what an example prints, whose page's other examples are in a folder."""
    slow = [name for name in _SLOW if re.search(rf"^ *(import|from) {name}\b", code, re.MULTILINE)]
    environ = dict.fromkeys(("HF_MODEL", "PYTHONPATH"), str(folder))
    ran = forked.run(
        [sys.executable, "-c", code],
        env={**os.environ, "CELERY_BROKER_URL": "memory://", **environ},
        timeout=100,
        imports=[part for name in slow for part in _SLOW[name]],
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.strip()


def group_of(example: Example) -> str:
    """Return the name of the examples whose libraries are imported once for all."""
    return "examples-torch" if re.search("import torch|HF_MODEL", example.code) else "examples"


@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    "example",
    [
        pytest.param(each, marks=pytest.mark.xdist_group(group_of(each)))
        for each in examples()
        # The tutorial runs in tests/examples, where it may write files.
        if each.document != TUTORIAL and each.file != "client.py"
    ],
    ids=str,
)
def test_example_runs(example: Example, tmp_path: Path):
    """Each Python example runs beside its page's others, and its models load and warm up."""
    if "HF_MODEL" in example.code:
        if not find_spec("transformers"):
            pytest.skip("transformers is not installed")
        assert "" == printed_by(_SAVE_CLASSIFIER.format(folder=str(tmp_path)), tmp_path)
    write_files(example.document, tmp_path)
    printed = printed_by(example.code + _LOAD_MODELS, tmp_path)

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


def test_readme_view_asks_to_come_again_while_redis_is_away(in_python, tmp_path: Path):
    """It answers 503 with Retry-After, and no 500."""
    files, away = write_files(README, tmp_path), f"redis://127.0.0.1:{quiet_port()}/0"
    env = {"CELERY_BROKER_URL": away, "CELERY_RESULT_BACKEND": away, "PYTHONPATH": str(tmp_path)}

    assert "503 1" == in_python(files["view.py"] + _POST_NUMBERS, **env)


@pytest.mark.parametrize(
    ("document", "passed"),
    [(TESTING, 7), *((page, passed) for page, (passed, _) in _PAGES.items())],
    ids=lambda each: each.stem if isinstance(each, Path) else "",
)
def test_documented_tests_pass(document: Path, passed: int, tmp_path: Path):
    """The tests that a page shows pass, in a folder of their own."""
    write_files(document, tmp_path)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    line = next((line for line in console_lines(document) if line[-2:] == ["-m", "pytest"]), [])
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *_WITHOUT],
        cwd=tmp_path,
        env={**os.environ, **dict(word.split("=", 1) for word in line if "=" in word)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )

    assert f"{passed} passed" in ran.stdout, ran.stdout + ran.stderr


def test_documented_fixtures_run_a_worker_of_the_app(tmp_path: Path):
    """With the page's conftest.py Celery's session worker runs the tasks of the page's app."""
    files = write_files(TESTING, tmp_path)
    for name in files.keys() - {"shop_tasks.py", "conftest.py"}:
        (tmp_path / name).unlink()
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "test_own_app.py").write_text(_FIXTURE_TEST)
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *_WITHOUT],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )

    assert "1 passed" in ran.stdout, ran.stdout + ran.stderr


@pytest.mark.timeout(240)
@pytest.mark.parametrize("page", _PAGES, ids=lambda page: page.stem)
def test_documented_servers_answer(page: Path, broker: str, tmp_path: Path):
    """Each server command of the page serves its view, which returns the worker's outputs."""
    write_files(page, tmp_path)
    lines = [line for line in console_lines(page) if line[0] in ("uvicorn", "gunicorn")]
    answers = []
    with documented_worker(page, tmp_path, broker) as env:
        for line, path in zip(lines, _PAGES[page][1], strict=True):
            with served(line, tmp_path, env) as url:
                response = httpx.post(f"{url}{path}", json=[1, 2], trust_env=False)
                answers.append(response.json())

    expected: object = {"outputs": [2, 4]} if page == DJANGO else [2, 4]
    assert [expected] * len(_PAGES[page][1]) == answers


@contextmanager
def served(words: list[str], folder: Path, env: dict[str, str]) -> Iterator[str]:
    """Run a documented web server on a free port, and yield its URL when it is ready."""
    port = quiet_port()
    url = f"http://127.0.0.1:{port}"
    address = {"UVICORN_PORT": str(port), "GUNICORN_CMD_ARGS": f"--bind 127.0.0.1:{port}"}
    command = [str(Path(sys.executable).with_name(words[0])), *words[1:]]
    log = folder / f"{words[0]}.log"

    def why_not_ready() -> str:
        try:
            response = httpx.get(f"{url}/readyz", trust_env=False)
        except httpx.HTTPError as error:
            return str(error)
        return "" if response.is_success else response.text

    with ManagedProcess(command, log, env={**env, **address}) as server:
        wait_until(why_not_ready, [server], what=words[0], timeout=60)
        yield url


def test_documented_array_view_answers(broker: str, tmp_path: Path, in_python):
    """The view for arrays returns the outputs of the page's worker as .npy."""
    files = write_files(ANY_APP, tmp_path)
    with documented_worker(ANY_APP, tmp_path, broker) as env:
        answer = in_python(files["array_view.py"] + _POST_ARRAY, **env)

    assert answer == "[2, 4]"


@pytest.mark.parametrize(
    ("document", "handle", "text", "response"),
    [
        (WEB / "serve.md", "Sentiment", "a good day", {"score": 1}),
        (EASY_SERVE, "Lengths", "four", {"length": 4}),
    ],
    ids=["serve", "easy-serve"],
)
def test_documented_handles_answer(document: Path, handle: str, text: str, response, in_python):
    """The handle of a page, as a worker runs it, returns what the page says."""
    found = (each.code for each in examples() if each.document == document)
    code = next(code for code in found if code.startswith("# handle.py"))
    envelope = {"task_id": "1", "task_info": {"text": text}}
    printed = in_python(f"{code}{_RUN_HANDLE}", HANDLE=handle, ENVELOPE=json.dumps(envelope))

    assert [response] == json.loads(printed)


def test_web_variables_are_documented_with_their_defaults():
    """Each variable that the example web apps read is listed with its default."""
    documented = {
        row[0]: row[1] for row in table_rows(EXAMPLE_APPS) if row[0].startswith("WEBAPP_")
    }
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
