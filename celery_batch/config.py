"""
App-wide settings, read from ``app.conf`` when they are needed.

They are ordinary lower-case Celery settings (``app.conf.batch_max_size``, or
``CELERY_BATCH_MAX_SIZE`` in Django with the usual namespace); a task's own
options win over them.  A wrong one raises a `ConfigurationError` where it is read.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from celery_batch.batching.policy import BatchPolicy, is_above_zero, require
from celery_batch.batching.shapes import are_ascending
from celery_batch.defaults import SETTINGS
from celery_batch.errors import ConfigurationError
from celery_batch.formatting import did_you_mean

__all__ = [
    "FAST_PATHS",
    "HIGHEST_PRIORITY",
    "OPTIONS",
    "SETTINGS",
    "PayloadSettings",
    "Settings",
    "SettingsSnapshot",
    "changeable_options",
    "disabled_fast_paths",
    "is_above_zero",
    "isolates_failures",
    "max_queue_of",
    "max_worker_losses",
    "milliseconds_warnings",
    "outputs_of",
    "policy_of",
    "prefetch_warnings",
    "require",
    "steps_of",
    "unread_settings",
    "usual_messages",
]

#: Task option -> the setting it falls back to.
OPTIONS = {
    "max_batch_size": "batch_max_size",
    "max_wait": "batch_max_wait",
    "linger": "batch_linger",
    "low_priority_share": "batch_low_priority_share",
}

#: Options of tasks with a latency target.
TARGET_OPTIONS = ("target_latency", "shed")

#: Task options without a setting, since they depend on the model.
COST_OPTIONS = ("max_batch_cost", "sort_window")

#: Options of tasks whose equal rows have equal answers.
REUSE_OPTIONS = ("dedupe", "cache_ttl")

#: Option that a running worker can change -> the option with which its task must be defined.
_NEEDED = {
    **dict.fromkeys(COST_OPTIONS, "a max_batch_cost"),
    **dict.fromkeys(TARGET_OPTIONS, "a target_latency"),
    "dedupe": "dedupe=True",
    "cache_ttl": "a cache_ttl",
}

#: A task option without a setting, since it compares the tasks of a worker.
SHARE_OPTION = "device_share"

#: Most rows in one model call.  The tracers of a batch are nested, one stack frame or more each;
#: Python 3.12 and 3.13 limit some of those frames, and the first 3.12 had a low limit.
_IS_EARLY_3_12 = (3, 12) <= sys.version_info < (3, 12, 10)
LARGEST_BATCH = 200 if _IS_EARLY_3_12 else 1024

#: The highest priority, a byte in AMQP.
HIGHEST_PRIORITY = 255

#: Requests for each row of a batch where equal ones share a row; there may be more.
_WITH_DUPLICATES = 2

#: Seconds. No request is meant to wait so long for others; the value may be in milliseconds.
_LIKE_MILLISECONDS = 5.0

#: Seconds. No caller is meant to wait so long for one result; nor is this value.
_LONG_TARGET = 50.0

#: The fast paths, each of which can be turned off; in the order in which a request takes them.
FAST_PATHS = (
    "publish",
    "amqp_frames",
    "fetch",
    "intake",
    "write_ahead",
    "overlap",
    "trace",
    "store",
    "notify",
    "acknowledge",
)


@dataclass(frozen=True, slots=True)
class Settings:
    """A worker's settings, besides the tasks' policies; `Defaults` describes them."""

    devices: tuple[str, ...] | None
    load_timeout: float
    max_message_size: int | None
    lease: float
    dead_letter_queue: str | None
    metrics: str | int | None

    @classmethod
    def of(cls, app: Any) -> Settings:
        """Read and check the settings of an app; also refuse misspelt ones."""
        for key in app.conf:
            name = _without_namespace(key, app.conf.prefix)
            if name.startswith("batch_") and name not in SETTINGS:
                option = name.removeprefix("batch_")
                is_option = f"; {option} is an option of the task" if option in _NEEDED else ""
                hint = is_option or did_you_mean(name, SETTINGS)
                raise ConfigurationError(f"{key}: no such setting{hint}")
        PayloadSettings.of(app)
        disabled_fast_paths(app)
        for name in ("batch_bulk", "batch_overlap"):
            switch = _setting(app, name)
            require(isinstance(switch, bool), name, "True or False", switch)
        timeout, lease = _seconds(app, "batch_load_timeout"), _seconds(app, "batch_lease")
        metrics = _setting(app, "batch_metrics")
        url = _setting(app, "batch_cache_url")
        require(url is None or isinstance(url, str), "batch_cache_url", "the URL of a Redis", url)
        return cls(_devices(app), timeout, _message_size(app), lease, _queue_name(app), metrics)


def unread_settings(app: Any) -> dict[str, str]:
    """Return the keys that look like settings and are read as none, with the names to use."""
    found, keys = {}, list(app.conf)
    namespace = app.conf.prefix or ""  # known once settings have been read
    for key in keys:
        name = key.lower()
        for prefix in ("celery_", namespace.lower()):
            name = name.removeprefix(prefix)
        usual = namespace + (name.upper() if namespace.isupper() else name)
        if name in SETTINGS and key not in (name, usual):
            found[key] = usual
    return found


class SettingsSnapshot:
    """Says whether an app's settings have changed, at a small part of the cost of reading one."""

    def __init__(self, conf: Any) -> None:
        self._changes = conf.changes
        self._live = _dict_of(conf)
        self._seen = dict(self._live)

    def is_current(self, conf: Any) -> bool:
        """Return whether no setting has changed since."""
        return conf.changes is self._changes and self._live == self._seen


