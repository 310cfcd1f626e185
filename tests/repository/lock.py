"""
The versions that development installs: ``python tests/repository/lock.py``, or `make lock`.

`constraints.txt` holds one version of every package that ``pip install --group dev -e .`` brings,
those that other packages ask for included.  Without an option this checks that it does.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

ROOT = Path(__file__).parents[2]
LOCK = "constraints.txt"

#: Never upgraded by the way: an unpinned torch may resolve to a build that brings several
#: gigabytes of CUDA packages.
PINNED = {"torch": "2.13.0"}

_HEAD = """\
# Written by `make lock` with Python {python}: the version of every package that development
# installs, those that other packages ask for included.  Where nothing asks for a package, on
# another platform or another Python, its line installs nothing.
"""


def main() -> int:
    """Check the lock, or write it; return 1 if it does not hold what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="add what is missing, drop the rest")
    parser.add_argument("--upgrade", nargs="+", default=[], metavar="NAME", help="or `all`")
    options = parser.parse_args()
    if options.write:
        write(options.upgrade)
        return 0
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    locked = read((ROOT / LOCK).read_text())
    found = [
        *complaints(project, locked, asked_by_installed),
        *too_new(project, locked, _python_of),
    ]
    print("\n".join(found) or f"lock: {LOCK} holds all that pyproject.toml asks for")  # noqa: T201
    return int(bool(found))


def read(text: str) -> dict[str, str]:
    """Return the locked versions by name."""
    lines = (line.partition("#")[0].strip() for line in text.splitlines())
    pairs = (line.split("==") for line in lines if line)
    return {normal(name): version for name, version in pairs}


def normal(name: str) -> str:
    """Return a package's name as PyPI compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def write(upgraded: Collection[str]) -> None:
    """
    Resolve what development asks for, and write it down.

    Args:
        upgraded: Packages whose newest versions are wanted, or "all"; the others keep theirs.
    """
    path = ROOT / LOCK
    kept = {} if "all" in upgraded or not path.exists() else read(path.read_text())
    for name in upgraded:
        kept.pop(normal(name), None)
    versions = _resolve({**kept, **PINNED})
    python = ".".join(map(str, sys.version_info[:2]))
    path.write_text(_HEAD.format(python=python) + _lines(versions))
    print(f"lock: {len(versions)} packages in {LOCK}")  # noqa: T201


def _resolve(wanted: Mapping[str, str]) -> dict[str, str]:
    """Return the versions that pip would install into an empty environment."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    ours = normal(project["project"]["name"])
    with tempfile.TemporaryDirectory() as folder:
        constraints = Path(folder, "wanted.txt")
        constraints.write_text(_lines(wanted))
        report = Path(folder, "report.json")
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run"]
        command += ["--ignore-installed", "--report", str(report), "-c", str(constraints)]
        command += ["--disable-pip-version-check", *project["build-system"]["requires"]]
        command += ["--group", f"{ROOT / 'pyproject.toml'}:dev", str(ROOT)]
        subprocess.run(command, check=True, cwd=folder)
        packages = [each["metadata"] for each in json.loads(report.read_text())["install"]]
    # "2.13.0+cpu" is a build of 2.13.0, and which one there is differs from machine to machine.
    found = {normal(each["name"]): each["version"].partition("+")[0] for each in packages}
    found.pop(ours)
    return found


def _lines(versions: Mapping[str, str]) -> str:
    return "".join(f"{name}=={version}\n" for name, version in sorted(versions.items()))


def complaints(
    project: Mapping[str, Any],
    locked: Mapping[str, str],
    asked_by: Callable[[Requirement], Iterable[Requirement]],
) -> Iterator[str]:
    """
    Say what is asked for, at first or at second hand, and not locked.

    Args:
        project: What pyproject.toml says.
        locked: Versions by name.
        asked_by: Returns what a package asks for in turn.
    """
    own = normal(project["project"]["name"])
    waiting = [("pyproject.toml", each) for each in _asked_by_project(project)]
    seen = set()
    for asker, requirement in waiting:  # grows
        name = normal(requirement.name)
        if name == own or str(requirement) in seen:
            continue
        seen.add(str(requirement))
        wish = f"{asker} asks for {requirement}, and {LOCK}"
        if name not in locked:
            yield f"{wish} does not hold it: run `make lock`"
        elif not requirement.specifier.contains(locked[name], prereleases=True):
            yield f"{wish} holds {name}=={locked[name]}: run `make lock UPGRADE={name}`"
        waiting += [(name, each) for each in asked_by(requirement)]


def too_new(
    project: Mapping[str, Any], locked: Mapping[str, str], python_of: Callable[[str], str | None]
) -> Iterator[str]:
    """Say which locked releases, given the Pythons that they ask for, miss our oldest one."""
    # Pip would try one build of torch after another before it says so.
    oldest = project["project"]["requires-python"].removeprefix(">=")
    for name, version in locked.items():
        if not SpecifierSet(asked := python_of(name) or "").contains(oldest):
            yield f"{name}=={version} asks for Python {asked}, we for {oldest}: lock an older one"


def _python_of(name: str) -> str | None:
    """Return which Pythons an installed package asks for; None for any."""
    try:
        return metadata.metadata(name)["Requires-Python"]
    except metadata.PackageNotFoundError:
        return None


def _asked_by_project(project: Mapping[str, Any]) -> Iterator[Requirement]:
    """Yield what the package, its extras, its groups and its build ask for on this Python."""
    extras = project["project"].get("optional-dependencies", {})
    groups = project.get("dependency-groups", {})
    texts = [*project["project"].get("dependencies", ()), *project["build-system"]["requires"]]
    lists = [*extras.values(), *groups.values()]
    texts += [text for each in lists for text in each if isinstance(text, str)]
    for requirement in map(Requirement, texts):
        if requirement.marker is None or requirement.marker.evaluate():
            yield requirement


def asked_by_installed(requirement: Requirement) -> Iterator[Requirement]:
    """Yield what an installed package asks for on this Python, with the extras that are wanted."""
    with suppress(metadata.PackageNotFoundError):
        for each in map(Requirement, metadata.requires(requirement.name) or ()):
            extras = ("", *requirement.extras)
            if each.marker is None or any(each.marker.evaluate({"extra": e}) for e in extras):
                yield each


if __name__ == "__main__":
    sys.exit(main())
