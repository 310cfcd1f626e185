"""
The fast paths: what each of them stands on, and whether it is on.

A fast path uses parts of Celery and of its libraries that are not public, and that any release
may change.  Each is checked once in a process, when it is first wanted: the versions of the
libraries, the names, and the parameters of functions.  Outside of what is known it is off, and
Celery's own code runs, which is slower.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import import_module
from itertools import groupby
from typing import Any

from celery_batch.config import FAST_PATHS, SettingsSnapshot, disabled_fast_paths

__all__ = ["FastPaths", "PathState", "states_in_words"]

#: Of each library the first version with which the fast paths are tested, and the first one
#: with which they are not.
_TESTED = {
    "celery": ("5.5.3", "5.8"),
    "kombu": ("5.5.4", "5.8"),
    "billiard": ("4.2.1", "4.4"),
    "amqp": ("5.3.1", "5.5"),
    "redis": ("5.2.1", "9"),
}

#: What the libraries are called where that is not the module's name.
_CALLED = {"amqp": "py-amqp", "redis": "redis-py"}


@dataclass(frozen=True, slots=True)
class PathState:
    """Whether a fast path is on."""

    name: str
    reason: str = ""  # why it is off, in a few words; empty if it is on

    @property
    def is_on(self) -> bool:
        """Whether it is on."""
        return not self.reason


@dataclass(frozen=True, slots=True)
class _Has:
    """A class, an object or a module that has some names."""

    target: str
    names: str

    def fault(self, found: Any) -> str:
        missing = [name for name in self.names.split() if not hasattr(found, name)]
        return f"{self.target} has no {', '.join(missing)}" if missing else ""


@dataclass(frozen=True, slots=True)
class _Calls:
    """A function that we call, with so many positional arguments and these keywords."""

    target: str
    positional: int = 0
    keywords: str = ""

    def fault(self, found: Any) -> str:
        given = dict.fromkeys(self.keywords.split())
        try:
            inspect.signature(found).bind(*(None,) * self.positional, **given)
        except TypeError as error:
            return f"{self.target}: {error}"
        return ""


@dataclass(frozen=True, slots=True)
class _Replaces:
    """A method in whose place we put another one, by its parameters; "..." for any others."""

    target: str
    parameters: str

    def fault(self, found: Any) -> str:
        variable = inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD
        parameters = inspect.signature(found).parameters.values()
        given = [each.name for each in parameters if each.kind not in variable]
        *known, last = ["self", *self.parameters.split()]
        if last == "...":
            given = given[: len(known)]
        else:
            known.append(last)
        return "" if given == known else f"{self.target} has other parameters"


_REDIS_CHANNEL, _REDIS_QOS = "kombu.transport.redis:Channel", "kombu.transport.redis:QoS"
_BACKEND = "celery.backends.redis:RedisBackend"
_POOL, _ASYNPOOL = "billiard.pool", "celery.concurrency.asynpool"

#: What replaces the writing of results, which `store` and `notify` have in common.
_RECORDS = (
    _Replaces(f"{_BACKEND}._store_result", "task_id result state traceback request"),
    _Has(_BACKEND, "get_key_for_task encode get"),
    _Replaces("celery.app.base:Celery._get_backend", ""),
)


@dataclass(frozen=True, slots=True)
class _Path:
    """What a fast path stands on."""

    libraries: tuple[str, ...]  # by the names of their modules
    shape: tuple[_Has | _Calls | _Replaces, ...]  # the parts that it uses
    switches: tuple[str, ...] = ()  # settings which turn it off, too, where they are False
    needs: str = ""  # another path, without which it is off


_PATHS: Mapping[str, _Path] = {
    "publish": _Path(
        ("celery", "kombu", "redis"),
        (
            _Calls(
                "celery.app.base:Celery.send_task",
                4,
                "producer task_type result_cls add_to_parent headers expires task_id root_id"
                " parent_id group_id group_index reply_to shadow ignore_result",
            ),
            _Has("celery.app.task:Task", "_get_exec_options typing"),
            _Has("celery.app.amqp:AMQP", "argsrepr_maxsize kwargsrepr_maxsize router"),
            _Replaces(
                "kombu.messaging:Producer._publish",
                "body priority content_type content_encoding headers properties routing_key"
                " mandatory immediate exchange declare ...",
            ),
            _Has("kombu.connection:Connection", "_reraise_as_library_errors ensure"),
            _Has("kombu.serialization:registry", "_encoders"),
            _Has(_REDIS_CHANNEL, "global_keyprefix codecs pool"),
            _Calls(f"{_REDIS_CHANNEL}.prepare_message", 7),
            _Calls(f"{_REDIS_CHANNEL}._inplace_augment_message", 4),
            _Calls(f"{_REDIS_CHANNEL}._get_message_priority", 2, "reverse"),
            _Calls(f"{_REDIS_CHANNEL}._q_for_pri", 3),
            _Calls("redis.connection:Connection.send_packed_command", 2, "check_health"),
            _Calls("redis.connection:Connection.can_read", 2),
            _Calls("redis.connection:Connection.read_response", 1),
        ),
        ("batch_bulk",),
    ),
    "notify": _Path(
        ("celery", "redis"),
        (
            *_RECORDS,
            _Calls(f"{_BACKEND}._create_client", 1, "socket_timeout max_connections"),
            _Calls("redis.client:PubSub.get_message", 1, "timeout"),
        ),
    ),
    "amqp_frames": _Path(
        ("kombu", "amqp"),
        (
            _Replaces("amqp.connection:Connection.drain_events", "timeout"),
            _Calls("amqp.connection:Connection.blocking_read", 2),
            _Calls("amqp.transport:TCPTransport.having_timeout", 2),
            _Has("amqp.transport:TCPTransport", "read_frame"),
            _Calls("amqp.channel:Channel.send_method", 4),
            _Has("amqp.spec:Basic", "Qos QosOk"),
            _Has("amqp.serialization:GenericContent", "_serialize_properties"),
            _Calls("amqp.serialization:dumps", 2),
        ),
        ("batch_bulk",),
    ),
    "acknowledge": _Path(
        ("celery", "kombu", "redis", "amqp"),
        (
            _Replaces(f"{_REDIS_QOS}.ack", "delivery_tag"),
            _Replaces(f"{_REDIS_QOS}.append", "message delivery_tag"),
            _Replaces(f"{_REDIS_QOS}.reject", "delivery_tag requeue"),
            _Replaces(f"{_REDIS_QOS}.restore_by_tag", "tag client leftmost"),
            _Replaces(f"{_REDIS_QOS}.restore_visible", "start num interval"),
            _Has(_REDIS_QOS, "restore_unacked restore_unacked_once unacked_key"),
            _Has(_REDIS_QOS, "unacked_index_key visibility_timeout _delivered _dirty"),
            _Calls(f"{_REDIS_CHANNEL}._lookup", 3),
            _Calls(f"{_REDIS_CHANNEL}._get_message_priority", 2, "reverse"),
            _Calls(f"{_REDIS_CHANNEL}._q_for_pri", 3),
        ),
        ("batch_bulk",),
    ),
    "fetch": _Path(
        ("celery", "kombu", "redis"),
        (
            _Replaces(f"{_REDIS_CHANNEL}._brpop_start", "timeout"),
            _Replaces(f"{_REDIS_CHANNEL}._brpop_read", ""),
            _Has(_REDIS_CHANNEL, "_closing _in_poll active_queues priority_steps"),
            _Calls(f"{_REDIS_CHANNEL}._q_for_pri", 3),
            _Has("kombu.utils.scheduling:round_robin_cycle", "consume rotate"),
            _Replaces(f"{_REDIS_QOS}.can_consume", ""),
            _Calls(f"{_REDIS_QOS}.can_consume_max_estimate", 1),
            _Calls("kombu.transport.virtual:QoS.append", 3),
            _Calls("kombu.transport.virtual:Transport._deliver", 3),
            _Calls("redis.client:Redis.parse_response", 3),
            _Has("redis.connection:Connection", "send_command pack_commands connect"),
        ),
        ("batch_bulk",),
        "acknowledge",
    ),
    "intake": _Path(
        ("celery", "kombu"),
        (
            _Calls("celery.worker.request:create_request_cls", 5, "app"),
            _Replaces(
                "celery.worker.request:Request.__init__",
                "message on_ack hostname eventer app connection_errors request_dict task"
                " on_reject body headers decoded utc maybe_make_aware maybe_iso8601",
            ),
            _Has("celery.worker.strategy", "default logger"),
        ),
    ),
    "write_ahead": _Path(
        ("celery", "kombu", "billiard"),
        (
            _Has(f"{_ASYNPOOL}:AsynPool", "flush"),
            _Has(_POOL, "READY"),
            _Replaces("kombu.asynchronous.semaphore:LaxBoundedSemaphore.release", ""),
        ),
        ("batch_overlap",),
    ),
    "overlap": _Path(
        ("celery", "billiard"),
        (
            _Replaces(f"{_POOL}:Worker._ensure_messages_consumed", "completed"),
            _Has(f"{_POOL}:Worker", "workloop _make_recv_method"),
            _Has(_POOL, "ACK READY TASK SIG_SOFT_TIMEOUT soft_timeout_sighandler"),
        ),
        ("batch_overlap",),
    ),
    "store": _Path(
        ("celery", "redis"),
        (
            *_RECORDS,
            _Calls(f"{_BACKEND}._get_result_meta", 1, "result state traceback request"),
            _Has(_BACKEND, "_MAX_STR_VALUE_SIZE ensure mget retry_policy on_connection_error"),
            _Has(_BACKEND, "prepare_value decode_result"),
        ),
        ("batch_bulk",),
    ),
    "trace": _Path(
        ("celery",),
        (
            _Calls("celery.app.trace:task_has_custom", 2),
            _Calls("celery.app.trace:info", 2),
            _Has("celery.app.trace", "LOG_SUCCESS logger trace_task"),
            _Calls("celery.app.task:Context", 1, "args kwargs called_directly"),
            _Has("celery.app.task:Task", "_get_request request_stack"),
            _Has("celery._state", "push_current_task pop_current_task"),
        ),
        (),
        "store",
    ),
}


class FastPaths:
    """The fast paths of one app in this process."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self._faults: dict[str, str] = {}
        self._snapshot: SettingsSnapshot | None = None
        self._states: dict[str, PathState] = {}

    @classmethod
    def of(cls, app: Any) -> FastPaths:
        """Return an app's fast paths, which it keeps."""
        found: FastPaths | None = getattr(app, "batch_fast_paths", None)
        if found is None:
            found = app.batch_fast_paths = cls(app)
        return found

    def state(self, name: str) -> PathState:
        """Return whether a fast path is on, as the app's settings are now."""
        conf = self._app.conf
        if self._snapshot is None or not self._snapshot.is_current(conf):
            self._snapshot, self._states = SettingsSnapshot(conf), {}
        found = self._states.get(name)
        if found is None:
            found = self._states[name] = PathState(name, self._reason(name))
        return found

    def is_on(self, name: str) -> bool:
        """Return whether a fast path is on."""
        return self.state(name).is_on

    def turn_off(self, name: str, reason: str) -> None:
        """Turn a path off in this process, for what an object lacks that is there only now."""
        self._faults[name], self._states = reason, {}

    def _reason(self, name: str) -> str:
        """Return why a path is off; an empty text if it is on."""
        path, conf = _PATHS[name], self._app.conf
        if name in disabled_fast_paths(self._app):
            return "batch_disable_fast_paths"
        for switch in path.switches:
            if not conf.get(switch, True):
                return f"{switch} is False"
        if name not in self._faults:
            self._faults[name] = _fault(path)
        if path.needs and not self._faults[name] and not self.is_on(path.needs):
            return f"{path.needs} is off"
        return self._faults[name]


