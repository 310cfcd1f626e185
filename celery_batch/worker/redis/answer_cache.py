"""
Answers of earlier batches, kept in Redis.

Rule 1: a batch never fails or waits for long because of the cache: every call has a short
        time-out, and after an error the cache is left alone for a while.
Rule 2: an answer is valid as long as the epoch of its task is the one in which it was looked up
        and found missing.  A reload of the model begins a new epoch, so an answer of the old
        weights that is stored afterwards is not used.
Rule 3: what is read is not trusted to be well-formed.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar
from urllib.parse import parse_qs, urlsplit

from celery.backends.redis import RedisBackend
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.retry import Retry

from celery_batch.compat.results import client_of, key_prefix
from celery_batch.errors import ConfigurationError
from celery_batch.payloads.store import redis_at
from celery_batch.serialization.plain_values import NotPlain, decode_plain, encode_plain

__all__ = ["LARGEST_ANSWER", "AnswerCache", "Found", "cache_backend", "check_caches"]

logger = logging.getLogger(__name__)

_T = TypeVar("_T")

#: Bytes of an encoded answer; a larger one is not stored.
LARGEST_ANSWER = 1 << 18

#: Seconds: for one reply of Redis, unless `batch_cache_url` names others; to connect to it; and
#: for all of a lookup.
_TIMEOUT, _CONNECT_TIMEOUT, _LONGEST_LOOKUP = 0.05, 0.2, 0.5

#: Seconds for which the cache is left alone after an error: at first, and at most.
_FIRST_PAUSE, _LONGEST_PAUSE = 5.0, 60.0

#: Answers in one command, or one pipeline.
_AT_ONCE = 1000

_PREFIX = "celery-batch-cache-"

#: Bytes of the random name of an epoch, which each answer begins with.
_EPOCH_SIZE = 8

#: What an epoch is called while none is known: answers are neither found nor stored.
_NO_EPOCH = b""


class Found(NamedTuple):
    """What a lookup has found."""

    answers: Mapping[bytes, Any]  # the answers by digest
    epoch: bytes  # in which missing ones are to be stored; empty if they are not


class AnswerCache:
    """The cached answers of one task."""

    def __init__(self, task_name: str, ttl: float, backend: Any) -> None:
        self._name = task_name
        #: Seconds for which an answer is kept; it may change at any time.
        self.ttl = ttl
        self._client = _client(backend)
        prefix = key_prefix(backend) + _PREFIX
        self._prefix = prefix.encode()
        self._epoch_key = f"{prefix}epoch-{task_name}".encode()
        self._paused_until = 0.0
        self._pause = 0.0
        self._has_warned = False
        #: Whether a new epoch could not be begun when the model was reloaded.
        self._is_outdated = False

    def look_up(self, digests: Sequence[bytes]) -> Found:
        """Return the answers that are there; none while the cache is away."""
        if time.monotonic() < self._paused_until:
            return Found({}, _NO_EPOCH)
        began = time.monotonic()
        try:
            if self._is_outdated:
                self._begin_epoch()
            found = self._look_up(digests, began + _LONGEST_LOOKUP)
        except Exception as error:  # noqa: BLE001 (a batch does not need its cache)
            self._leave_alone(error)
            return Found({}, _NO_EPOCH)
        if self._pause:
            self._pause = 0.0
            logger.info("The cache of %s is used again", self._name)
        return found

    def _look_up(self, digests: Sequence[bytes], deadline: float) -> Found:
        epoch, answers = _NO_EPOCH, dict[bytes, Any]()
        for piece in _pieces(digests):
            if epoch and time.monotonic() > deadline:
                break  # a chunk with very many rows: the rest is computed
            keys = [self._prefix + digest.hex().encode() for digest in piece]
            now, *values = self._client.mget([self._epoch_key, *keys])
            if epoch and now != epoch:
                return Found({}, _NO_EPOCH)  # the model was reloaded between two pieces
            epoch = now or self._first_epoch()
            if not epoch:
                return Found({}, _NO_EPOCH)  # its key was evicted at once
            for digest, value in zip(piece, values, strict=True):
                if value is not None and value.startswith(epoch):
                    try:
                        answers[digest] = decode_plain(value, _EPOCH_SIZE)
                    except NotPlain:
                        logger.warning("The cache of %s holds an invalid answer", self._name)
        return Found(answers, epoch)

    def store(self, epoch: bytes, answers: Sequence[tuple[bytes, Any]]) -> None:
        """Store answers that a lookup did not find; its epoch is theirs."""
        if not epoch or time.monotonic() < self._paused_until:
            return
        try:
            for piece in _pieces(answers):
                pipeline = self._client.pipeline(transaction=False)
                for digest, answer in piece:
                    value = self._encode(epoch, answer)
                    if value is not None:
                        key = self._prefix + digest.hex().encode()
                        pipeline.execute_command("SET", key, value, "PX", round(self.ttl * 1000))
                pipeline.execute()
        except Exception as error:  # noqa: BLE001 (as above)
            self._leave_alone(error)

    def _encode(self, epoch: bytes, answer: Any) -> bytes | None:
        try:
            value = encode_plain(answer)
        except NotPlain as error:
            self._warn_once(f"an output cannot be cached: {error}")
            return None
        if len(value) > LARGEST_ANSWER:
            self._warn_once(f"an output of {len(value)} bytes is too large for the cache")
            return None
        return epoch + value

    def _warn_once(self, text: str) -> None:
        if not self._has_warned:
            self._has_warned = True
            logger.warning("%s: %s", self._name, text)

    def clear(self) -> None:
        """Let no answer be found any more that is there now, or is being computed."""
        self._is_outdated = True  # until that is done, this process uses none
        try:
            self._begin_epoch()
        except Exception as error:  # noqa: BLE001 (the weights are loaded all the same)
            logger.warning("The cache of %s could not be emptied yet: %s", self._name, error)

    def _begin_epoch(self) -> None:
        self._client.set(self._epoch_key, os.urandom(_EPOCH_SIZE))
        self._is_outdated = False

    def _first_epoch(self) -> bytes:
        """Return the epoch where none was known, also if another process names it meanwhile."""
        self._client.set(self._epoch_key, os.urandom(_EPOCH_SIZE), nx=True)
        return bytes(self._client.get(self._epoch_key) or _NO_EPOCH)

    def _leave_alone(self, error: Exception) -> None:
        if not self._pause:
            logger.warning(
                "The cache of %s is not used for now, and every row is computed: %s",
                self._name,
                error,
            )
        self._pause = min(max(2 * self._pause, _FIRST_PAUSE), _LONGEST_PAUSE)
        self._paused_until = time.monotonic() + self._pause


def _pieces(items: Sequence[_T]) -> Iterator[Sequence[_T]]:
    return (items[start : start + _AT_ONCE] for start in range(0, len(items), _AT_ONCE))


def cache_backend(app: Any, task_name: str) -> Any:
    """Return Celery's Redis backend of the server that keeps the answers of an app's tasks."""
    url = app.conf.get("batch_cache_url")
    if url:
        return redis_at(app, "batch_cache_url", url)
    if not isinstance(app.backend, RedisBackend):
        raise ConfigurationError(
            f"{task_name}.cache_ttl: answers are kept in Redis, and the result backend is"
            f" {app.backend.as_uri() or 'none'}; set batch_cache_url, such as"
            f" redis://localhost:6379/1"
        )
    return app.backend


def check_caches(tasks: Iterable[Any]) -> None:
    """Check that answers of these tasks can be kept, if they are to be."""
    for task in tasks:
        if task.cache_ttl is not None:
            cache_backend(task.app, task.name)


def _client(backend: Any) -> Any:
    """Return a client of a backend's Redis that fails soon."""
    url = backend.app.conf.get("batch_cache_url") or ""
    (timeout,) = parse_qs(urlsplit(url).query).get("socket_timeout", [_TIMEOUT])
    params = dict(backend.connparams, max_connections=None, socket_timeout=float(timeout))
    if "path" not in params:
        params["socket_connect_timeout"] = _CONNECT_TIMEOUT
    client = client_of(backend, params)
    # A connection that a firewall has closed meanwhile is made again; time-outs are final.
    client.set_retry(Retry(NoBackoff(), 1, (RedisConnectionError,)))
    return client
