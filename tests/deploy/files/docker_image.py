"""The Dockerfile's images as folders: what its steps copy and install, done on this machine."""

from __future__ import annotations

import json
import re
import shutil
import sys
import tomllib
import venv
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from string import Template
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

__all__ = ["Image", "Step", "image_of", "stages"]

ROOT = Path(__file__).parents[3]
DOCKERFILE = ROOT / "Dockerfile"

#: The dependency groups that a stage installs.
_GROUP = re.compile(r"--group (\S+)")
_SCRIPT = "#!{python}\nimport sys\nfrom {module} import {first}\nsys.exit({attribute}())\n"


@dataclass(frozen=True)
class Step:
    """One instruction of the Dockerfile."""

    word: str
    rest: str

    @property
    def words(self) -> list[str]:
        """What it is given: the list of its JSON form, or its words."""
        return json.loads(self.rest) if self.rest.startswith("[") else self.rest.split()

    @property
    def command(self) -> list[str]:
        """What is run by CMD, or by HEALTHCHECK after its options."""
        return json.loads(self.rest[self.rest.index("[") :])


@dataclass
class Image:
    """An image: its folders below `root`, and what it says of itself."""

    root: Path
    env: dict[str, str] = field(default_factory=dict)
    settings: dict[str, Step] = field(default_factory=dict)

    @property
    def folder(self) -> Path:
        """Where its commands run."""
        return self.inside(self.settings["WORKDIR"].rest)

    def inside(self, path: str) -> Path:
        """Return where a path of the image is on this machine."""
        return self.root / path.lstrip("/")


def stages() -> dict[str, tuple[str, list[Step]]]:
    """Return each stage of the Dockerfile: what it builds on, and its steps."""
    text = re.sub(r"^\s*#.*\n", "", DOCKERFILE.read_text(), flags=re.MULTILINE)
    text = re.sub(r"\\\n\s*", "", text)
    found: dict[str, tuple[str, list[Step]]] = {}
    steps: list[Step] = []
    for line in filter(str.strip, text.splitlines()):
        word, _, rest = line.partition(" ")
        if word == "FROM":
            base, _, name = rest.partition(" AS ")
            steps = []
            found[name] = (base, steps)
        else:
            steps.append(Step(word, rest.strip()))
    return found


def image_of(target: str, root: Path) -> Image:
    """
    Carry out a stage's steps, and those that it builds on.

    Args:
        target: The stage.
        root: An empty folder, which becomes the image's root.
    """
    image = Image(root)
    for step in _steps_of(target):
        if step.word == "ENV":
            for pair in step.words:
                name, _, value = pair.partition("=")
                image.env[name] = value
        elif step.word == "COPY":
            _copy(image, step.words)
        elif step.word != "RUN":
            image.settings[step.word] = step
    return image


def _steps_of(stage: str) -> Iterator[Step]:
    base, steps = stages()[stage]
    if base in stages():
        yield from _steps_of(base)
    yield from steps


def _copy(image: Image, words: list[str]) -> None:
    *sources, target = words
    if sources[0].startswith("--from="):
        stage = sources[0].removeprefix("--from=")
        if stage.startswith("build-"):  # else a program of another image: this machine has its own
            _install(stage, image.inside(target))
        return
    where = image.inside(target) if target.startswith("/") else image.folder / target
    for source in sources:
        if (ROOT / source).is_dir():
            shutil.copytree(ROOT / source, where)
        else:
            into = where / Path(source).name if len(sources) > 1 else where
            into.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / source, into)


def _install(stage: str, where: Path) -> None:
    """Make what a building stage installs: its packages and ours, and nothing else of ours."""
    steps = list(_steps_of(stage))
    arguments = dict(step.rest.split("=", 1) for step in steps if step.word == "ARG")
    named = [name.strip('"') for step in steps for name in _GROUP.findall(step.rest)]
    groups = {Template(name).substitute(arguments) for name in named}
    venv.create(where, symlinks=True)
    (packages,) = (where / "lib").glob("python*/site-packages")
    python = where / "bin" / "python"
    for name in sorted(wanted(groups)):
        _link(metadata.distribution(name), packages)
    _put_ours(packages)
    installed = metadata.distributions(path=[str(packages)])
    found = [script for package in installed for script in package.entry_points]
    for script in (each for each in found if each.group == "console_scripts"):
        file = where / "bin" / script.name
        words = {"module": script.module, "attribute": script.attr}
        first = script.attr.partition(".")[0]
        file.write_text(_SCRIPT.format(python=python, first=first, **words))
        file.chmod(0o755)


def wanted(groups: set[str]) -> set[str]:
    """Return the names of all packages that ours and these dependency groups ask for."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    found: dict[str, set[str]] = {}
    waiting = [Requirement(line) for line in _lines(project, groups)]
    while waiting:
        asked = waiting.pop()
        name = canonicalize_name(asked.name)
        if asked.marker and not asked.marker.evaluate({"extra": ""}):
            continue
        known = found.get(name)
        if known is not None and asked.extras <= known:
            continue
        found[name] = (known or set()) | asked.extras
        waiting += _asks_for(name, found[name])
    return set(found)


def _lines(project: dict[str, Any], groups: set[str]) -> Iterator[str]:
    """Yield what our package and some groups ask for, our extras resolved."""
    extras = project["project"]["optional-dependencies"]
    waiting = [*project["project"]["dependencies"]]
    waiting += [{"include-group": group} for group in groups]
    for each in waiting:  # grows
        if isinstance(each, dict):
            waiting += project["dependency-groups"][each["include-group"]]
        elif (asked := Requirement(each)).name == project["project"]["name"]:
            waiting += [line for extra in asked.extras for line in extras[extra]]
        else:
            yield each


def _asks_for(name: str, extras: set[str]) -> Iterator[Requirement]:
    for line in metadata.requires(name) or ():
        asked = Requirement(line)
        marker = asked.marker
        if marker is None or any(marker.evaluate({"extra": each}) for each in {"", *extras}):
            asked.marker = None
            yield asked


def _link(package: metadata.Distribution, packages: Path) -> None:
    """Put a package that is installed here into another environment."""
    tops = {file.parts[0] for file in package.files or () if file.parts[0] != ".."}
    for top in tops - {"__pycache__"}:
        here = packages / top
        if not here.exists():
            here.symlink_to(package.locate_file(top))


def _put_ours(packages: Path) -> None:
    """Install our package as its wheel would."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    # With what is compiled, or each process would compile all of it.
    shutil.copytree(ROOT / "celery_batch", packages / "celery_batch")
    information = packages / "celery_batch-0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: celery-batch\nVersion: 0\n")
    groups = project.get("entry-points", {})
    lines = [
        line
        for group, entries in groups.items()
        for line in (f"[{group}]", *(f"{name} = {value}" for name, value in entries.items()))
    ]
    (information / "entry_points.txt").write_text("\n".join([*lines, ""]))


if __name__ == "__main__":
    print(image_of(sys.argv[1], Path(sys.argv[2])))  # noqa: T201 (to look at one)
