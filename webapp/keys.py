"""
API keys: who may ask, where not everybody may.

Rule 1: A secret is kept as its SHA-256 only, and a presented one is hashed at once.
Rule 2: All keys are compared, each in constant time: how long an answer takes says nothing.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Self

from celery_batch.errors import ConfigurationError
from webapp.errors import Unauthorized

__all__ = ["Keyring"]

#: A secret's least length: what people think up can be guessed.
_SHORTEST = 16

#: A presented secret's greatest length.
_LONGEST = 512

_HASHED = "sha256:"
_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}").fullmatch
_DIGEST = re.compile(r"[0-9a-fA-F]{64}").fullmatch


class Keyring:
    """
    The keys that are known.

    Args:
        digests: The SHA-256 of each secret, and the name of whom it belongs to.
    """

    def __init__(self, digests: Mapping[bytes, str]) -> None:
        self._digests = dict(digests)

    def __bool__(self) -> bool:
        """Return whether keys are asked for at all."""
        return bool(self._digests)

    @classmethod
    def read(cls, given: str, file: str) -> Self:
        """
        Read keys, ``name=secret`` or ``name=sha256:digest``, with ``#`` before a remark.

        Args:
            given: Some, with commas or spaces between them.
            file: The path of a file with further ones, one a line; empty for none.

        Raises:
            ConfigurationError: One cannot be used; the message shows no secret.
        """
        digests: dict[bytes, str] = {}
        for where, entry in _entries(given, file):
            name, digest = _parsed(entry, where)
            if digest in digests:
                raise ConfigurationError(f"{where}: {name!r} has the secret of another key")
            digests[digest] = name
        return cls(digests)

    def holder(self, headers: Mapping[str, str]) -> str:
        """
        Return the name of whose key a request brings.

        Args:
            headers: The request's, their names in lower case.

        Raises:
            Unauthorized: It brings none, or one that is not known.
        """
        presented = _presented(headers)
        if not presented:
            raise Unauthorized(
                "this needs a key: send 'Authorization: Bearer KEY' or 'X-API-Key: KEY'"
            )
        digest = hashlib.sha256(presented.encode("utf-8", "surrogateescape")).digest()
        found = ""
        for known, name in self._digests.items():
            if hmac.compare_digest(known, digest):
                found = name
        if not found or len(presented) > _LONGEST:
            raise Unauthorized("this key is not known", known=False)
        return found


def _presented(headers: Mapping[str, str]) -> str:
    """Return the secret of a request; another scheme may be a proxy's own business."""
    scheme, _, credentials = headers.get("authorization", "").strip().partition(" ")
    if scheme.lower() == "bearer":
        return credentials.strip()
    return headers.get("x-api-key", "").strip()


def _entries(given: str, file: str) -> Iterator[tuple[str, str]]:
    for number, entry in enumerate(re.split(r"[\s,]+", given.strip()), start=1):
        if entry:
            yield f"WEBAPP_API_KEYS, key {number}", entry
    if not file:
        return
    try:
        lines = Path(file).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"WEBAPP_API_KEYS_FILE: {error}") from error
    for number, line in enumerate(lines, start=1):
        if entry := line.partition("#")[0].strip():
            yield f"{file}, line {number}", entry


def _parsed(entry: str, where: str) -> tuple[str, bytes]:
    name, separator, secret = entry.partition("=")
    name, secret = name.strip(), secret.strip()
    if not separator or not _NAME(name):
        raise ConfigurationError(
            f"{where}: must be name=sha256:DIGEST or name=secret and nothing before it, the name"
            " of letters, digits and '._-'; python -m webapp.keys NAME prints such a line"
        )
    if secret.startswith(_HASHED):
        if not _DIGEST(digest := secret.removeprefix(_HASHED)):
            raise ConfigurationError(f"{where}: {name!r}: sha256: needs 64 hexadecimal digits")
        return name, bytes.fromhex(digest)
    if not _SHORTEST <= len(secret) <= _LONGEST:
        raise ConfigurationError(
            f"{where}: the secret of {name!r} must have {_SHORTEST} to {_LONGEST} characters; "
            "python -m webapp.keys NAME makes a good one"
        )
    return name, hashlib.sha256(secret.encode()).digest()


def _make(name: str) -> tuple[str, str]:
    """Return a new key: its secret, and the line for the server's file."""
    secret = secrets.token_urlsafe(32)
    digest = hashlib.sha256(secret.encode()).hexdigest()
    return secret, f"{name}={_HASHED}{digest}"


if __name__ == "__main__":
    if len(sys.argv) != 2 or not _NAME(sys.argv[1]):  # noqa: PLR2004 (one argument)
        sys.exit("usage: python -m webapp.keys NAME >> FILE; the file is WEBAPP_API_KEYS_FILE")
    secret, line = _make(sys.argv[1])
    # Apart, so that what goes into the file is the line and nothing else.
    sys.stderr.write(f"For {sys.argv[1]}, who sends it, and told this once: {secret}\n")
    sys.stderr.write("For WEBAPP_API_KEYS_FILE, the next line; '>> FILE' appends it:\n")
    print(line, flush=True)  # noqa: T201 (a command that prints)
