"""Where the large values of messages and results lie: a Redis, a directory or an object store."""

from __future__ import annotations

import logging
import os
import stat
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property, partial, wraps
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar, cast
from urllib.parse import quote, unquote, urlsplit
from uuid import uuid4

from celery.app.backends import by_url
from celery.backends.redis import RedisBackend
from celery.exceptions import ImproperlyConfigured
from kombu.utils.url import maybe_sanitize_url
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import NoPermissionError, RedisError, ResponseError
from redis.retry import Retry

from celery_batch.batching.policy import require
from celery_batch.compat.deadline import current_deadline
from celery_batch.compat.redis import read_values, round_trip
from celery_batch.compat.results import key_prefix, quick_client, shown_url
from celery_batch.errors import ConfigurationError
from celery_batch.payloads.bounded_calls import BoundedCalls

__all__ = [
    "DirectoryPayloads",
    "PayloadStore",
    "RedisPayloads",
    "StoreAway",
    "StoreError",
    "StoreRefused",
    "open_store",
    "redis_at",
]

logger = logging.getLogger(__name__)

_T = TypeVar("_T")
_M = TypeVar("_M", bound=Callable[..., Any])

PREFIX = "celery-batch-payload-"

#: The names of files that are being written begin so.
_UNFINISHED = f".{PREFIX}"

#: What the setting may be.
_STORES = "a URL such as redis://localhost:6379/1, file:///var/payloads or s3://bucket/folder"

#: Bytes that one round trip reads at most, unless a single payload is larger.
_MOST_BYTES = 64 << 20

#: The least limit to a value's bytes that a Redis may have: it breaks off as it is sent more.
_LEAST_LIMIT = 1 << 20

#: What the name of an error has that says that a store is away, whatever library raises it.
_AWAY = ("Connect", "Timeout")

#: Seconds without any byte after which a Redis is taken for away.
_TIMEOUT = 10.0

#: Seconds that a call of a file system or of an object store may take, unless its caller's deadline
#: comes before.
_CALL_TIMEOUT = 60.0

#: Characters of a file's name.
_LONGEST_NAME = 255

#: Seconds after which a file that is being written belongs to a process that has died.
_ABANDONED = 3600.0

#: Permissions of a directory that is made here, and of files: users' data are no one else's.
_OWN_DIRECTORY, _OWN_FILE = 0o700, 0o600

#: The same where the directory, or the one in which it is made, is setgid.
_GROUP_DIRECTORY, _GROUP_FILE = 0o770, 0o640

#: How a file is opened that is not there yet.
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC


class StoreError(Exception):
    """The store cannot be reached, or has no room."""


class StoreRefused(StoreError):
    """The store does not let this process do what it has to."""


class StoreAway(StoreError):
    """The store does not answer at all: other payloads would wait for it, too."""


class PayloadStore(ABC):
    """Keeps payloads by key until they expire."""

    #: Its URL, without a password.
    name: str

    @abstractmethod
    def put(self, key: str, data: Any, seconds: float) -> None:
        """Store a payload until it expires; raise `StoreError` if it is not stored."""

    def put_many(self, payloads: Iterable[tuple[str, Any, float]]) -> dict[str, StoreError]:
        """Store payloads as `put` does; return why some are not stored, by their keys."""
        failed: dict[str, StoreError] = {}
        failure: StoreError | None = None
        for key, data, seconds in payloads:
            try:
                if failure is None:
                    self.put(key, data, seconds)
            except StoreError as error:  # which the next ones would wait for, too
                failure = error
            if failure is not None:
                failed[key] = failure
        return failed

    @abstractmethod
    def get(self, keys: Sequence[str], sizes: Sequence[int]) -> list[bytes | bytearray | None]:
        """Return payloads, of each a byte beyond its size at most; None where there is none."""

    @abstractmethod
    def delete(self, keys: Iterable[str]) -> None:
        """Delete payloads; raise `StoreError` if some are not deleted."""

    @abstractmethod
    def renew(self, seconds: Mapping[str, float]) -> None:
        """Let payloads expire so many seconds from now; raise `StoreError` if some do not."""


