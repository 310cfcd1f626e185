"""
Checks the options and the function of a batch task, and keeps the app's own task class.

Celery uses ``base=`` instead of the app's task class.  Frameworks put what their tasks
need into that class: Flask's pushes the app's context, Django's sends on commit.
"""

from __future__ import annotations

import inspect
import logging
import math
from collections.abc import Iterator
from difflib import get_close_matches
from numbers import Integral, Real
from types import NoneType
from typing import Any

from celery.utils.imports import symbol_by_name
from celery.utils.time import rate
from kombu.entity import Queue

from celery_batch.batching.policy import require
from celery_batch.call_options import readable_options
from celery_batch.compat.older_celery import is_pydantic
from celery_batch.config import HIGHEST_PRIORITY
from celery_batch.errors import ConfigurationError
from celery_batch.formatting import did_you_mean
from celery_batch.runtime.model import Model

__all__ = [
    "NO_PYDANTIC",
    "check_celery_options",
    "check_model_options",
    "check_retried_errors",
    "keep_app_class",
    "listable_signature",
    "options_of_batches",
    "refuse_misspelt_annotations",
    "refuse_model",
    "refuse_unknown_options",
]

logger = logging.getLogger(__name__)

#: Options of ours that a task has and its model has not; none has a function as its value.
_OF_TASKS = {
    "max_batch_size",
    "max_wait",
    "linger",
    "low_priority_share",
    "device_share",
    "max_batch_cost",
    "max_item_cost",
    "padded",
    "sort_window",
    "target_latency",
    "shed",
    "dedupe",
    "cache_ttl",
    "isolate_failures",
    "max_worker_losses",
    "max_queue",
    "max_queue_cost",
}

#: Attributes of a model that are options.
_OF_MODELS = {
    "cost",
    "version",
    "batch_sizes",
    "batch_lengths",
    "padding_row",
    "batch_by",
    "example",
    "examples",
    "collate",
    "uncollate",
}


def _bare(name: str) -> str:
    """Return a name as those have it who forget an underscore or a plural."""
    return name.replace("_", "").removesuffix("s")


#: Methods of a model that a misspelt one is compared with.
_METHODS = ("collate", "example", "examples", "load", "predict", "uncollate", "unload")

#: Words as close as these differ in one or two letters, such as exampel; upload and unload do not.
_CLOSE = 0.85

_BARE_OF_TASKS = {_bare(name): name for name in _OF_TASKS}
_BARE_OF_MODELS = {_bare(name): name for name in _OF_MODELS}

#: Options that Celery's own decorator understands without declaring them on Task.
_UNDECLARED = {
    "autoretry_for",
    "dont_autoretry_for",
    "override_max_retries",
    "retry_backoff",
    "retry_backoff_max",
    "retry_jitter",
    "retry_kwargs",
    "queue",
    "routing_key",
    "exchange",
    "delivery_mode",
    "compression",
    "immediate",
    "mandatory",
}

#: Attributes that make a task a batch task in a worker; an app's class must not override them.
_OURS = ("Strategy", "Request")

NO_PYDANTIC = (
    "pydantic=True checks one call at a time and cannot see lists;"
    " leave it out and validate inside the function"
)


def refuse_model(function: Any) -> None:
    """Refuse a model, or a method of one, in the place of a task's function."""
    owner = getattr(function, "__self__", None)
    model = type(owner) if isinstance(owner, Model) else function
    if isinstance(model, type) and issubclass(model, Model):
        name = model.__qualname__
        raise ConfigurationError(
            f"{name} is a Model, not a function: make its task by {name}.as_task(app, ...), which"
            f" takes the options of the decorator"
        )


def refuse_unknown_options(cls: Any, known: set[str]) -> None:
    """Refuse misspelt options of the task decorator, and name the nearest known one."""
    known = known | _UNDECLARED
    # Only the decorator's options: a class written by hand may have any attributes.
    if not cls.__dict__.get("_decorated"):
        return
    base = cls.__mro__[1]
    for name in vars(cls):
        if name not in known and not name.startswith("_") and not hasattr(base, name):
            raise ConfigurationError(
                f"{cls.name}.{name}: no such task option{did_you_mean(name, known)}"
                f" (declare attributes of your own on a base class)"
            )


def options_of_batches(cls: Any) -> list[str]:
    """Return the options of batch tasks among those of a decorator that made an ordinary task."""
    own = vars(cls) if cls.__dict__.get("_decorated") else {}
    ours = _OF_TASKS | {"batch_by", "batch_sizes", "batch_lengths"}
    return sorted(name for name in ours.intersection(own) if not hasattr(cls.__mro__[1], name))


