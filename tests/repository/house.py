"""
The house's rules that no linter knows, checked over the tree: ``python tests/repository/house.py``.

Three rules: the body of a function has at most 40 lines, private parts of other libraries are
used in ``celery_batch/compat`` alone, and no imports form a cycle.  Every way to import counts:
at the top of a module, within a function, under ``TYPE_CHECKING`` (a reader follows it like any
other), and by a string that names a module, as in
``"celery_batch.worker.intake.strategy:batches"``, ``import_module("...")`` and the lazy
``__init__.py``.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = ("celery_batch", "workers", "webapp", "demo", "bench", "examples")

LONGEST_BODY = 40

#: The reasons, each in parentheses after its ``noqa``, for which other modules may use a private
#: attribute: that it is one of our own classes, or of Python itself.
_OURS = re.compile(r"SLF001 \((?:our own|same module|Python's)\b")

#: The imports that close a cycle today, each with its reason.  The check fails where one of them
#: is no longer needed: this list only shrinks.
ALLOWED = frozenset(
    {
        # A task names the parts of its worker, as Celery's own do, and these know the task.
        ("celery_batch.task", "celery_batch.worker.metrics.exporter"),
        ("celery_batch.task", "celery_batch.worker.executor.loader"),
        ("celery_batch.task", "celery_batch.worker.metrics.health_step"),
        ("celery_batch.task", "celery_batch.worker.bootsteps"),
        ("celery_batch.task", "celery_batch.worker.intake.strategy"),
        # `Model.as_task`: a method of the model that makes a task, which holds the model.
        ("celery_batch.runtime.model", "celery_batch.task"),
        # A Celery app names the modules of its tasks, which are decorated with the app.
        ("workers.celery", "workers.colours"),
        ("workers.celery", "workers.echo"),
        ("workers.celery", "workers.huggingface"),
        ("workers.celery", "workers.infill"),
        # Django's settings name the application that reads them.
        ("webapp.django_site.wsgi", "webapp.django_site.settings"),
    }
)

#: "package.module" or "package.module:attribute".
_DOTTED = re.compile(r"[a-z_]\w*(?:\.\w+)+(?::[\w.]+)?")

#: After one of these a name says which program a new process runs, and imports nothing here.
_PROGRAM_OPTIONS = ("-m", "-A")


def main() -> int:
    """Print every place that breaks a rule, and return 1 if there is one."""
    cycles = cycle_complaints(Imports.of(ROOT, FOLDERS), ALLOWED)
    found = [*long_bodies(), *private_uses(ROOT), *cycles]
    print("\n".join(found) or "house: short functions, no private uses, no import cycle")  # noqa: T201
    return int(bool(found))


def long_bodies() -> Iterator[str]:
    """Name every function whose body is too long."""
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            where = path.relative_to(ROOT)
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                    yield from _too_long(node, where)


def _too_long(node: ast.FunctionDef | ast.AsyncFunctionDef, where: Path) -> Iterator[str]:
    first = node.body[1] if ast.get_docstring(node) and len(node.body) > 1 else node.body[0]
    if (lines := (node.end_lineno or 0) - first.lineno + 1) > LONGEST_BODY:
        yield f"{where}:{node.lineno} {node.name}: body of {lines} lines, at most {LONGEST_BODY}"


def private_uses(root: Path) -> Iterator[str]:
    """
    Name every private attribute of another library that is used outside of `compat`.

    Args:
        root: Of the tree; ruff has found these, so each has a ``noqa``.
    """
    for path in sorted((root / "celery_batch").rglob("*.py")):
        where = path.relative_to(root)
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if where.parts[1] != "compat" and "SLF001" in line and not _OURS.search(line):
                yield f"{where}:{number} private to another library: use it in celery_batch/compat"


def cycle_complaints(imports: Imports, allowed: Collection[tuple[str, str]]) -> Iterator[str]:
    """
    Name one cycle for each group of modules that import each other, and what `allowed` holds idly.

    Args:
        imports: Of the whole tree.
        allowed: Imports that are left out, as (importer, imported).
    """
    kept = {arrow: line for arrow, line in imports.lines.items() if arrow not in allowed}
    for group in cyclic_groups(kept):
        arrows = list(pairwise(_shortest_cycle(group, kept)))
        steps = [f"\n    {a}:{kept[a, b]} imports {b}" for a, b in arrows]
        yield f"import cycle of {len(arrows)} modules, in a group of {len(group)}:{''.join(steps)}"
    for importer, imported in sorted(allowed):
        arrow = (importer, imported)
        if arrow not in imports.lines:
            yield f"house.ALLOWED: {importer} does not import {imported}: remove the entry"
        elif not _reaches(imported, importer, kept):
            yield f"house.ALLOWED: {importer} -> {imported} closes no cycle: remove the entry"


@dataclass(frozen=True)
class Imports:
    """
    Which module of a tree imports which.

    Args:
        lines: The line of the first such import by (importer, imported).
    """

    lines: Mapping[tuple[str, str], int]

    @classmethod
    def of(cls, root: Path, folders: Iterable[str]) -> Imports:
        """Read all modules below `folders`."""
        paths = {
            _module_name(path.relative_to(root)): path
            for folder in folders
            for path in sorted((root / folder).rglob("*.py"))
        }
        lines: dict[tuple[str, str], int] = {}
        for importer in paths:
            for imported, line in _imported_by(importer, paths):
                lines.setdefault((importer, imported), line)
        return cls(lines)


def _module_name(path: Path) -> str:
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _imported_by(importer: str, modules: Mapping[str, Path]) -> Iterator[tuple[str, int]]:
    """Yield what one module imports, packages on the way included, and the line of each."""
    path = modules[importer]
    package = importer if path.name == "__init__.py" else importer.rpartition(".")[0]
    tree = ast.parse(path.read_text())
    elsewhere = set(_other_strings(tree))
    for node in ast.walk(tree):
        for name in () if node in elsewhere else _names(node, package, modules):
            for module in _executed(name, importer, modules):
                yield module, node.lineno


def _names(node: ast.AST, package: str, modules: Mapping[str, Path]) -> Iterator[str]:
    """Yield the dotted names that one node imports; the last part may be no module."""
    match node:
        case ast.Import():
            yield from (each.name for each in node.names)
        case ast.ImportFrom():
            above = package.split(".")[: len(package.split(".")) - node.level + 1]
            base = ".".join([*(above if node.level else ()), *filter(None, [node.module])])
            yield from (f"{base}.{each.name}" for each in node.names)
        case ast.Constant(value=str(text)) if _DOTTED.fullmatch(text):
            yield from _named_by(text, modules)


def _named_by(text: str, modules: Mapping[str, Path]) -> Iterator[str]:
    """
    Yield the module that a string names, alone or with an attribute, if there is one.

    "package.word" names none: it is a task, a header or a setting far more often than what a
    package's ``__init__.py`` holds.
    """
    name, colon, _ = text.partition(":")
    above = name.rpartition(".")[0]
    if name in modules:
        yield name
    elif not colon and above in modules and modules[above].name != "__init__.py":
        yield above


def _executed(name: str, importer: str, modules: Collection[str]) -> Iterator[str]:
    """
    Yield the modules of ours that the import of `name` executes.

    The packages above it are among them, except for those above the importer: they are
    imported already.
    """
    parts = name.split(".")
    heads = (".".join(parts[:length]) for length in range(1, len(parts) + 1))
    *above, imported = [head for head in heads if head in modules] or [importer]
    yield from (package for package in above if not f"{importer}.".startswith(f"{package}."))
    if imported != importer:
        yield imported


def _other_strings(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield the strings that import nothing: names of loggers and of programs, and docstrings."""
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Attribute(attr="getLogger"), args=arguments):
                yield from arguments
            case ast.Call(args=arguments):
                yield from _programs(arguments)
            case ast.Expr(value=docstring):
                yield docstring
            case ast.Tuple(elts=elements) | ast.List(elts=elements):
                yield from _programs(elements)