def states_in_words(states: Iterable[PathState]) -> str:
    """Return which fast paths are on, which are off, and why, as one line."""
    states = list(states)
    parts = []
    if on := [state.name for state in states if state.is_on]:
        parts.append(f"{', '.join(on)} on")
    off = [state for state in states if not state.is_on]
    for reason, group in groupby(off, lambda state: state.reason):
        parts.append(f"{', '.join(state.name for state in group)} off ({reason})")
    return "; ".join(parts)


def _fault(path: _Path) -> str:
    """Return what is not as it is known in the libraries that a path uses; nothing if all is."""
    try:
        for library in path.libraries:
            version = str(import_module(library).__version__)
            first, end = _TESTED[library]
            if not _numbers(first) <= _numbers(version) < _numbers(end):
                called = _CALLED.get(library, library)
                return f"{called} {version} is not tested, which {first} to below {end} are"
        for part in path.shape:
            module, _, names = part.target.partition(":")
            found: Any = import_module(module)
            for name in names.split(".") if names else ():
                owner, found = found, getattr(found, name, None)
                if found is None:
                    return f"{_name_of(owner)} has no {name}"
            if fault := part.fault(found):
                return fault.replace(":", ".", 1)
    except Exception as error:  # noqa: BLE001 (whatever it is, Celery's own code has to run)
        return f"its check has failed: {error!r}"
    return ""


def _name_of(owner: Any) -> str:
    module = getattr(owner, "__module__", "")
    return f"{module}.{owner.__qualname__}" if module else str(owner.__name__)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version)[:3]))


assert set(FAST_PATHS) == set(_PATHS)  # noqa: S101 (two lists of the same names)