def refuse_misspelt_annotations(cls: Any, known: set[str]) -> None:
    """Refuse annotations called almost as an option of ours; warn of those for all tasks."""
    own = [each.annotate(cls) for each in cls.app.annotations]
    for name, option in _misspelt(cls, known, own):
        raise ConfigurationError(f"task_annotations: {cls.name}.{name}: {option}")
    of_all = [each.annotate_any() for each in cls.app.annotations]
    for name, option in _misspelt(cls, known, of_all):
        logger.warning("task_annotations: %s.%s: %s", cls.name, name, option)


def _misspelt(
    cls: Any, known: set[str], annotations: list[dict[str, Any] | None]
) -> Iterator[tuple[str, str]]:
    """Yield names that are almost those of our options, and what is wrong with them."""
    options = _OF_TASKS | _OF_MODELS
    inherited = {name for base in cls.__mro__[1:] for name in vars(base)}
    for annotation in filter(None, annotations):
        for name in annotation.keys() - known - _UNDECLARED - inherited:
            near = get_close_matches(_bare(name), [*map(_bare, options)], n=1, cutoff=_CLOSE)
            if near and not name.startswith("@"):
                yield name, f"no such task option{did_you_mean(name, options)}"


def check_retried_errors(cls: Any) -> None:
    """Refuse what is no list of exception classes: Celery takes the letters of a text."""
    for option in ("autoretry_for", "dont_autoretry_for"):
        kinds = getattr(cls, option, ())
        if not isinstance(kinds, (tuple, list, set, frozenset)) or not all(
            isinstance(kind, type) and issubclass(kind, BaseException) for kind in kinds
        ):
            raise ConfigurationError(
                f"{cls.name or cls.__qualname__}.{option}: must be a tuple of exception classes,"
                f" such as (ValueError,), got {kinds!r}"
            )


def check_celery_options(task: Any) -> None:
    """Refuse values of Celery's options with which a worker ends, or refuses every call."""
    for option in ("time_limit", "soft_time_limit"):
        seconds = getattr(task, option)
        is_limit = _is_number(seconds) and 0 <= seconds < math.inf
        name = f"{task.name}.{option}"
        require(seconds is None or is_limit, name, "seconds as a number from 0 up", seconds)
    is_switch = task.acks_late in (True, False, None)
    require(is_switch, f"{task.name}.acks_late", "True or False", task.acks_late)
    throws = task.throws if isinstance(task.throws, tuple) else (task.throws,)
    are_errors = all(isinstance(each, type) and issubclass(each, BaseException) for each in throws)
    require(are_errors, f"{task.name}.throws", "a tuple of exception classes", task.throws)
    queue = getattr(task, "queue", None)
    is_queue = isinstance(queue, (str, Queue, NoneType))
    require(is_queue, f"{task.name}.queue", "a name or a Queue", queue)
    priority: Any = getattr(task, "priority", None)
    is_whole = isinstance(priority, Integral) and not isinstance(priority, bool)
    is_priority = is_whole and 0 <= int(priority) <= HIGHEST_PRIORITY
    expected = f"a whole number from 0 to {HIGHEST_PRIORITY}"
    require(priority is None or is_priority, f"{task.name}.priority", expected, priority)
    expected = 'a number of items, by the second, minute or hour, such as "100/m"'
    require(_is_rate(task.rate_limit), f"{task.name}.rate_limit", expected, task.rate_limit)
    readable_options(task, {"compression": getattr(task, "compression", None)})
    readable_options(task, {"expires": task.expires})


