"""Recognises equal rows of a batch task, for `dedupe` and `cache_ttl`."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

from celery_batch.errors import ConfigurationError
from celery_batch.serialization.plain_values import NotPlain, encode_plain

__all__ = ["RowDigest", "check_version", "row_digest_of"]

#: Bytes, enough that two rows with one digest cannot be found, even on purpose.
_DIGEST_SIZE = 24


class RowDigest:
    """Computes equal digests of equal rows; the `parts`, as the task's name, belong to each row."""

    def __init__(self, *parts: Any) -> None:
        self._base = blake2b(encode_plain(parts), digest_size=_DIGEST_SIZE)

    def of(self, row: Sequence[Any]) -> bytes | None:
        """Return the digest of a row; None if a value is not plain: the row equals no other."""
        try:
            encoded = encode_plain(list(row), sort=True)
        except NotPlain:
            return None
        digest = self._base.copy()
        digest.update(encoded)
        return digest.digest()

    def of_call(
        self, signature: inspect.Signature, args: Sequence[Any], kwargs: dict[str, Any]
    ) -> bytes | None:
        """Return the digest of a call's row; raise `TypeError` if its arguments do not fit."""
        if kwargs or len(args) != len(signature.parameters):
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            args = tuple(bound.arguments.values())
        return self.of(args)


def check_version(task: Any) -> None:
    """Check the option `version` of a task."""
    if task.cache_ttl is None:
        if task.version is not None:
            raise ConfigurationError(f"{task.name}.version: has no effect without cache_ttl")
        return
    version = _version(task)
    if version is not None and (isinstance(version, bool) or not isinstance(version, (str, int))):
        raise ConfigurationError(
            f"{task.name}: the version of a model must be a text or a whole number, got {version!r}"
        )


def row_digest_of(task: Any) -> RowDigest | None:
    """Return what computes the digests of a task's rows; None if it reuses no answers."""
    if not task.dedupe and task.cache_ttl is None:
        return None
    return RowDigest(task.name, _version(task))


def _version(task: Any) -> Any:
    """Return the version of the model behind a task: its own option, or the model's attribute."""
    if task.version is None and task.model is not None:
        return task.model.version
    return task.version
