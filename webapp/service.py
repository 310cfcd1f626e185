"""The contract that this process serves, whichever door leads to it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

from celery_batch.config import did_you_mean
from celery_batch.errors import ConfigurationError
from webapp import logs
from webapp.contract import Contract
from webapp.garbage import look_seldom
from webapp.settings import Settings

__all__ = ["infilling", "served_contract", "service_contract"]

#: Names another contract than that of the example workers: ``module:function``.
_NAME = "WEBAPP_CONTRACT"

#: How a process of gunicorn's says that its app cannot be had: with another status it would
#: be started again, and again.
_NO_APP = 4


def served_contract() -> Contract:
    """
    Return this process's contract to a door that a server is importing.

    Raises:
        SystemExit: A setting is wrong; which one has been said, and that is all there is to
            say: the trace of a server's calls would only hide it.
    """
    try:
        return service_contract()
    except ConfigurationError as error:
        sys.stderr.write(f"Error: {error}\n")
        raise SystemExit(_NO_APP) from error


@cache
def service_contract() -> Contract:
    """
    Return this process's contract.

    Raises:
        ConfigurationError: The environment names something else, or a setting is wrong.
    """
    name = os.environ.get(_NAME, f"{__name__}:{infilling.__name__}")
    contract = _maker(name)()
    if not isinstance(contract, Contract):
        raise ConfigurationError(f"{_NAME}: {name} returned no Contract: {contract!r}")
    logs.configure(contract.settings.log)
    look_seldom()
    return contract


def infilling() -> Contract:
    """Return a contract of the example workers' tasks, with settings from the environment."""
    from workers.colours import colours  # noqa: PLC0415 (only where they are served)
    from workers.infill import infill, infill_one  # noqa: PLC0415 (likewise)

    settings = Settings.from_environ(os.environ)
    return Contract(infill, infill_one, settings, pictured=colours)


def _maker(text: str) -> Callable[[], Any]:
    """Return the function of that name; what fails inside its module is not ours to explain."""
    module_name, _, name = text.partition(":")
    if not (name.isidentifier() and all(each.isidentifier() for each in module_name.split("."))):
        raise ConfigurationError(
            f"{_NAME}: must be module:function, such as my_service:contract, got {text!r}"
        )
    module = _module(module_name, text)
    make = getattr(module, name, None)
    if not callable(make):
        functions = [key for key, value in vars(module).items() if callable(value)]
        what = f"no function {name}" if make is None else f"a {name} that is no function"
        where = getattr(module, "__file__", "built in")
        hint = did_you_mean(name, functions)
        raise ConfigurationError(f"{_NAME}: {text}: {module_name} ({where}) has {what}{hint}")
    return make  # type: ignore[no-any-return]


def _module(module_name: str, text: str) -> Any:
    try:
        return import_module(module_name)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if not f"{module_name}.".startswith(f"{missing}."):
            raise  # it is there; something that it imports is not
        raise ConfigurationError(
            f"{_NAME}: {text}: there is no module {missing}{_modules_like(missing)}; a file"
            " elsewhere is found with its folder in PYTHONPATH"
        ) from error


def _modules_like(name: str) -> str:
    """Return a hint at the module that may have been meant."""
    parent, _, leaf = name.rpartition(".")
    path = getattr(import_module(parent), "__path__", ()) if parent else None
    near = did_you_mean(leaf, [found.name for found in iter_modules(path)])
    return near.replace("mean ", f"mean {parent}.") if parent else near