def _dict_of(conf: Any) -> Any:
    """Return the dict in which an app's settings are changed, within its wrappers."""
    changes = conf.changes
    while type(changes) is not dict:
        inner = getattr(changes, "data", None)
        if inner is None:
            return changes
        changes = getattr(inner, "changes", inner)
    return changes


@dataclass(frozen=True, slots=True)
class PayloadSettings:
    """Which values travel beside their messages, and where."""

    store: str | bool | None  # a URL, or None or False as in `Defaults`
    threshold: int  # bytes of a value from which on it is stored
    expires: float  # seconds for which a payload outlives the time when its task is due or expires
    most: int  # bytes of the values of one message
    message_size: int | None  # most bytes of a message; None for any

    @classmethod
    def of(cls, app: Any) -> PayloadSettings:
        """Read and check the settings of an app."""
        store = _setting(app, "batch_payload_store")
        expected = "a URL, None for the Redis of the results, or False"
        is_url = isinstance(store, str) and store
        require(store in (None, False) or is_url, "batch_payload_store", expected, store)
        sizes = []
        for name in ("batch_payload_threshold", "batch_max_payload_size"):
            size = _setting(app, name)
            require(_is_positive(size), name, "a whole number of bytes above 0", size)
            sizes.append(size)
        expires = _seconds(app, "batch_payload_expires")
        return cls(store, sizes[0], expires, sizes[1], _message_size(app))


def disabled_fast_paths(app: Any) -> frozenset[str]:
    """Return the fast paths that the app's settings turn off."""
    setting = "batch_disable_fast_paths"
    names = _setting(app, setting)
    if isinstance(names, str):
        names = [name.strip() for name in names.split(",") if name.strip()]
    is_list = isinstance(names, Collection)
    require(is_list, setting, 'the names of fast paths, or "all"', names)
    for name in names:
        if name not in (*FAST_PATHS, "all"):
            near = did_you_mean(str(name), (*FAST_PATHS, "all"))
            known = "" if near else f"; there are {', '.join(FAST_PATHS)}, and all"
            raise ConfigurationError(f"{setting}: no such fast path: {name}{near or known}")
    return frozenset(FAST_PATHS if "all" in names else names)


def isolates_failures(task: Any) -> bool:
    """Return whether the model is called again with parts of a batch that failed."""
    isolates = _option(task, "isolate_failures")
    name = f"{task.name}.isolate_failures"
    require(isinstance(isolates, bool), name, "True or False", isolates)
    return isolates  # type: ignore[no-any-return]


def outputs_of(task: Any) -> str:
    """Return what outputs in arrays become: "arrays" or "lists"."""
    outputs = _option(task, "outputs")
    require(outputs in ("arrays", "lists"), f"{task.name}.outputs", '"arrays" or "lists"', outputs)
    return outputs  # type: ignore[no-any-return]