class RedisPayloads(PayloadStore):
    """Payloads in a Redis."""

    def __init__(self, backend: Any) -> None:
        #: Of that server.
        self.backend = backend
        self.name = shown_url(backend)
        self._prefix = key_prefix(backend) + PREFIX

    @cached_property
    def _client(self) -> Any:
        # The backend's own tries again for seconds, which is for our callers to decide.
        # With RESP2 nothing comes on a connection that was not asked for: see `read_values`.
        retry = Retry(NoBackoff(), 1, (RedisConnectionError,))
        return quick_client(self.backend, _TIMEOUT, retry, protocol=2)

    def put(self, key: str, data: Any, seconds: float) -> None:
        """Store a payload; see `PayloadStore.put`."""
        for error in self.put_many(((key, data, seconds),)).values():
            raise error

    def put_many(self, payloads: Iterable[tuple[str, Any, float]]) -> dict[str, StoreError]:
        """Store payloads in one round trip; see `PayloadStore.put_many`."""
        keys: list[str] = []
        commands: list[tuple[Any, ...]] = []
        for key, data, seconds in payloads:
            expiry = b"%d" % round(seconds * 1000)
            keys.append(key)
            commands.append((b"SET", self._key(key), memoryview(data), b"PX", expiry))
        try:
            answers = round_trip(self._client, commands)
        except (RedisError, OSError) as error:
            # Of several it is not known which one is too large.
            size = commands[0][2].nbytes if len(commands) == 1 else 0
            if self._broke_off(error, size):
                text = f"{error} A value of {size} bytes may be more than its server takes"
                return {keys[0]: StoreError(text)}
            answers = [error] * len(keys)
        return {
            key: _store_error(answer)
            for key, answer in zip(keys, answers, strict=True)
            if isinstance(answer, Exception)
        }

    def _broke_off(self, error: Exception, size: int) -> bool:
        """Return whether a server answers that has broken off as it was sent a large value."""
        if size < _LEAST_LIMIT or not isinstance(error, RedisConnectionError):
            return False
        try:
            return bool(self._client.ping())
        except (RedisError, OSError):
            return False

    def get(self, keys: Sequence[str], sizes: Sequence[int]) -> list[bytes | bytearray | None]:
        """Return payloads; see `PayloadStore.get`."""
        found: list[bytes | bytearray | None] = []
        try:
            for first, last in _pieces(sizes):
                found += self._read(keys[first:last], sizes[first:last])
        except (RedisError, OSError) as error:
            raise StoreError(str(error)) from error
        return found

    def _read(self, keys: Sequence[str], sizes: Sequence[int]) -> list[bytes | bytearray | None]:
        pairs = zip(keys, sizes, strict=True)
        commands = [(b"GETRANGE", self._key(key), b"0", b"%d" % size) for key, size in pairs]
        found = read_values(self._client, commands)
        for error in found:
            if isinstance(error, Exception) and not _is_other_type(error):
                raise error
        return [data or None if isinstance(data, (bytes, bytearray)) else None for data in found]

    def delete(self, keys: Iterable[str]) -> None:
        """Delete payloads; see `PayloadStore.delete`."""
        names = [self._key(key) for key in keys]
        self._run([(b"UNLINK", *names)] if names else [])

    def renew(self, seconds: Mapping[str, float]) -> None:
        """Let payloads expire later; see `PayloadStore.renew`."""
        expiries = {key: b"%d" % round(each * 1000) for key, each in seconds.items()}
        self._run([(b"PEXPIRE", self._key(key), each) for key, each in expiries.items()])

    def _key(self, key: str) -> bytes:
        return (self._prefix + key).encode()

    def _run(self, commands: Sequence[Sequence[bytes]]) -> None:
        try:
            for answer in round_trip(self._client, commands):
                if isinstance(answer, Exception):
                    raise answer
        except (RedisError, OSError) as error:
            raise StoreError(str(error)) from error


def _store_error(error: Exception) -> StoreError:
    kind = StoreError
    if isinstance(error, (NoPermissionError, PermissionError)):
        kind = StoreRefused
    elif any(word in each.__name__ for each in type(error).__mro__ for word in _AWAY):
        kind = StoreAway
    found = kind(str(error))
    found.__cause__ = error
    return found


def _pieces(sizes: Sequence[int]) -> Iterable[tuple[int, int]]:
    """Yield where the pieces of one round trip begin and end."""
    first = total = 0
    for at, size in enumerate(sizes):
        if at > first and total + size > _MOST_BYTES:
            yield first, at
            first, total = at, 0
        total += size
    if sizes:
        yield first, len(sizes)


def _is_shared(directory: Path) -> bool:
    """Return whether files in a directory are for its group, too."""
    return bool(directory.stat().st_mode & stat.S_ISGID)


def _is_other_type(error: Exception) -> bool:
    """Return whether Redis says that a key has something else than bytes."""
    return isinstance(error, ResponseError) and str(error).startswith("WRONGTYPE")


