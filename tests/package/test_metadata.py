"""pyproject.toml and what names its parts: extras, groups and the version."""

from __future__ import annotations

import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
from packaging.version import Version

from celery_batch import __version__

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
EXTRAS = PROJECT["project"]["optional-dependencies"]
GROUPS = PROJECT["dependency-groups"]

#: Where users and the repository's own tools are told what to install.
_FOLDERS = ("bench", "celery_batch", "demo", "deploy", "docs", "examples", "webapp", "workers")
_KINDS = {"", ".md", ".py", ".toml", ".yml", ".yaml", ".conf", ".sh"}

_EXTRAS_NAMED = re.compile(r"(?:celery-batch|['\"/]\.)\[([a-z][a-z,-]*)\]")
_GROUPS_NAMED = re.compile(r"--group (?:\S+:)?([a-z]+)")


def _texts() -> dict[str, str]:
    """Return what the repository says, by file."""
    paths = [each for each in ROOT.iterdir() if each.suffix in _KINDS and each.is_file()]
    paths += [each for name in _FOLDERS for each in (ROOT / name).rglob("*") if each.is_file()]
    return {
        path.relative_to(ROOT).as_posix(): path.read_text()
        for path in paths
        if path.suffix in _KINDS and not path.name.startswith(".")
    }


def test_every_extra_that_is_named_exists() -> None:
    """Code, documents and images name extras that the wheel has, and each extra is named."""
    named = {
        (file, extra)
        for file, text in _texts().items()
        for extras in _EXTRAS_NAMED.findall(text)
        for extra in extras.split(",")
    }
    told = {extra for file, extra in named if file != "pyproject.toml"}

    assert [] == sorted(each for each in named if each[1] not in EXTRAS)
    assert {*EXTRAS} - {"flask", "django"} <= told  # the page names these beside FastAPI's


def test_every_group_that_is_named_exists() -> None:
    """Makefile, images and documents name groups of pyproject.toml."""
    named = {
        (file, group) for file, text in _texts().items() for group in _GROUPS_NAMED.findall(text)
    }

    assert {"Makefile", "Dockerfile"} <= {file for file, _ in named}
    assert [] == sorted(each for each in named if each[1] not in GROUPS)


def test_development_has_every_extra_and_group() -> None:
    """What `make` installs is all that is locked."""
    own, *rest = GROUPS["dev"]
    included, waiting = {"dev"}, [each for each in rest if isinstance(each, dict)]
    for each in waiting:  # grows
        included.add(each["include-group"])
        waiting += [more for more in GROUPS[each["include-group"]] if isinstance(more, dict)]

    assert sorted(EXTRAS) == _EXTRAS_NAMED.findall(own)[0].split(",")
    assert {*GROUPS} == included


def test_manifests_name_this_version() -> None:
    """The images of deploy/kubernetes, and the commands that build them, have this version."""
    files = [*(ROOT / "deploy" / "kubernetes").rglob("kustomization.yaml")]
    files.append(ROOT / "docs" / "how-to" / "operations" / "kubernetes.md")
    tag = re.compile(r"registry\.example\.org/[\w-]+(?:, newTag: |:)([\d.]+)")
    tags = [version for file in files for version in tag.findall(file.read_text())]

    assert len(tags) > 4
    assert {__version__} == {*tags}


def test_changelog_opens_with_this_version() -> None:
    """The newest section is this version's, also while it is developed."""
    titles = re.findall(r"^## ([\d.]+), ", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)

    assert Version(__version__).base_version == titles[0]


@pytest.mark.parametrize(
    ("tag", "dated", "error"),
    [
        (f"v{__version__}", "2026-12-01", ""),
        (f"v{__version__}", "not released yet", "CHANGELOG.md has no line"),
        ("v0.0.1", "2026-12-01", f"the version is {__version__}"),
    ],
    ids=["right", "no date", "other version"],
)
def test_tag_is_checked_before_a_release(tag: str, dated: str, error: str, tmp_path: Path) -> None:
    """Continuous integration publishes a tag that is the version, with a date in the changelog."""
    for file in (".ci/check-tag", "celery_batch/__init__.py"):
        (tmp_path / file).parent.mkdir()
        shutil.copy(ROOT / file, tmp_path / file)
    (tmp_path / "CHANGELOG.md").write_text(f"# Changelog\n\n## {__version__}, {dated}\n")
    done = subprocess.run(
        [tmp_path / ".ci" / "check-tag", tag], capture_output=True, text=True, check=False
    )

    assert error in done.stderr
    assert bool(error) is bool(done.returncode)