def _is_rate(value: Any) -> bool:
    try:
        return isinstance(value, (str, Real, NoneType)) and rate(value) is not None
    except (KeyError, ValueError):
        return False


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def check_model_options(model: type[Model]) -> None:
    """Refuse, in a model's class, options of its task, and misspelt options and methods."""
    own = [vars(cls) for cls in model.__mro__ if cls not in Model.__mro__]
    names = {name: value for attributes in reversed(own) for name, value in attributes.items()}
    for name, value in names.items():
        option = f"{model.__qualname__}.{name}"
        if name in _METHODS and not callable(getattr(model, name)):
            raise ConfigurationError(f"{option}: must be a method, got {value!r}")
        if name in (*_OF_MODELS, *_METHODS) or name.startswith("_"):
            continue
        is_value = not (callable(value) or hasattr(value, "__get__"))
        if name in _OF_TASKS and is_value:
            raise ConfigurationError(f"{option}: is an option of the task: give it to as_task(...)")
        near = _BARE_OF_MODELS.get(_bare(name))
        if near is not None and near not in names:
            also = " or, as an option of the task, max_batch_size" if name == "batch_size" else ""
            raise ConfigurationError(
                f"{option}: is no option of a model; did you mean {near}{also}?"
            )
        near = _BARE_OF_TASKS.get(_bare(name))
        if near is not None and is_value:
            raise ConfigurationError(
                f"{option}: is no option; did you mean {near}, which is an option of the task: give"
                f" it to as_task(...)?"
            )
        near = None if is_value else _misspelt_method(name)
        if near is not None and near not in names:
            raise ConfigurationError(
                f"{option}: is no method of a model; did you mean {near}?  Give a method of your"
                f" own another name, such as _{name}"
            )


def _misspelt_method(name: str) -> str | None:
    """Return the method of a model that a name is almost; a longer one, as unloaded, is meant."""
    swapped = [method for method in _METHODS if sorted(method) == sorted(name)]
    near = swapped or get_close_matches(name, _METHODS, n=1, cutoff=_CLOSE)
    return near[0] if near and not name.startswith(near[0]) else None


def listable_signature(cls: Any) -> inspect.Signature:
    """Return the signature of a batch function; refuse one that cannot be called with lists."""
    if cls.name and cls.name.startswith("celery."):
        raise ConfigurationError(
            f"{cls.name}: Celery's own tasks cannot be batch tasks, so BatchTask cannot be the"
            f" task_cls of an app; name it as base= of the tasks that take batches"
        )
    if is_pydantic(cls):
        raise ConfigurationError(f"{cls.name}: {NO_PYDANTIC}")
    if inspect.iscoroutinefunction(cls.run):
        raise ConfigurationError(
            f"{cls.name}: an async function cannot run in Celery's pool; write it with def"
        )
    parameters = list(inspect.signature(cls.run).parameters.values())
    has_self = not isinstance(inspect.getattr_static(cls, "run"), staticmethod)
    if has_self:
        parameters = parameters[1:]
    if not parameters:
        besides = " besides self" if has_self or cls.model else ""
        besides += " (bind=True)" if has_self and cls.__dict__.get("_decorated") else ""
        raise ConfigurationError(
            f"{cls.name}: must take at least one parameter{besides}, the batch"
        )
    for parameter in parameters:
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            stars = "*" if parameter.kind is parameter.VAR_POSITIONAL else "**"
            raise ConfigurationError(
                f"{cls.name}: {stars}{parameter.name} cannot become a list per parameter;"
                f" name the parameters"
            )
    return inspect.Signature(parameters)


def keep_app_class(cls: Any, app: Any) -> None:
    """Insert the app's own task class before the base class of a new task."""
    own, base = _app_class(app), cls.__bases__[0]
    if issubclass(base, own):
        return
    try:
        combined = type(f"{own.__name__}{base.__name__}", (own, base), _namespace(cls, base))
        cls.__bases__ = (combined,)
    except TypeError as error:
        raise ConfigurationError(
            f"{cls.name}: the app's task class {_path(own)} and {_path(base)} cannot be combined:"
            f" {error}; give base= a class that derives from both"
        ) from error
    for name in _OURS:
        if getattr(combined, name) != getattr(base, name):
            raise ConfigurationError(
                f"{cls.name}: the app's task class {_path(own)} has a {name} of its own, which"
                f" batch tasks cannot use; give base= a class that derives from it and from"
                f" {base.__name__}, with {name} = BatchTask.{name}"
            )


def _app_class(app: Any) -> Any:
    """Return the task class of an app's ordinary tasks."""
    own, declared = app.Task, symbol_by_name(app.task_cls)
    # Celery derives a class with the app from the declared one. Any other class in `app.Task`
    # was assigned by the user.
    is_derived = own.__bases__ == (declared,) and own.__module__ == declared.__module__
    return declared if is_derived and own.__name__ == "Task" else own


def _namespace(cls: Any, base: Any) -> dict[str, Any]:
    # `run` of the base: the app's class may define one, which is not the batch function.
    return {
        "abstract": True,
        "run": base.run,
        "__module__": cls.__module__,
        "__doc__": base.__doc__,
    }


def _path(cls: Any) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"
