"""
What `celery batch serve` serves, as its YAML file has it.

easy-serve's three keys have the same meaning as there; each further key has a default.
Errors name the key and its line, and are raised before anything starts.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

import yaml

from celery_batch.config import LARGEST_BATCH
from celery_batch.errors import ConfigurationError
from celery_batch.formatting import did_you_mean
from celery_batch.runtime.devices import discover, is_device

__all__ = ["ServeConfig", "devices_of", "make_config", "read_config"]

_HANDLE = re.compile(r"([^\W\d]\w*(\.[^\W\d]\w*)*:)?[^\W\d]\w*")
_QUEUE = re.compile(r"[\w.-]+")
_VARIABLE = re.compile(r"[^\W\d]\w*")
_GPUS = 'must be GPU ids as in "0,1", or cpu'
_REDIS = re.compile(r"(rediss?|redis\+socket|sentinel)://.+", re.DOTALL)


@dataclass(frozen=True, slots=True)
class ServeConfig:
    """A served handle."""

    #: ``"Class"`` or ``"module:Class"``.
    handle: str
    #: The devices that workers are pinned to: ``"cuda:0"``, ``"cpu"``.
    devices: tuple[str, ...] = ("cpu",)
    #: Workers for each device.
    slots: int = 1
    #: Most requests in one batch.
    max_batch_size: int = 32
    #: Most seconds a request waits for others while a worker is free.
    max_wait: float = 0.01
    #: The URL of a Redis; None for a private one.
    broker: str | None = None
    #: Where the web server listens.
    host: str = "127.0.0.1"
    port: int = 9876
    #: Where requests wait; the handle's name unless given.
    queue: str = ""
    #: Environment of the workers and the web server.
    env: dict[str, str] = field(default_factory=dict)
    #: Most seconds from a request to its response.
    time_limit: float = 30.0
    #: Processes of the web server.
    web_workers: int = 1
    #: Most requests that may wait; None for any number.
    max_queue: int | None = None

    @property
    def task_name(self) -> str:
        """The Celery task behind ``/predict``."""
        return f"{self.queue}.predict"

    def to_json(self) -> str:
        """Write it for the processes that serve it."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read what `to_json` has written."""
        values = json.loads(text)
        return cls(**{**values, "devices": tuple(values["devices"])})


def read_config(path: Path) -> ServeConfig:
    """Read and check a configuration file."""
    try:
        tree = yaml.compose(path.read_text(encoding="utf-8"), yaml.SafeLoader)
        values = dict(_values(tree))
    except yaml.MarkedYAMLError as error:
        line = f":{error.problem_mark.line + 1}" if error.problem_mark else ""
        raise ConfigurationError(f"{path}{line}: {error.problem}") from error
    except _Wrong as error:
        raise ConfigurationError(f"{path}:{error.line}: {error}") from error
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigurationError(f"{path}: {error}") from error
    if "handle" not in values:
        raise ConfigurationError(f"{path}: Handle is missing; name the class that serves requests")
    return _completed(values)


def make_config(handle: str) -> ServeConfig:
    """Return the configuration of a handle for which there is no file."""
    if not _HANDLE.fullmatch(handle):
        raise ConfigurationError(f"must be module:Class, or a class in handle.py, got {handle!r}")
    return _completed({"handle": handle})


def _completed(values: dict[str, Any]) -> ServeConfig:
    values.setdefault("queue", values["handle"].rpartition(":")[2])
    values.setdefault("devices", tuple(discover()))
    return ServeConfig(**values)


class _Wrong(Exception):
    def __init__(self, node: yaml.Node | None, message: str) -> None:
        super().__init__(message)
        self.line = node.start_mark.line + 1 if node else 1


def _values(tree: yaml.Node | None) -> Iterator[tuple[str, Any]]:
    if not isinstance(tree, yaml.MappingNode):
        raise _Wrong(tree, "must be keys with values, such as Handle: MyHandle")
    seen = set()
    for key, node in tree.value:
        word = key.value if isinstance(key, yaml.ScalarNode) else key.tag
        if word not in _KEYS:
            raise _Wrong(key, f"{word}: no such key{_nearest(word)}")
        if word in seen:
            raise _Wrong(key, f"{word}: given twice")
        seen.add(word)
        name, check = _KEYS[word]
        try:
            yield name, check(node)
        except (ValueError, yaml.constructor.ConstructorError) as error:
            what = getattr(error, "problem", None) or error
            raise _Wrong(node, f"{word}: {what}") from error


