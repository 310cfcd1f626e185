"""Which rows of a batch run: equal rows run once, and those with a cached answer do not."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from typing import Any

from celery_batch.items.rows import CallRows, Chunk
from celery_batch.runtime.runner import Outcome
from celery_batch.serialization.row_digest import RowDigest, row_digest_of
from celery_batch.telemetry.report import Reuse
from celery_batch.worker.redis.answer_cache import AnswerCache, Found, cache_backend

__all__ = ["ReusedRows", "RowReuse", "forget_answers", "reuse_of"]

#: In place of the position of a row that does not run: its answer is known.
_KNOWN = -1


class ReusedRows:
    """The rows of one batch by their digests, None for one like no other, and known answers."""

    def __init__(
        self, digests: Sequence[bytes | None], found: Found, cache: AnswerCache | None
    ) -> None:
        self._digests, self._found, self._cache = digests, found, cache
        #: When the answers were looked up, on the monotonic clock.
        self.looked_up = time.monotonic()
        #: For each row its position among those that run, or `_KNOWN`.
        self.places: list[int] = []
        #: The indexes of the rows that run.
        self.running: list[int] = []
        first: dict[bytes, int] = {}
        for index, digest in enumerate(digests):
            place = len(self.running)
            if digest is not None:
                place = _KNOWN if digest in found.answers else first.setdefault(digest, place)
            if place == len(self.running):
                self.running.append(index)
            self.places.append(place)

    @property
    def counts(self) -> Reuse:
        """How many rows need not run, and why."""
        hits, ran = self.places.count(_KNOWN), len(self.running)
        return Reuse(hits, ran if self._cache else 0, len(self.places) - ran - hits)

    def without(self, calls: Sequence[CallRows], dropped: Collection[int]) -> ReusedRows:
        """Return the rows that are left when some of the requests are dropped, by index."""
        digests: list[bytes | None] = []
        start = 0
        for number, each in enumerate(calls):
            end = start + (each.rows if isinstance(each, Chunk) else 1)
            if number not in dropped:
                digests += self._digests[start:end]
            start = end
        rest = ReusedRows(digests, self._found, self._cache)
        rest.looked_up = self.looked_up
        return rest

    def columns(self, columns: Sequence[list[Any]]) -> list[list[Any]]:
        """Return the columns of the rows that run, from those of all."""
        return [[column[index] for index in self.running] for column in columns]

    def outputs(self, outputs: Sequence[Any]) -> list[Any]:
        """Return the output of each row, from those of the rows that ran."""
        answers = self._found.answers
        return [
            outputs[place] if place != _KNOWN or digest is None else answers[digest]
            for digest, place in zip(self._digests, self.places, strict=True)
        ]

    def store(self, outputs: Sequence[Any]) -> None:
        """Cache the outputs of the rows that ran, without errors; none if none ran."""
        if self._cache is None:
            return
        digests = [self._digests[index] for index in self.running]
        answers = [
            (digest, output)
            for digest, output in zip(digests, outputs, strict=False)
            if digest is not None and not isinstance(output, Outcome)
        ]
        if answers:
            self._cache.store(self._found.epoch, answers)


class RowReuse:
    """Recognises rows of one task by their digests; without a cache, those of one batch."""

    def __init__(self, digest: RowDigest, cache: AnswerCache | None) -> None:
        self.digest = digest
        self.cache = cache

    def look_up(self, columns: Sequence[list[Any]]) -> ReusedRows:
        """Return what is known of the rows of a batch."""
        digests = [self.digest.of(row) for row in zip(*columns, strict=True)]
        wanted = list(dict.fromkeys(each for each in digests if each is not None))
        found = Found({}, b"")
        if self.cache is not None and wanted:
            found = self.cache.look_up(wanted)
        return ReusedRows(digests, found, self.cache)


def reuse_of(task: Any, options: tuple[bool, float | None] | None = None) -> RowReuse | None:
    """Return what recognises rows of a task, by the options as they are now; None for nothing."""
    own = _own_reuse(task)
    if own is None or options is None:
        return own
    shares_rows, ttl = options
    if not shares_rows and ttl is None:
        return None
    if own.cache is None or ttl is None:
        return RowReuse(own.digest, None)
    own.cache.ttl = ttl
    return own


def forget_answers(task: Any) -> None:
    """Empty a task's cache, though it may be turned off: its model has been loaded again."""
    own = _own_reuse(task)
    if own is not None and own.cache is not None:
        own.cache.clear()


def _own_reuse(task: Any) -> RowReuse | None:
    """Return what recognises rows of a task by its own options, made on first use."""
    known = vars(task)
    if "_batch_reuse" not in known:
        digest, cache = row_digest_of(task), None
        if task.cache_ttl is not None:
            cache = AnswerCache(task.name, task.cache_ttl, cache_backend(task.app, task.name))
        known["_batch_reuse"] = None if digest is None else RowReuse(digest, cache)
    return known["_batch_reuse"]  # type: ignore[no-any-return]
