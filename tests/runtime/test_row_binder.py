"""Binding arguments gives what a signature's own method gives."""

from __future__ import annotations

import inspect
import itertools
from typing import Any

import pytest

from celery_batch.runtime.signature import RowBinder


def usual(text: Any, lang: Any = "en", hint: Any = None) -> None:
    """Have parameters as most functions do."""


def named(text: Any, lang: Any = "en", *, hint: Any, size: Any = 1) -> None:
    """Have two parameters that are given by name."""


def positional(text: Any, lang: Any = "en", /, hint: Any = None) -> None:
    """Have two parameters that are not given by name."""


def several(text: Any, *more: Any, **options: Any) -> None:
    """Take any arguments."""


def outcome(call: Any) -> Any:
    """Return the row, or the error."""
    try:
        return tuple(call())
    except TypeError as error:
        return str(error)


def by_signature(signature: inspect.Signature, args: list[str], kwargs: dict[str, str]) -> Any:
    """Return the row as the standard library binds it."""
    bound = signature.bind(*args, **kwargs)
    bound.apply_defaults()
    return bound.arguments.values()


@pytest.mark.parametrize("function", [usual, named, positional, several])
def test_rows_and_errors_are_those_of_the_signature(function):
    """Whatever is given by position and by name; a whole row needs no names."""
    signature = inspect.signature(function)
    binder, width = RowBinder(signature), len(signature.parameters)
    names = ("text", "lang", "hint", "size", "other")
    for count, size in itertools.product(range(5), range(4)):
        args = ["a", "b", "c", "d"][:count]
        for given in itertools.combinations(names, size):
            if not given and count == width:
                assert args == binder.bind(args, {})
                continue
            kwargs = {name: name.upper() for name in given}

            def bind(args: Any = args, kwargs: Any = kwargs) -> Any:
                return binder.bind(args, kwargs)

            def expect(args: Any = args, kwargs: Any = kwargs) -> Any:
                return by_signature(signature, args, kwargs)

            assert outcome(expect) == outcome(bind)
