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
from itertools import chain, groupby, starmap
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


_REDIS_CHANNEL, _REDIS_QOS = "kombu.transport.redis:Channel", "kombu.transport.redis:QoS"
_BACKEND = "celery.backends.redis:RedisBackend"
_POOL, _ASYNPOOL = "billiard.pool", "celery.concurrency.asynpool"


@dataclass(frozen=True, slots=True)
class _Path:
    """What a fast path stands on."""

    libraries: tuple[str, ...]  # by the names of their modules
    #: The parts that it uses, each with the names in it: attributes of a module, a class or an
    #: object, or parameters of a function, in their order; "..." where it may have others.
    parts: Mapping[str, str]
    switches: tuple[str, ...] = ()  # settings which turn it off, too, where they are False
    needs: str = ""  # another path, without which it is off


_PATHS: Mapping[str, _Path] = {
    "publish": _Path(
        ("celery", "kombu", "redis"),
        {
            "celery.app.base:Celery.send_task": (
                "name args kwargs task_id producer result_cls expires add_to_parent group_id"
                " group_index reply_to root_id parent_id shadow task_type ..."
            ),
            "celery.app.task:Task": "_get_exec_options typing",
            "celery.app.amqp:AMQP": "argsrepr_maxsize kwargsrepr_maxsize router",
            "kombu.messaging:Producer._publish": (
                "body priority content_type content_encoding headers properties routing_key"
                " mandatory immediate exchange declare ..."
            ),
            "kombu.connection:Connection": "_reraise_as_library_errors ensure",
            "kombu.serialization:registry": "_encoders",
            _REDIS_CHANNEL: "global_keyprefix codecs pool",
            f"{_REDIS_CHANNEL}.prepare_message": (
                "body priority content_type content_encoding headers properties"
            ),
            f"{_REDIS_CHANNEL}._inplace_augment_message": "message exchange routing_key",
            f"{_REDIS_CHANNEL}._get_message_priority": "message reverse",
            f"{_REDIS_CHANNEL}._q_for_pri": "queue pri",
            "redis.connection:Connection.send_packed_command": "command check_health",
            "redis.connection:Connection.can_read": "timeout",
            "redis.connection:Connection.read_response": "...",
        },
        ("batch_bulk",),
    ),
    "notify": _Path(
        ("celery", "redis"),
        {
            f"{_BACKEND}._create_client": "...",
            "redis.client:PubSub.get_message": "timeout ...",
        },
        (),
        "store",
    ),
    "amqp_frames": _Path(
        ("kombu", "amqp"),
        {
            "amqp.connection:Connection.drain_events": "timeout",
            "amqp.connection:Connection.blocking_read": "timeout",
            "amqp.transport:TCPTransport.having_timeout": "timeout",
            "amqp.transport:TCPTransport": "read_frame",
            "amqp.channel:Channel.send_method": "sig format args ...",
            "amqp.spec:Basic": "Qos QosOk",
            "amqp.serialization:GenericContent": "_serialize_properties",
            "amqp.serialization:dumps": "format values",
        },
        ("batch_bulk",),
    ),
    "acknowledge": _Path(
        ("celery", "kombu", "redis", "amqp"),
        {
            f"{_REDIS_QOS}.ack": "delivery_tag",
            f"{_REDIS_QOS}.append": "message delivery_tag",
            f"{_REDIS_QOS}.reject": "delivery_tag requeue",
            f"{_REDIS_QOS}.restore_by_tag": "tag client leftmost",
            f"{_REDIS_QOS}.restore_visible": "start num interval",
            _REDIS_QOS: (
                "restore_unacked restore_unacked_once unacked_key unacked_index_key"
                " visibility_timeout _delivered _dirty"
            ),
            f"{_REDIS_CHANNEL}._lookup": "exchange routing_key ...",
            f"{_REDIS_CHANNEL}._get_message_priority": "message reverse",
            f"{_REDIS_CHANNEL}._q_for_pri": "queue pri",
        },
        ("batch_bulk",),
    ),
    "fetch": _Path(
        ("celery", "kombu", "redis"),
        {
            f"{_REDIS_CHANNEL}._brpop_start": "timeout",
            f"{_REDIS_CHANNEL}._brpop_read": "",
            _REDIS_CHANNEL: "_closing _in_poll active_queues priority_steps",
            f"{_REDIS_CHANNEL}._q_for_pri": "queue pri",
            "kombu.utils.scheduling:round_robin_cycle": "consume rotate",
            f"{_REDIS_QOS}.can_consume": "",
            f"{_REDIS_QOS}.can_consume_max_estimate": "",
            "kombu.transport.virtual:QoS.append": "message delivery_tag",
            "kombu.transport.virtual:Transport._deliver": "message queue",
            "redis.client:Redis.parse_response": "connection command_name",
            "redis.connection:Connection": "send_command pack_commands connect",
        },
        ("batch_bulk",),
        "acknowledge",
    ),
    "intake": _Path(
        ("celery", "kombu"),
        {
            "celery.worker.request:create_request_cls": "base task pool hostname eventer app ...",
            "celery.worker.request:Request.__init__": (
                "message on_ack hostname eventer app connection_errors request_dict task"
                " on_reject body headers decoded utc maybe_make_aware maybe_iso8601"
            ),
            "celery.worker.strategy": "default logger",
        },
    ),
    "write_ahead": _Path(
        ("celery", "kombu", "billiard"),
        {
            f"{_ASYNPOOL}:AsynPool": "flush",
            _POOL: "READY",
            "kombu.asynchronous.semaphore:LaxBoundedSemaphore.release": "",
        },
        ("batch_overlap",),
    ),
    "overlap": _Path(
        ("celery", "billiard"),
        {
            f"{_POOL}:Worker._ensure_messages_consumed": "completed",
            f"{_POOL}:Worker": "workloop _make_recv_method",
            _POOL: "ACK READY TASK SIG_SOFT_TIMEOUT soft_timeout_sighandler",
        },
        ("batch_overlap",),
    ),
    "store": _Path(
        ("celery", "redis"),
        {
            "celery.app.base:Celery._get_backend": "",
            f"{_BACKEND}._store_result": "task_id result state traceback request",
            f"{_BACKEND}._get_result_meta": "result state traceback request ...",
            _BACKEND: (
                "get_key_for_task encode _MAX_STR_VALUE_SIZE ensure mget retry_policy"
                " on_connection_error prepare_value decode_result"
            ),
        },
        ("batch_bulk",),
    ),
    "trace": _Path(
        ("celery",),
        {
            "celery.app.trace:task_has_custom": "task attr",
            "celery.app.trace:info": "fmt context",
            "celery.app.trace": "LOG_SUCCESS logger trace_task",
            "celery.app.task": "Context",
            "celery.app.task:Task": "_get_request request_stack",
            "celery._state": "push_current_task pop_current_task",
        },
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
    faults = chain(map(_untested, path.libraries), starmap(_changed, path.parts.items()))
    try:
        return next(filter(None, faults), "")
    except Exception as error:  # noqa: BLE001 (whatever it is, Celery's own code has to run)
        return f"its check has failed: {error!r}"


def _untested(library: str) -> str:
    version = str(import_module(library).__version__)
    first, end = _TESTED[library]
    if _numbers(first) <= _numbers(version) < _numbers(end):
        return ""
    called = _CALLED.get(library, library)
    return f"{called} {version} is not tested, which {first} to below {end} are"


def _changed(target: str, names: str) -> str:
    module, _, place = target.partition(":")
    found: Any = import_module(module)
    for name in place.split(".") if place else ():
        owner, found = found, getattr(found, name, None)
        if found is None:
            return f"{_name_of(owner)} has no {name}"
    fault = _fault_in(found, names.split())
    return f"{target.replace(':', '.')} has {fault}" if fault else ""


def _fault_in(found: Any, wanted: list[str]) -> str:
    """Return what a part of a library is not as it is known, by the names in it; see `_Path`."""
    if not inspect.isroutine(found):
        missing = [name for name in wanted if not hasattr(found, name)]
        return f"no {', '.join(missing)}" if missing else ""
    parameters = inspect.signature(found).parameters.values()
    variable = inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD
    given = [each.name for each in parameters if each.kind not in variable and each.name != "self"]
    if wanted[-1:] == ["..."]:
        wanted = wanted[:-1]
        given = [name for name in given if name in wanted]
    return "" if given == wanted else "other parameters"


def _name_of(owner: Any) -> str:
    module = getattr(owner, "__module__", "")
    return f"{module}.{owner.__qualname__}" if module else str(owner.__name__)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version)[:3]))


assert set(FAST_PATHS) == set(_PATHS)  # noqa: S101 (two lists of the same names)
