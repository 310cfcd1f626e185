"""From a request's body to a JSON document or the fields of a form, without any framework."""

from __future__ import annotations

import json
from collections.abc import Sequence
from io import BytesIO
from typing import Any
from urllib.parse import parse_qsl

from multipart import MultipartError, MultipartParser, parse_options_header

from webapp.errors import InvalidInput, TooLarge, UnsupportedMediaType
from webapp.messages import Ask

__all__ = [
    "DRAINS",
    "FORMS",
    "JSON",
    "MOST_DRAINED",
    "NAMES",
    "check_size",
    "document_of",
    "field_of",
    "shown",
    "too_large",
]

JSON = ("application/json",)
FORMS = ("application/x-www-form-urlencoded", "multipart/form-data")

#: What is read away of a body that is refused, at most, in bytes and in seconds: on a
#: connection that is closed before, a client that still sends never hears the answer.
MOST_DRAINED, DRAINS = 32 * 1024 * 1024, 2.0

#: How JSON calls what Python calls otherwise.
NAMES = {
    type(None): "null",
    bool: "a boolean",
    dict: "an object",
    float: "a number",
    int: "a number",
    list: "a list",
    str: "a string",
}


def document_of(ask: Ask) -> Any:
    """
    Return what a JSON body says.

    Args:
        ask: The request.

    Raises:
        Refused: Its content type is another, or it is no JSON.
    """
    _media_type(ask, JSON)
    try:
        return json.loads(ask.body)
    except RecursionError:
        raise InvalidInput("the body is not valid JSON: it is nested too deeply") from None
    except ValueError as error:
        raise InvalidInput(f"the body is not valid JSON: {error}") from None


def field_of(ask: Ask, name: str) -> list[str]:
    """
    Return the values of a form's repeated field, in order.

    Args:
        ask: The request; urlencoded or multipart.
        name: The field's name.

    Raises:
        Refused: Its content type is another, or it is no form.
    """
    if _media_type(ask, FORMS) == FORMS[0]:
        pairs = parse_qsl(ask.body.decode("utf-8", "replace"), keep_blank_values=True)
        return [value for key, value in pairs if key == name]
    return _parts(ask, name)


def check_size(ask: Ask, limit: int) -> None:
    """
    Do nothing if a body is whole and within the limit.

    Args:
        ask: The request; a door has read one byte more than the limit if there was one.
        limit: Most bytes.

    Raises:
        Refused: It is not.
    """
    if ask.flaw is not None:
        raise ask.flaw
    if len(ask.body) > limit:
        raise too_large(limit)


def too_large(limit: int) -> TooLarge:
    """
    Return the refusal of a body over the limit.

    Args:
        limit: Most bytes.
    """
    return TooLarge(f"the body is larger than the limit of {limit} bytes")


def shown(text: str) -> str:
    """Quote a client's own word back, shortened and harmless to print."""
    return json.dumps(text[:50])


def _media_type(ask: Ask, wanted: Sequence[str]) -> str:
    media_type = ask.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type not in wanted:
        found = f"not {shown(media_type)}" if media_type else "and the request has none"
        raise UnsupportedMediaType(f"the content type must be {' or '.join(wanted)}, {found}")
    return media_type


def _parts(ask: Ask, name: str) -> list[str]:
    _, options = parse_options_header(ask.headers["content-type"])
    values: list[str] = []
    if not options.get("boundary"):
        raise InvalidInput("the content type of a multipart form must name its boundary")
    size = len(ask.body)
    try:
        parser = MultipartParser(
            *(BytesIO(ask.body), options["boundary"], size),
            part_limit=size,
            memory_limit=size + 1,
            spool_limit=size + 1,
        )
        for part in parser:
            if part.name == name:
                values.append(part.value)
            part.close()
    except (MultipartError, UnicodeError, LookupError) as error:
        raise InvalidInput(f"the body is not a valid multipart form: {error}") from None
    return values