def _bounded(method: _M) -> _M:
    """Have a method of a store end in time: file systems and object stores may block for ever."""

    @wraps(method)
    def run(self: Any, *args: Any, **options: Any) -> Any:
        seconds = max(min(_CALL_TIMEOUT, current_deadline() - time.monotonic()), 0.0)
        try:
            return self._calls.run(partial(method, self, *args, **options), seconds)
        except TimeoutError as error:
            raise StoreAway(f"{self.name} does not answer: {error}") from error

    return cast("_M", run)


class DirectoryPayloads(PayloadStore):
    """Payloads in the files of a directory that all processes share, until their mtime."""

    # The owner alone may read them; the group may, too, if the directory is setgid.

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = f"file://{path}"
        self._calls = BoundedCalls()

    @_bounded
    def put(self, key: str, data: Any, seconds: float) -> None:
        """Store a payload; see `PayloadStore.put`."""
        final = self._file(key)
        written = self.path / f"{_UNFINISHED}{uuid4().hex}"
        try:
            if not self.path.is_dir():
                self.path.parent.mkdir(parents=True, exist_ok=True)
                is_shared = _is_shared(self.path.parent)
                mode = _GROUP_DIRECTORY if is_shared else _OWN_DIRECTORY
                self.path.mkdir(mode, exist_ok=True)
            mode = _GROUP_FILE if _is_shared(self.path) else _OWN_FILE
            with os.fdopen(os.open(written, _NEW, mode), "wb") as file:
                file.write(data)
            _expire(written, seconds)
            written.replace(final)
        except OSError as error:
            with suppress(OSError):
                written.unlink(missing_ok=True)
            raise _store_error(error) from error

    def get(self, keys: Sequence[str], sizes: Sequence[int]) -> list[bytes | bytearray | None]:
        """Return payloads; see `PayloadStore.get`."""
        return [self._read(key, size) for key, size in zip(keys, sizes, strict=True)]

    @_bounded  # each, since many large ones may take long though the store answers
    def _read(self, key: str, size: int) -> bytes | None:
        try:
            with self._file(key).open("rb") as file:
                has_expired = os.fstat(file.fileno()).st_mtime < time.time()
                return None if has_expired else file.read(size + 1)
        except (FileNotFoundError, IsADirectoryError):
            return None
        except PermissionError as error:  # of this file: the others are read
            logger.warning("A payload cannot be read: %s", error)
            return None
        except OSError as error:
            raise StoreError(str(error)) from error

    def delete(self, keys: Iterable[str]) -> None:
        """Delete payloads; see `PayloadStore.delete`."""
        _for_each(keys, self._remove)

    @_bounded
    def _remove(self, key: str) -> None:
        self._file(key).unlink(missing_ok=True)

    @_bounded
    def renew(self, seconds: Mapping[str, float]) -> None:
        """Let payloads expire later; see `PayloadStore.renew`."""
        _for_each(seconds, lambda key: _expire(self._file(key), seconds[key]))

    @_bounded
    def expired(self, ago: float = 0.0) -> list[Path]:
        """Return the files that expired so many seconds ago, or that were never finished."""
        now = time.time() - ago
        found = []
        with suppress(FileNotFoundError):
            for entry in os.scandir(self.path):
                with suppress(FileNotFoundError):
                    until = entry.stat().st_mtime
                    until += _ABANDONED if entry.name.startswith(_UNFINISHED) else 0.0
                    is_ours = entry.name.startswith((PREFIX, _UNFINISHED))
                    if is_ours and entry.is_file() and until < now:
                        found.append(Path(entry.path))
        return found

    def sweep(self) -> int:
        """Delete files that have expired; return their number, or raise `StoreError`."""
        try:
            found = self.expired()
        except OSError as error:
            raise StoreError(str(error)) from error
        _for_each(found, lambda path: path.unlink(missing_ok=True))
        return len(found)

    def _file(self, key: str) -> Path:
        name = PREFIX + quote(key, safe="")
        if len(name) > _LONGEST_NAME:  # with a long id of the caller's own
            name = PREFIX + sha256(key.encode()).hexdigest()
        return self.path / name


def _for_each(things: Iterable[_T], change: Callable[[_T], None]) -> None:
    """Change files; one that belongs to somebody else keeps none of the others from it."""
    failed: OSError | None = None
    for thing in things:
        try:
            change(thing)
        except (FileNotFoundError, IsADirectoryError):
            continue
        except OSError as error:
            failed = error
    if failed is not None:
        raise StoreError(str(failed)) from failed


def _expire(path: Path, seconds: float) -> None:
    until = time.time() + seconds
    os.utime(path, (until, until))


