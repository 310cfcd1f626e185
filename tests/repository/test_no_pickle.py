"""Our own code opens no pickle."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import celery_batch

#: Modules that make objects of bytes and so run what the bytes say.
OPENERS = {"pickle", "cPickle", "_pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib"}

PACKAGE = Path(celery_batch.__file__).parent

#: What crosses a nameless pipe between a streamer and the process that it has started.
PIPE = PACKAGE / "streamer" / "messages.py"

MODULES = sorted({*PACKAGE.rglob("*.py")} - {PIPE})

#: What writes a pickle and opens none.
WRITERS = {"dumps", "PicklingError"}


def names(tree: ast.Module) -> set[str]:
    """Return the modules that a module imports, and the attributes and names it uses."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found.update(alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            imported = {alias.name for alias in node.names}
            if node.module == "pickle" and imported <= WRITERS:
                continue  # what a process writes for its own pool opens nothing
            found.update((node.module or "").split("."))
            found.update(imported)
        elif isinstance(node, ast.Attribute):
            found.add(node.attr)
        elif isinstance(node, ast.Name):
            found.add(node.id)
    return found


@pytest.mark.parametrize("module", MODULES, ids=lambda path: path.stem)
def test_no_module_of_ours_opens_a_pickle(module: Path):
    """Nothing from a broker, a result backend or a file is unpickled by our code."""
    found = names(ast.parse(module.read_text()))

    assert found.isdisjoint(OPENERS)
    assert found.isdisjoint({"eval", "exec", "unpickle", "pickle_loads"})
