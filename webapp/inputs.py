"""From a request's body to a list of inputs, or to a refusal that says what is wrong."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from webapp.errors import InvalidInput, TooLarge, UnsupportedMediaType
from webapp.settings import Settings

__all__ = ["body_too_large", "form_inputs", "json_inputs"]

#: How JSON calls what Python calls otherwise.
_NAMES = {
    type(None): "null",
    bool: "a boolean",
    dict: "an object",
    float: "a number",
    int: "a number",
    list: "a list",
    str: "a string",
}

_JSON = ("application/json",)
_FORMS = ("application/x-www-form-urlencoded", "multipart/form-data")


def json_inputs(body: bytes, content_type: str | None, settings: Settings) -> list[str]:
    """
    Read the inputs of ``{"inputs": ["...", ...]}``.

    Args:
        body: As it came.
        content_type: The header's value, parameters included.
        settings: The limits.

    Raises:
        Refused: The body is not that, or is over a limit.
    """
    _check_media_type(content_type, _JSON)
    if len(body) > settings.max_body_bytes:
        raise body_too_large(settings)
    try:
        document = json.loads(body)
    except RecursionError:
        raise InvalidInput("the body is not valid JSON: it is nested too deeply") from None
    except ValueError as error:
        raise InvalidInput(f"the body is not valid JSON: {error}") from None
    if not isinstance(document, dict):
        found = _NAMES[type(document)]
        raise InvalidInput(f'the body must be an object, {{"inputs": ["..."]}}, not {found}')
    if unknown := sorted(document.keys() - {"inputs"}):
        raise InvalidInput(f'unknown field {_shown(unknown[0])}; the only field is "inputs"')
    if "inputs" not in document:
        raise InvalidInput('the field "inputs" is missing')
    inputs = document["inputs"]
    if not isinstance(inputs, list):
        raise InvalidInput(f'"inputs" must be a list of strings, not {_NAMES[type(inputs)]}')
    return _checked(inputs, "inputs", settings)


def form_inputs(
    values: Sequence[str], content_type: str | None, size: int, settings: Settings
) -> list[str]:
    """
    Check the inputs of a form: the values of its repeated field ``s``.

    Args:
        values: The values, in order.
        content_type: The header's value, parameters included.
        size: Bytes in the whole body.
        settings: The limits.

    Raises:
        Refused: There are none, or one is over a limit.
    """
    _check_media_type(content_type, _FORMS)
    if size > settings.max_body_bytes:
        raise body_too_large(settings)
    return _checked(values, "s", settings)


def body_too_large(settings: Settings) -> TooLarge:
    """Return the refusal of a body over the limit, for a door that stops reading there."""
    return TooLarge(f"the body is larger than the limit of {settings.max_body_bytes} bytes")


def _check_media_type(content_type: str | None, wanted: Sequence[str]) -> None:
    media_type = (content_type or "").partition(";")[0].strip().lower()
    if media_type not in wanted:
        found = f"not {_shown(media_type)}" if media_type else "and the request has none"
        raise UnsupportedMediaType(f"the content type must be {' or '.join(wanted)}, {found}")


def _checked(inputs: Sequence[Any], field: str, settings: Settings) -> list[str]:
    """Return the inputs, each found to be text that a model can be asked."""
    if not inputs:
        raise InvalidInput(f'"{field}" is empty: send at least one input')
    if len(inputs) > settings.max_inputs:
        raise TooLarge(f"{len(inputs)} inputs are more than the limit of {settings.max_inputs}")
    for index, value in enumerate(inputs):
        name = f"{field}[{index}]"
        if not isinstance(value, str):
            raise InvalidInput(f"{name} must be a string, not {_NAMES[type(value)]}")
        if len(value) > settings.max_characters:
            limit = settings.max_characters
            raise TooLarge(f"{name} has {len(value)} characters, the limit is {limit}")
        if not value.strip():
            raise InvalidInput(f"{name} is blank")
        if not _is_encodable(value):
            raise InvalidInput(f"{name} is not text: it holds half of a surrogate pair")
    return list(inputs)


def _is_encodable(text: str) -> bool:
    """Say whether a string, which JSON may have put together from escapes, is real text."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _shown(text: str) -> str:
    """Quote a client's own word back, shortened and harmless to print."""
    return json.dumps(text[:50])