class ObjectPayloads(PayloadStore):
    """Payloads in an object store, through fsspec; they expire by the rules of the bucket."""

    def __init__(self, url: str) -> None:
        self._is_made = False
        self._calls = BoundedCalls()
        self.name = maybe_sanitize_url(url)
        try:
            self._fs, self._root = import_module("fsspec.core").url_to_fs(url)
        except ImportError as error:
            raise ConfigurationError(
                f"batch_payload_store: {error}; {self.name} needs pip install"
                f" 'celery-batch[objects]' and fsspec's package for such a store"
            ) from error
        except ValueError as error:
            raise ConfigurationError(
                f"batch_payload_store: must be {_STORES}, got {self.name!r}: {error}"
            ) from error

    @_bounded
    def put(self, key: str, data: Any, seconds: float) -> None:  # noqa: ARG002 (the bucket's rules)
        """Store a payload; see `PayloadStore.put`."""
        try:
            if not self._is_made:
                self._fs.makedirs(self._root, exist_ok=True)
                self._is_made = True
            self._fs.pipe_file(self._path(key), bytes(data))
        except Exception as error:
            raise _store_error(error) from error

    def get(self, keys: Sequence[str], sizes: Sequence[int]) -> list[bytes | bytearray | None]:
        """Return payloads; see `PayloadStore.get`."""
        return [self._read(key, size) for key, size in zip(keys, sizes, strict=True)]

    @_bounded  # each, since many large ones may take long though the store answers
    def _read(self, key: str, size: int) -> bytes | None:
        try:
            return bytes(self._fs.cat_file(self._path(key), start=0, end=size + 1))
        except FileNotFoundError:
            return None
        except PermissionError as error:  # S3's answer for what is not there, to some users
            logger.warning("A payload cannot be read: %s", error)
            return None
        except Exception as error:
            raise StoreError(str(error)) from error

    def delete(self, keys: Iterable[str]) -> None:
        """Delete payloads; see `PayloadStore.delete`."""
        for key in keys:
            self._remove(key)

    @_bounded
    def _remove(self, key: str) -> None:
        try:
            self._fs.rm_file(self._path(key))
        except FileNotFoundError:
            return
        except Exception as error:
            raise StoreError(str(error)) from error

    def renew(self, seconds: Mapping[str, float]) -> None:
        """Do nothing: when objects expire is said by the rules of the bucket."""

    def _path(self, key: str) -> str:
        return f"{self._root}/{PREFIX}{quote(key, safe='')}"


def redis_at(app: Any, setting: str, url: str) -> RedisBackend:
    """Return Celery's Redis backend at a URL, the value of a setting."""
    why = shown = ""
    try:
        shown = f", got {maybe_sanitize_url(url)!r}"
        kind, where = by_url(url, app.loader)
        if issubclass(kind, RedisBackend):
            return kind(app=app, url=where)
    except (AttributeError, ImportError, ImproperlyConfigured):  # the scheme is no backend's
        pass
    except Exception as error:  # noqa: BLE001 (whatever is wrong with the URL)
        why = f": {error}"
    expected = "the URL of a Redis, such as redis://localhost:6379/1"
    raise ConfigurationError(f"{setting}: must be {expected}{shown}{why}")


def open_store(app: Any, url: str) -> PayloadStore:
    """Return the store at a URL of a Redis, of a directory (``file:``), or of what fsspec knows."""
    scheme = urlsplit(url).scheme
    if scheme in ("file", "local"):  # the latter is fsspec's
        directory = _directory_of(url)
        if scheme == "file":
            return DirectoryPayloads(directory)
    if scheme == "memory":
        raise ConfigurationError(
            f"batch_payload_store: a store in memory belongs to one process, so that no other"
            f" could read what it has; name one that callers and workers share, such as"
            f" redis://localhost:6379/1 or file:///var/payloads, got {url!r}"
        )
    if scheme.startswith(("redis", "sentinel")):
        return RedisPayloads(redis_at(app, "batch_payload_store", url))
    require("://" in url, "batch_payload_store", _STORES, url)  # for fsspec a path otherwise
    return ObjectPayloads(url)


def _directory_of(url: str) -> Path:
    """Return the directory of a URL of files, whose path alone counts: it names no host."""
    host, path = urlsplit(url)[1:3]
    if host not in ("", "localhost") or not path.startswith("/"):
        right = "/".join(part for part in (host, path.strip("/")) if part)
        raise ConfigurationError(
            f"batch_payload_store: must name a directory by its whole path, after three slashes,"
            f" such as file:///{right or 'var/payloads'}, got {url!r}"
        )
    return Path(unquote(path))
