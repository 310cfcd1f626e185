"""The files of the page, read once and handed out as bytes."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path

from webapp.errors import NotFound
from webapp.messages import Answer

__all__ = ["Shelf"]

_FOLDER = Path(__file__).parent / "page"

_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}


@dataclass(frozen=True, slots=True)
class _File:
    body: bytes
    headers: Mapping[str, str]


class Shelf:
    """
    The page and what it is made of.

    Args:
        folder: Whose files are handed out; nothing outside it can be named.
    """

    def __init__(self, folder: Path = _FOLDER) -> None:
        self._files = {
            path.name: _read(path) for path in sorted(folder.iterdir()) if path.suffix in _TYPES
        }

    @property
    def names(self) -> list[str]:
        """The files that there are."""
        return list(self._files)

    def answer(self, name: str, known: str = "") -> Answer:
        """
        Return a file, or that it is the one the client knows.

        Args:
            name: Of the file.
            known: The value of ``If-None-Match``.

        Raises:
            NotFound: There is none.
        """
        file = self._files.get(name)
        if file is None:
            raise NotFound("the page has no file of this name; it begins at /")
        tags = {tag.strip().removeprefix("W/") for tag in known.split(",")}
        if file.headers["ETag"] in tags or "*" in tags:
            return Answer(status=HTTPStatus.NOT_MODIFIED, body=b"", headers=file.headers)
        return Answer(body=file.body, headers=file.headers)


def _read(path: Path) -> _File:
    body = path.read_bytes()
    tag = hashlib.sha256(body).hexdigest()[:20]
    kind = _TYPES[path.suffix]
    return _File(body, {"Content-Type": kind, "ETag": f'"{tag}"'})
