"""What ``tests/repository/house.py`` finds, on trees that are made for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.repository.house import (
    ALLOWED,
    FOLDERS,
    ROOT,
    Imports,
    cycle_complaints,
    private_uses,
)


def _tree(folder: Path, **sources: str) -> Imports:
    """Return the imports of a package `p` with these modules; "" is its ``__init__.py``."""
    package = folder / "p"
    for name, source in {"init": "", **sources}.items():
        stem = "__init__" if name.rpartition("__")[2] == "init" else name.rpartition("__")[2]
        path = package / Path(*name.split("__")[:-1]) / f"{stem}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source + "\n")
    return Imports.of(folder, ["p"])


def _complaints(imports: Imports, *allowed: tuple[str, str]) -> str:
    return "\n".join(cycle_complaints(imports, allowed))


@pytest.mark.parametrize(
    "source",
    [
        "from p.b import word",
        "from p import b",
        "from . import b",
        "from .b import word",
        "import p.b",
        "def later():\n    from p.b import word",
        "if TYPE_CHECKING:\n    from p.b import Word",
        "def later():\n    return import_module('p.b').word",
        "class Task:\n    Strategy = 'p.b:strategy'",
        "class Step:\n    requires = ('p.b:Other',)",
        "SETTING = 'p.b.application'",
    ],
    ids=lambda source: source.splitlines()[-1].strip(),
)
def test_cycle_is_found_through_every_kind_of_import(source: str, tmp_path: Path) -> None:
    """Two modules that import each other are a cycle, whatever form one of the imports has."""
    found = _complaints(_tree(tmp_path, a=source, b="from p.a import other"))

    assert "import cycle of 2 modules" in found
    assert "p.a:" in found
    assert "imports p.b" in found


def test_cycle_through_a_lazy_package_is_found(tmp_path: Path) -> None:
    """A package that hands out names of its modules by string imports these modules."""
    imports = _tree(
        tmp_path, room__init="HOME = {'Word': 'p.room.a'}", room__a="import p.b",
        b="from p.room import Word",
    )  # fmt: skip

    assert "import cycle of 3 modules" in _complaints(imports)


def test_import_executes_the_packages_on_its_way(tmp_path: Path) -> None:
    """The ``__init__.py`` of another package is imported with each of its modules."""
    imports = _tree(tmp_path, room__init="from p import b", room__a="", b="from p.room import a")

    assert "import cycle of 2 modules" in _complaints(imports)


@pytest.mark.parametrize(
    "source",
    [
        "from p.room import c",
        "import celery",
        "log = logging.getLogger('p.b')",
        "run(sys.executable, '-m', 'p.b')",
        "COMMAND = ('celery', '-A', 'p.b')",
        "NAME = 'p.header'",
        "'p.b'",
    ],
)
def test_what_imports_nothing_of_the_cycle_is_no_cycle(source: str, tmp_path: Path) -> None:
    """Loggers, programs, headers, docstrings and modules elsewhere close no cycle."""
    imports = _tree(tmp_path, a=source, b="from p.a import word", room__init="", room__c="")

    assert _complaints(imports) == ""


def test_longer_cycle_is_shown_step_by_step(tmp_path: Path) -> None:
    """The complaint names each module of the cycle, and the line that imports the next."""
    imports = _tree(tmp_path, a="\nimport p.b", b="import p.c", c="import p.a", d="import p.a")

    assert _complaints(imports).splitlines() == [
        "import cycle of 3 modules, in a group of 3:",
        "    p.a:2 imports p.b",
        "    p.b:1 imports p.c",
        "    p.c:1 imports p.a",
    ]


def test_allowed_import_closes_no_cycle(tmp_path: Path) -> None:
    """A cycle may go through an import of the list."""
    imports = _tree(tmp_path, a="import p.b", b="import p.a")

    assert _complaints(imports, ("p.a", "p.b")) == ""


def test_idle_entry_of_the_list_is_a_complaint(tmp_path: Path) -> None:
    """The list only shrinks: what is no import, or closes no cycle, has to leave it."""
    imports = _tree(tmp_path, a="import p.b", b="")
    found = _complaints(imports, ("p.a", "p.b"), ("p.b", "p.a"))

    assert "p.a -> p.b closes no cycle: remove the entry" in found
    assert "p.b does not import p.a: remove the entry" in found


def test_new_cycle_in_the_package_is_found() -> None:
    """The tree has no cycle, and would have one if the list of exceptions were empty."""
    imports = Imports.of(ROOT, FOLDERS)

    assert _complaints(imports, *ALLOWED) == ""
    assert "celery_batch.task" in _complaints(imports)


NOQA = "# noqa" + ": SLF001"


@pytest.mark.parametrize("reason", ["", " (as Celery does it)", " (ours, not our own)"])
def test_private_parts_of_other_libraries_are_found(reason: str, tmp_path: Path) -> None:
    """They belong into `compat`, whatever the reason; those of our own classes do not."""
    for name, line in {"compat/a": "", "web/b": reason, "web/c": " (our own, see d)"}.items():
        path = tmp_path / "celery_batch" / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"\nx = task._private  {NOQA}{line}\n")
    (found,) = private_uses(tmp_path)

    assert found.startswith("celery_batch/web/b.py:2 private")


def test_this_tree_keeps_private_parts_in_compat() -> None:
    """All uses of other libraries' private attributes are there."""
    assert [] == list(private_uses(ROOT))
