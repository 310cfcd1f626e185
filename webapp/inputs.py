"""From a request to a list of inputs, or to a refusal that says what is wrong."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from webapp.bodies import NAMES, document_of, field_of, shown
from webapp.errors import InvalidInput, TooLarge
from webapp.messages import Ask
from webapp.settings import Settings

__all__ = ["Question", "form_inputs", "json_input", "json_inputs"]


class Question(NamedTuple):
    """
    What is asked of the model.

    Args:
        inputs: The inputs, in order.
        explain: Whether what is known of their batches is to be told.
    """

    inputs: Sequence[Any]
    explain: bool = False


def json_inputs(ask: Ask, settings: Settings) -> Question:
    """
    Read ``{"inputs": ["...", ...]}``, with ``"explain": true`` or without.

    Args:
        ask: The request.
        settings: The limits.

    Raises:
        Refused: The body is not that, or is over a limit.
    """
    document = _fields(document_of(ask), "inputs", '["..."]', ("explain",))
    inputs = document["inputs"]
    if not isinstance(inputs, list):
        raise InvalidInput(f'"inputs" must be a list of strings, not {NAMES[type(inputs)]}')
    explain = document.get("explain", False)
    if not isinstance(explain, bool):
        raise InvalidInput(f'"explain" must be a boolean, not {NAMES[type(explain)]}')
    return Question(_checked(inputs, "inputs", settings), explain)


def json_input(ask: Ask, settings: Settings) -> str:
    """
    Read ``{"input": "..."}``.

    Args:
        ask: The request.
        settings: The limits.

    Raises:
        Refused: The body is not that, or is over a limit.
    """
    document = _fields(document_of(ask), "input", '"..."', ())
    _check(document["input"], "input", settings)
    return str(document["input"])


def form_inputs(ask: Ask, settings: Settings) -> Question:
    """
    Read the inputs of a form: the values of its repeated field ``s``.

    Args:
        ask: The request.
        settings: The limits.

    Raises:
        Refused: It is no form, there are none, or one is over a limit.
    """
    return Question(_checked(field_of(ask, "s"), "s", settings))


def _fields(document: Any, wanted: str, example: str, more: Sequence[str]) -> dict[str, Any]:
    if not isinstance(document, dict):
        found = NAMES[type(document)]
        raise InvalidInput(f'the body must be an object, {{"{wanted}": {example}}}, not {found}')
    if unknown := sorted(document.keys() - {wanted, *more}):
        known = " and ".join(f'"{name}"' for name in (wanted, *more))
        raise InvalidInput(f"unknown field {shown(unknown[0])}; there is only {known}")
    if wanted not in document:
        raise InvalidInput(f'the field "{wanted}" is missing')
    return document


def _checked(inputs: Sequence[Any], field: str, settings: Settings) -> list[str]:
    """Return the inputs, each found to be text that a model can be asked."""
    if not inputs:
        raise InvalidInput(f'"{field}" is empty: send at least one input')
    if len(inputs) > settings.max_inputs:
        raise TooLarge(f"{len(inputs)} inputs are more than the limit of {settings.max_inputs}")
    for index, value in enumerate(inputs):
        _check(value, f"{field}[{index}]", settings)
    return list(inputs)


def _check(value: Any, name: str, settings: Settings) -> None:
    if not isinstance(value, str):
        raise InvalidInput(f"{name} must be a string, not {NAMES[type(value)]}")
    if len(value) > settings.max_characters:
        limit = settings.max_characters
        raise TooLarge(f"{name} has {len(value)} characters, the limit is {limit}")
    if not value.strip():
        raise InvalidInput(f"{name} is blank")
    if not (value.isascii() or _is_encodable(value)):
        raise InvalidInput(f"{name} is not text: it holds half of a surrogate pair")


def _is_encodable(text: str) -> bool:
    """Say whether a string, which JSON may have put together from escapes, is real text."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
