"""Public names say what they do, what they take, in which unit, and what they return."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import celery_batch

#: What Celery calls, or only this package does.
INTERNAL = {
    "on_bound",
    "of_call",
    "maybe_throw",
    "forget_payload",
    "read_soon",
    "checked",
    "run",
    "cost_limits",
    "shapes",
    "work_of",
}

#: Modules of which users import names that are not in `celery_batch`.
MODULES = (
    "celery_batch.batches",
    "celery_batch.padding",
    "celery_batch.testing",
    "celery_batch.serve.handle",
    "celery_batch.web.django",
    "celery_batch.web.fastapi",
    "celery_batch.web.flask",
    "celery_batch.web.starlette",
)


def _exported() -> dict[str, Any]:
    names = {name: getattr(celery_batch, name) for name in celery_batch.__all__}
    for module in map(import_module, MODULES):
        names |= {f"{module.__name__}.{name}": getattr(module, name) for name in module.__all__}
    return {name: each for name, each in names.items() if callable(each)}


def _callables() -> Iterator[tuple[str, Any]]:
    """Yield each public function, class and method of ours, with its name."""
    for name, each in _exported().items():
        yield name, each
        if not inspect.isclass(each):
            continue
        for cls in each.__mro__:
            if not cls.__module__.startswith("celery_batch"):
                continue
            for attribute, value in vars(cls).items():
                function = (
                    value.__func__ if isinstance(value, classmethod | staticmethod) else value
                )
                is_public = not attribute.startswith("_") and attribute not in INTERNAL
                if inspect.isfunction(function) and is_public:
                    yield f"{name}.{attribute}", function


CALLABLES = dict(_callables())


DIRECTIVE = re.compile(r"^\.\. auto(?:class|module):: (\S+)\n((?: +:.*\n)*)", re.MULTILINE)


def test_the_reference_does_not_show_what_only_celery_says_of_a_task():
    """The docstring of ``abstract`` is Celery's own, and calls it deprecated."""
    page = (Path(__file__).parents[2] / "docs" / "reference" / "api.md").read_text()
    options = dict(DIRECTIVE.findall(page))

    for place in ("BatchTask", "celery_batch.batches"):
        assert "exclude-members: abstract" in options[place]


def _parameters(function: Any) -> set[str]:
    """Return the names that the docstring has to explain."""
    if inspect.isclass(function):
        own = vars(function).get("__init__")
        if own is None or issubclass(function, BaseException):
            return set()
        function = own
    names = inspect.signature(function).parameters
    return {name for name in names if name not in ("self", "cls") and not name.startswith("_")}


@pytest.mark.parametrize("name", CALLABLES)
def test_docstring_is_complete(name: str):
    """It opens with one sentence, explains each parameter, and says what is returned."""
    function = CALLABLES[name]
    text = inspect.cleandoc(function.__doc__ or "")
    first = text.partition("\n\n")[0]
    explained = set(re.findall(r"^    (\w+): ", text, re.MULTILINE))
    refers = "; see `" in first or "; see Celery's `" in first
    annotation = "None" if inspect.isclass(function) else function.__annotations__.get("return")
    returns = {"Return", "Yield"} & {first[:6].removesuffix("s"), first[:5]}

    assert re.fullmatch(r"[^\n].*[.:]", first.replace("\n", " "))
    assert refers or set() == _parameters(function) - explained
    assert (
        annotation in (None, "None", "NoReturn", "Iterator[None]")
        or returns
        or refers
        or "\nReturns:\n" in text
    )
