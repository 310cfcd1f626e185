"""What ``tests/repository/lock.py`` finds missing in a lock."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement

from tests.repository.lock import LOCK, ROOT, complaints, read, too_new


def _project(*dev: str, asked: tuple[str, ...] = ("celery>=5",)) -> dict[str, Any]:
    groups = {"dev": [*dev, "our-package[more]", {"include-group": "docs"}], "docs": ["sphinx>=9"]}
    return {
        "project": {
            "name": "Our.Package",
            "dependencies": list(asked),
            "optional-dependencies": {"more": ["rich>=13"]},
        },
        "dependency-groups": groups,
        "build-system": {"requires": ["hatchling>=1"]},
    }


def _found(project: dict[str, Any], lock: str, **asked_by: tuple[str, ...]) -> list[str]:
    def ask(requirement: Requirement) -> list[Requirement]:
        return [Requirement(text) for text in asked_by.get(requirement.name, ())]

    return list(complaints(project, read(lock), ask))


WHOLE = "# a comment\ncelery==5.7.0\nrich==14.1\nhatchling==1.27.0\nkombu==5.6\nsphinx==9.0\n"


def test_lock_that_holds_everything_passes() -> None:
    """Dependencies, extras, groups, the build's own and what they ask for: no complaint."""
    found = _found(_project(), WHOLE, celery=("kombu>=5",), kombu=("Celery",))

    assert [] == found


@pytest.mark.parametrize(
    "gone", ["celery==5.7.0", "rich==14.1", "hatchling==1.27.0", "sphinx==9.0"]
)
def test_what_the_lock_does_not_hold_is_named(gone: str) -> None:
    """A package that pyproject.toml asks for and the lock does not hold is named with the cure."""
    (found,) = _found(_project(), WHOLE.replace(gone, ""))

    assert found.startswith(f"pyproject.toml asks for {gone.partition('=')[0]}")
    assert found.endswith("and constraints.txt does not hold it: run `make lock`")


def test_version_outside_of_what_is_asked_for_is_named() -> None:
    """A minimum that was raised above the locked version is named, and how to upgrade one."""
    found = _found(_project(asked=("celery>=6",)), WHOLE)

    assert found == [
        (
            "pyproject.toml asks for celery>=6, and constraints.txt holds celery==5.7.0:"
            " run `make lock UPGRADE=celery`"
        )
    ]


def test_what_a_dependency_asks_for_is_wanted_too() -> None:
    """A package that was locked by hand, without what it asks for, is a complaint."""
    found = _found(_project("types_new"), WHOLE + "types-new==1.0", types_new=("vine<6",))

    assert found == [
        "types-new asks for vine<6, and constraints.txt does not hold it: run `make lock`"
    ]


def test_release_for_newer_pythons_only_is_named() -> None:
    """The oldest Python that we ask for could not install it; no statement means any Python."""
    project = {"project": {"requires-python": ">=3.11"}}
    asked = {"celery": ">=3.9", "rich": ">=3.11.5"}
    found = list(too_new(project, read(WHOLE), asked.get))

    assert found == ["rich==14.1 asks for Python >=3.11.5, we for 3.11: lock an older one"]


def test_what_another_platform_asks_for_is_not_wanted() -> None:
    """A requirement whose marker does not hold here needs no line."""
    found = _found(_project("pywin32; platform_system == 'Nowhere'"), WHOLE)

    assert [] == found


def test_hooks_before_a_commit_have_the_locked_versions() -> None:
    """What a hook installs is what `make check` runs."""
    locked = read((ROOT / LOCK).read_text())
    (repo,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    pins = {pin for hook in repo["hooks"] for pin in hook["additional_dependencies"]}

    assert {"ruff", "import-linter"} <= read("\n".join(pins)).keys()
    assert sorted(pins) == sorted(f"{name}=={locked[name]}" for name in read("\n".join(pins)))
