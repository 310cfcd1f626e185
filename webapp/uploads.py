"""From the body of an upload to its pictures, or to a refusal that says what is wrong."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import parse_qs

from multipart import (
    MultipartError,
    MultipartSegment,
    ParserLimitReached,
    PushMultipartParser,
    parse_options_header,
)

from webapp.bodies import NAMES, check_size, document_of, shown
from webapp.errors import InvalidInput, TooLarge, UnreadablePicture, UnsupportedMediaType
from webapp.inputs import Question
from webapp.messages import Ask
from webapp.picture import KINDS, check_picture
from webapp.settings import Settings

__all__ = ["largest_upload", "pictures"]

#: The field of a form.
_FIELD = "picture"

#: The field of a JSON document.
_LIST = "pictures"

#: Of it, and of the query: whether what is known of the pictures' batches is to be told.
_EXPLAIN = "explain"

#: Bytes of a body around its pictures: the parts' headers, field names, quotes.
_FRAME = 64 * 1024

_DATA_URL = re.compile(r"data:([^,;]*)(?:;[^,;]*)*?;base64,", re.ASCII | re.IGNORECASE)

#: Characters of what may be a data URL's beginning.
_LONGEST_PREFIX = 200


def largest_upload(settings: Settings) -> int:
    """
    Return how many bytes the body of an upload may have.

    One picture of the largest size fits in either form; several share that room.

    Args:
        settings: The limits.
    """
    return -(-settings.max_picture_bytes * 4 // 3) + _FRAME


def pictures(ask: Ask, settings: Settings) -> Question:
    """
    Read the pictures of an upload.

    Args:
        ask: Either a form, ``multipart/form-data`` with the field ``picture`` once or
            more, or JSON, ``{"pictures": ["<base64>", ...]}``, where data URLs will do, too;
            with a field ``explain`` or without.  A form asks for that in the query,
            ``?explain=true``.
        settings: The limits.

    Returns:
        Inputs that are files, each of one of the formats in `webapp.picture.KINDS`.

    Raises:
        Refused: The body is neither, a picture is none, or something is over a limit.
    """
    kind, options = parse_options_header(ask.headers.get("content-type", ""))
    if kind not in _READERS:
        found = f"not {shown(kind)}" if kind else "and the request has none"
        wanted = " or ".join(_READERS)
        raise UnsupportedMediaType(f"the content type must be {wanted}, {found}")
    check_size(ask, largest_upload(settings))
    return _READERS[kind](ask, options, settings)


def _of_form(ask: Ask, options: dict[str, str], settings: Settings) -> Question:
    found: list[bytes] = []
    for part, data in _parts(ask.body, options.get("boundary", ""), settings):
        name = f"{_FIELD}[{len(found)}]"
        if part.name != _FIELD:
            unknown = shown(part.name or "")
            raise InvalidInput(f'unknown field {unknown}; the only field is "{_FIELD}"')
        if part.content_type not in KINDS:
            raise UnsupportedMediaType(
                f"{name} must have a content type of its own, one of {', '.join(sorted(KINDS))}, "
                f"not {shown(part.content_type or '')}"
            )
        check_picture(data, part.content_type, name, settings)
        found.append(data)
    if not found:
        raise InvalidInput(f'there is no field "{_FIELD}": send at least one picture')
    _check_count(found, settings)
    return Question(found, _is_asked(ask))


def _is_asked(ask: Ask) -> bool:
    """Say whether the query asks for what is known of the batches: a form says it there."""
    return parse_qs(ask.query).get(_EXPLAIN) == ["true"]


def _parts(
    body: bytes, boundary: str, settings: Settings
) -> Iterator[tuple[MultipartSegment, bytes]]:
    """Cut a form into its parts."""
    most = settings.max_pictures + 1  # one too many, so that the count tells of it
    try:
        parser = PushMultipartParser(boundary, len(body), max_segment_count=most, strict=True)
        with parser:
            pieces: list[bytes] = []
            for event in parser.parse(body):
                if isinstance(event, MultipartSegment):
                    part, pieces = event, []
                elif event is not None:
                    pieces.append(bytes(event))
                else:
                    yield part, b"".join(pieces)
    except ParserLimitReached:
        raise TooLarge(
            f"the form has far more parts than the limit of {settings.max_pictures}, or too "
            "long headers in one: send several requests"
        ) from None
    except MultipartError as error:
        raise InvalidInput(f"the body is not a valid form: {error}") from None


def _of_json(ask: Ask, _options: dict[str, str], settings: Settings) -> Question:
    texts, explain = _fields(document_of(ask))
    _check_count(texts, settings)
    found = []
    for index, text in enumerate(texts):
        name = f"{_LIST}[{index}]"
        data, declared = _decoded(text, name)
        check_picture(data, declared, name, settings)
        found.append(data)
    return Question(found, explain or _is_asked(ask))


def _check_count(found: Sequence[Any], settings: Settings) -> None:
    if len(found) > settings.max_pictures:
        limit = settings.max_pictures
        raise TooLarge(
            f"{len(found)} pictures are more than the limit of {limit}: send several requests"
        )


def _fields(document: Any) -> tuple[list[Any], bool]:
    if not isinstance(document, dict) or document.keys() - {_EXPLAIN} != {_LIST}:
        raise InvalidInput(
            f'the body must be an object, {{"{_LIST}": ["<base64>"]}}, with "{_EXPLAIN}" or without'
        )
    texts, explain = document[_LIST], document.get(_EXPLAIN, False)
    if not isinstance(texts, list) or not texts:
        raise InvalidInput(f'"{_LIST}" must be a list of at least one string')
    if not isinstance(explain, bool):
        raise InvalidInput(f'"{_EXPLAIN}" must be a boolean, not {NAMES[type(explain)]}')
    return texts, explain


def _decoded(text: Any, name: str) -> tuple[bytes, str | None]:
    """Return the file that a text stands for, and the media type that it says."""
    if not isinstance(text, str):
        raise InvalidInput(f"{name} must be a string, the base64 of a picture")
    declared = None
    if text[:5].lower() == "data:":
        url = _DATA_URL.match(text, 0, _LONGEST_PREFIX)
        if url is None:
            raise InvalidInput(f"{name} must begin with data:<media type>;base64, as data URLs do")
        declared, text = url[1].lower(), text[url.end() :]
        if declared not in KINDS:
            wanted = ", ".join(sorted(KINDS))
            raise UnsupportedMediaType(f"{name} must be one of {wanted}, not {shown(declared)}")
    try:
        return base64.b64decode(text, validate=True), declared
    except (binascii.Error, ValueError):
        raise UnreadablePicture(
            f"{name} is not base64: use the standard alphabet, padding and no line breaks"
        ) from None


_READERS = {"multipart/form-data": _of_form, "application/json": _of_json}