def _programs(words: Sequence[ast.expr]) -> Iterator[ast.expr]:
    for option, program in pairwise(words):
        if isinstance(option, ast.Constant) and option.value in _PROGRAM_OPTIONS:
            yield program


def cyclic_groups(arrows: Collection[tuple[str, str]]) -> list[list[str]]:
    """Return each set of modules that all reach each other."""
    imported = _by_importer(arrows)
    after = {module: _reached(module, imported) for arrow in arrows for module in arrow}
    groups = {
        tuple(sorted(other for other in reached if module in after[other]))
        for module, reached in after.items()
        if module in reached
    }
    return [list(group) for group in sorted(groups)]


def _by_importer(arrows: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    imported: dict[str, list[str]] = {}
    for importer, module in arrows:
        imported.setdefault(importer, []).append(module)
    return imported


def _reached(start: str, imported: Mapping[str, list[str]]) -> set[str]:
    """Return the modules that `start` imports, at first or at second hand; itself in a cycle."""
    found: set[str] = set()
    waiting = [start]
    while waiting:
        new = [module for module in imported.get(waiting.pop(), ()) if module not in found]
        found.update(new)
        waiting += new
    return found


def _reaches(start: str, end: str, arrows: Iterable[tuple[str, str]]) -> bool:
    return end in _reached(start, _by_importer(arrows))


def _shortest_cycle(group: list[str], arrows: Iterable[tuple[str, str]]) -> list[str]:
    """Return a shortest way from a module of the group back to it, that module at both ends."""
    inside = [(a, b) for a, b in arrows if a in group and b in group]
    return min((_shortest_way_back(module, inside) for module in group), key=len)


def _shortest_way_back(start: str, arrows: list[tuple[str, str]]) -> list[str]:
    ways = [[start]]
    for way in ways:  # grows: a breadth-first search
        if len(way) > 1 and way[-1] == start:
            return way
        ways += [[*way, b] for a, b in arrows if a == way[-1]]
    msg = f"{start} is in no cycle"
    raise ValueError(msg)


if __name__ == "__main__":
    sys.exit(main())