def max_worker_losses(task: Any) -> int:
    """Return how often an item may take its process down, at least 1."""
    losses = _option(task, "max_worker_losses")
    name = f"{task.name}.max_worker_losses"
    require(_is_positive(losses), name, "a whole number of at least 1", losses)
    return losses  # type: ignore[no-any-return]


def max_queue_of(app: Any, task: Any = None) -> int | None:
    """Return how many items may wait for a task, at least 1; None for any number."""
    own = None if task is None else task.max_queue
    most = _setting(app, "batch_max_queue") if own is None else own
    name = "batch_max_queue" if own is None else f"{task.name}.max_queue"
    expected = "a whole number of at least 1, or None for any number"
    require(most is None or _is_positive(most), name, expected, most)
    return most  # type: ignore[no-any-return]


def policy_of(task: Any, changes: Mapping[str, Any] | None = None) -> BatchPolicy:
    """Return the policy of a task's options and the app's settings, with an operator's changes."""
    values = {option: _option(task, option) for option in OPTIONS}
    own = (*COST_OPTIONS, "padded", SHARE_OPTION, *TARGET_OPTIONS, *REUSE_OPTIONS)
    values |= {option: getattr(task, option) for option in own}
    values |= {option: steps_of(task, option) for option in ("batch_sizes", "batch_lengths")}
    sizes = values["batch_sizes"]
    if sizes and are_ascending(sizes) and task.max_batch_size is None:
        values["max_batch_size"] = sizes[-1]
    elif values["max_batch_cost"] is not None and not _has_size(task):
        values["max_batch_size"] = LARGEST_BATCH
    if changes:
        _change(task, values, changes)
    try:
        policy = BatchPolicy(**values)
    except ConfigurationError as error:
        option = str(error).partition(":")[0]
        is_own = getattr(task, option, None) is not None or option in (changes or ())
        setting = None if is_own else OPTIONS.get(option)
        hint = f" (of the setting {setting})" if setting else ""
        raise ConfigurationError(f"{task.name}.{error}{hint}") from None
    if policy.max_batch_size > LARGEST_BATCH and task.traces_items:
        why = " on Python 3.12 before 3.12.10, 1024 on others" if _IS_EARLY_3_12 else ""
        raise ConfigurationError(
            f"{task.name}.max_batch_size: at most {LARGEST_BATCH}{why}, got"
            f" {policy.max_batch_size}; send lists as items if the model can take more at once"
        )
    return policy


def _change(task: Any, values: dict[str, Any], changes: Mapping[str, Any]) -> None:
    """Put an operator's values in place of a task's own."""
    known = changeable_options(task)
    for option, value in changes.items():
        needed = _NEEDED.get(option)
        if needed is not None and option not in known:
            raise ConfigurationError(
                f"{task.name}.{option}: can be changed only for tasks that are defined with"
                f" {needed}"
            )
        if option not in known:
            raise ConfigurationError(
                f"{task.name}.{option}: no option that a running worker can change, which are"
                f" {', '.join(known)}{did_you_mean(option, known)}"
            )
        values[option] = value
    if values["max_batch_cost"] is None and task.max_batch_cost is not None:
        raise ConfigurationError(
            f"{task.name}.max_batch_cost: must be a number above 0 while a worker runs, got None"
        )
    if values["shed"] is True and values["target_latency"] is None:
        raise ConfigurationError(
            f"{task.name}.shed: has no effect without target_latency;"
            f" write target_latency=none shed=false"
        )


def steps_of(task: Any, option: str) -> Any:
    """Return ``batch_sizes`` or ``batch_lengths`` of a task, or of its model; none is ()."""
    steps = getattr(task, option)
    if steps is None and task.model is not None:
        steps = getattr(task.model, option)
    return tuple(steps) if isinstance(steps, list) else () if steps is None else steps


def usual_messages(task: Any, policy: BatchPolicy) -> int:
    """Return how many messages of a task one pool process can use."""
    # One batch runs, one is ready and one is being formed; what is acknowledged as it starts is no
    # longer prefetched.  Where batches are chosen by length or key, more wait to be chosen from.
    chooses = policy.sorts or task._item_key is not None
    batches = (3 if task.acks_late else 2) + (policy.sort_window if chooses else 0)
    return policy.usual_rows * batches * (_WITH_DUPLICATES if policy.dedupe else 1)


