"""The contract that this process serves, whichever door leads to it."""

from __future__ import annotations

import os
from functools import cache
from importlib import import_module

from celery_batch.errors import ConfigurationError
from webapp import logs
from webapp.contract import Contract
from webapp.garbage import look_seldom
from webapp.settings import Settings

__all__ = ["infilling", "service_contract"]

#: Names another contract than that of the example workers: ``module:function``.
_NAME = "WEBAPP_CONTRACT"


@cache
def service_contract() -> Contract:
    """
    Return this process's contract.

    Raises:
        ConfigurationError: The environment names something else.
    """
    module, _, name = os.environ.get(_NAME, f"{__name__}:{infilling.__name__}").partition(":")
    try:
        make = getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigurationError(f"{_NAME}: must be module:function, {error}") from error
    contract = make()
    if not isinstance(contract, Contract):
        raise ConfigurationError(f"{_NAME}: {module}:{name} returned no Contract: {contract!r}")
    logs.configure(contract.settings.log)
    look_seldom()
    return contract


def infilling() -> Contract:
    """Return a contract of the example workers' tasks, with settings from the environment."""
    from workers.colours import colours  # noqa: PLC0415 (only where they are served)
    from workers.infill import infill, infill_one  # noqa: PLC0415 (likewise)

    settings = Settings.from_environ(os.environ)
    return Contract(infill, infill_one, settings, pictured=colours)
