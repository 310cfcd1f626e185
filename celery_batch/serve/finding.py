"""From the name in a configuration file to the class of a handle."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from celery_batch.config import did_you_mean
from celery_batch.errors import ConfigurationError
from celery_batch.serve.handle import registry

__all__ = ["find_handle"]

#: The module of a class that is named without one, as in easy-serve.
_USUAL_MODULE = "handle"


def find_handle(name: str) -> type:
    """
    Import the class of a handle.

    Args:
        name: ``"module:Class"``; or ``"Class"``, which importing a module ``handle``
            registers or defines.

    Raises:
        ConfigurationError: There is no such module or class.
        Exception: Whatever importing the module raises.
    """
    module_name, _, class_name = name.rpartition(":")
    module = _module(module_name or _USUAL_MODULE, name)
    known = {key: value for key, value in vars(module).items() if isinstance(value, type)}
    if not module_name or class_name not in known:
        known |= registry.class_dict
    found = known.get(class_name)
    if found is None:
        raise ConfigurationError(
            f"Handle: {module.__name__} ({module.__file__}) has no class"
            f" {class_name}{did_you_mean(class_name, known)}"
        )
    return found


def _module(module_name: str, name: str) -> Any:
    try:
        return import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise  # the module exists, but not one that it imports
        hint = "" if ":" in name else f", or write Handle: module:{name}"
        raise ConfigurationError(
            f"Handle: no module {module_name} for {name}; put {module_name}.py into"
            f" the folder of the configuration or where the command runs{hint}"
        ) from error