def changeable_options(task: Any) -> tuple[str, ...]:
    """Return the options of a task that an operator may change while workers run."""
    cost = COST_OPTIONS if task.max_batch_cost is not None else ()
    target = TARGET_OPTIONS if task.target_latency is not None else ()
    reuse = [option for option in REUSE_OPTIONS if getattr(task, option)]
    return (*OPTIONS, SHARE_OPTION, *cost, *target, *reuse)


def prefetch_warnings(app: Any, multiplier: int, messages: int) -> list[str]:
    """Return a warning for each setting with which a worker cannot hold so many messages alone."""
    found, limit = [], app.conf.get("worker_eta_task_limit")
    if limit is not None and limit < messages:
        found.append(
            f"worker_eta_task_limit={limit} limits batches: a worker needs to hold {messages}"
            f" messages; raise it to {messages}, or lower max_batch_size"
        )
    if multiplier == 0:
        found.append(
            f"worker_prefetch_multiplier=0 lets one worker take all messages of a queue from the"
            f" others; leave the setting out, a worker then holds the {messages} messages that its"
            f" batches can use"
        )
    return found


def milliseconds_warnings(name: str, policy: BatchPolicy) -> list[str]:
    """Return a warning for each wait of a task that may have been meant in milliseconds."""
    waits = {
        "max_wait": (policy.max_wait, _LIKE_MILLISECONDS),
        "linger": (policy.linger or 0.0, _LIKE_MILLISECONDS),
        "target_latency": (policy.target_latency or 0.0, _LONG_TARGET),
    }
    return [
        f"{name}: {option}={value:g} is in seconds;"
        f" if you mean milliseconds, write {value / 1000:g}"
        for option, (value, suspicious) in waits.items()
        if value >= suspicious and policy.max_batch_size > 1
    ]


def _without_namespace(key: str, namespace: str | None) -> str:
    """Return Celery's name of a setting; with a namespace the key may be CELERY_BATCH_MAX_SIZE."""
    if namespace and key.startswith(namespace):
        return key.removeprefix(namespace).lower()
    return key  # in Celery's form, or no setting of ours


def _message_size(app: Any) -> int | None:
    name, expected = "batch_max_message_size", "a whole number of bytes above 0, or None"
    size = _setting(app, name)
    require(size is None or _is_positive(size), name, expected, size)
    return size  # type: ignore[no-any-return]


def _devices(app: Any) -> tuple[str, ...] | None:
    """Return the names of devices; None if none are chosen."""
    given = _setting(app, "batch_devices")
    if not given:
        return None
    expected = 'names of devices, such as "cuda:0,cuda:1" or ["cuda:0", "cuda:1"]'
    require(isinstance(given, (str, list, tuple)), "batch_devices", expected, given)
    if isinstance(given, str):
        given = [name.strip() for name in given.split(",") if name.strip()]
    return tuple(map(_device, given))


def _device(name: Any) -> Any:
    """Return a device's name; ids of GPUs and of MIG slices may stand alone."""
    is_id = isinstance(name, str) and name.startswith(("GPU-", "MIG-"))
    return f"cuda:{name}" if is_id else name


def _queue_name(app: Any) -> str | None:
    name = "batch_dead_letter_queue"
    queue = _setting(app, name)
    is_name = isinstance(queue, str) and queue
    require(queue is None or is_name, name, "the name of a queue", queue)
    return queue  # type: ignore[no-any-return]


def _setting(app: Any, name: str) -> Any:
    return app.conf.get(name, SETTINGS[name])


def _option(task: Any, name: str) -> Any:
    """Return a task's own option, or the app's setting where the task has none."""
    own = getattr(task, name)
    return _setting(task.app, OPTIONS.get(name, f"batch_{name}")) if own is None else own


def _has_size(task: Any) -> bool:
    """Return whether a task or its app says how many rows a batch may have."""
    return task.max_batch_size is not None or task.app.conf.get("batch_max_size") is not None


def _is_positive(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _seconds(app: Any, name: str) -> float:
    seconds = _setting(app, name)
    require(is_above_zero(seconds), name, "seconds above 0", seconds)
    return float(seconds)
