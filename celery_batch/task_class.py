"""
Combines the app's own task class with `BatchTask`.

Celery uses ``base=`` instead of the app's task class.  Frameworks put what their tasks
need into that class: Flask's pushes the app's context, Django's sends on commit.
"""

from __future__ import annotations

from typing import Any

from celery.utils.imports import symbol_by_name

from celery_batch.errors import ConfigurationError

__all__ = ["keep_app_class"]

#: Attributes that make a task a batch task in a worker; an app's class must not override them.
_OURS = ("Strategy", "Request")


def keep_app_class(cls: Any, app: Any) -> None:
    """
    Insert the app's own task class before the base class of a new task.

    Args:
        cls: The task's class, as Celery's decorator makes it.
        app: The Celery app.

    Raises:
        ConfigurationError: The two classes cannot be combined.
    """
    own, base = app_class(app), cls.__bases__[0]
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


def app_class(app: Any) -> Any:
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
