"""The imports of the tree."""

from __future__ import annotations

from tests.repository.house import (
    ALLOWED,
    FOLDERS,
    ROOT,
    Imports,
    cycle_complaints,
)


def _complaints(imports: Imports, *allowed: tuple[str, str]) -> str:
    return "\n".join(cycle_complaints(imports, allowed))


def test_new_cycle_in_the_package_is_found() -> None:
    """The tree has no cycle, and would have one if the list of exceptions were empty."""
    imports = Imports.of(ROOT, FOLDERS)

    assert _complaints(imports, *ALLOWED) == ""
    assert "celery_batch.task" in _complaints(imports)