def _nearest(word: str) -> str:
    same = [key for key in _KEYS if key.lower() == word.lower()]
    return f"; did you mean {same[0]}?" if same else did_you_mean(word, _KEYS)


def _plain(node: yaml.Node) -> Any:
    return yaml.SafeLoader("").construct_object(node, deep=True)


def _checked(is_valid: Callable[[Any], object], wanted: str) -> Callable[[yaml.Node], Any]:
    def check(node: yaml.Node) -> Any:
        value = _plain(node)
        if is_valid(value):
            return value
        raise ValueError(f"must be {wanted}, got {value!r}")

    return check


def _text(pattern: re.Pattern[str], wanted: str) -> Callable[[yaml.Node], Any]:
    return _checked(lambda value: isinstance(value, str) and pattern.fullmatch(value), wanted)


def _whole(least: int, most: float = math.inf) -> Callable[[yaml.Node], Any]:
    wanted = f"of at least {least}" if most == math.inf else f"from {least} to {most}"
    return _checked(
        lambda value: type(value) is int and least <= value <= most, f"a whole number {wanted}"
    )


def _seconds(*, zero: bool) -> Callable[[yaml.Node], Any]:
    return _checked(
        lambda value: (
            type(value) in (int, float) and (0 < value < math.inf or (zero and value == 0))
        ),
        f"seconds{'' if zero else ' above 0'}",
    )


def _devices(node: yaml.Node) -> tuple[str, ...]:
    """Read ``GPUs`` as it is written: ``0`` is a number in YAML, and an id here."""
    if not isinstance(node, yaml.ScalarNode):
        raise ValueError(f"{_GPUS}, got {_plain(node)!r}")  # noqa: TRY004 (like other values)
    return devices_of(node.value)


def devices_of(text: str) -> tuple[str, ...]:
    """Return the devices that are named by the ids of GPUs."""
    entries = [entry.strip() for entry in text.split(",")]
    if entries in ([""], ["cpu"]):
        return ("cpu",)
    for entry in entries:
        if not is_device(f"cuda:{entry}"):
            raise ValueError(f"{_GPUS}, got {text!r}")
    if len(set(entries)) < len(entries):
        raise ValueError(f"a GPU is named twice in {text!r}; ProcessPerGPU is for that")
    return tuple(f"cuda:{entry}" for entry in entries)


def _environment(node: yaml.Node) -> dict[str, str]:
    """Read variables as they are written: ``OMP_NUM_THREADS: 1`` is the text "1"."""
    if not isinstance(node, yaml.MappingNode):
        raise ValueError("must be variables with values, such as OMP_NUM_THREADS: 1")  # noqa: TRY004
    for name, value in node.value:
        if not isinstance(value, yaml.ScalarNode) or not _VARIABLE.fullmatch(str(name.value)):
            raise _Wrong(name, f"Env: {name.value}: must be a variable with one value")
    return {name.value: value.value for name, value in node.value}


_ANY = re.compile(r"\S+")

#: Key -> the field it fills, and how its value is read.
_KEYS: dict[str, tuple[str, Callable[[yaml.Node], Any]]] = {
    "GPUs": ("devices", _devices),
    "ProcessPerGPU": ("slots", _whole(1)),
    "Handle": ("handle", _text(_HANDLE, "a class, or module:Class")),
    "MaxBatchSize": ("max_batch_size", _whole(1, LARGEST_BATCH)),
    "MaxWait": ("max_wait", _seconds(zero=True)),
    "Broker": ("broker", _text(_REDIS, "the URL of a Redis, such as redis://host:6379/0")),
    "Host": ("host", _text(_ANY, "an address to listen on")),
    "Port": ("port", _whole(1, 65535)),
    "Queue": ("queue", _text(_QUEUE, "a name of letters, digits, '_', '.' and '-'")),
    "Env": ("env", _environment),
    "TimeLimit": ("time_limit", _seconds(zero=False)),
    "WebWorkers": ("web_workers", _whole(1)),
    "MaxQueue": ("max_queue", _whole(1)),
}
