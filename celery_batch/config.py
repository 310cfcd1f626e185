"""
App-wide settings, read from ``app.conf`` when they are needed.

They are ordinary lower-case Celery settings (``app.conf.batch_max_size``, or
``CELERY_BATCH_MAX_SIZE`` in Django with the usual namespace); a task's own
options win over them.
"""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from celery_batch.batching.policy import BatchPolicy
from celery_batch.errors import ConfigurationError

__all__ = ["OPTIONS", "SETTINGS", "Settings", "policy_of"]

#: Task option -> the setting it falls back to.
OPTIONS = {
    "max_batch_size": "batch_max_size",
    "max_wait": "batch_max_wait",
    "linger": "batch_linger",
}

#: Items of a batch are settled inside one another, each with its place on the stack.
LARGEST_BATCH = 2000

#: Every setting of ours with its default.
SETTINGS: dict[str, Any] = {
    "batch_max_size": 32,
    "batch_max_wait": 0.01,
    "batch_linger": None,
    "batch_devices": None,
    "batch_load_timeout": 600.0,
}


@dataclass(frozen=True, slots=True)
class Settings:
    """
    What a worker needs to know beside the tasks' policies.

    Args:
        devices: Where models may live, such as ``("cuda:0", "cuda:1")`` or
            ``("cpu",)``; None to use every GPU that can be seen.
        load_timeout: Seconds a model may take to load and warm up.
    """

    devices: tuple[str, ...] | None = None
    load_timeout: float = 600.0

    @classmethod
    def of(cls, app: Any) -> Settings:
        """
        Read and check the settings of an app.

        Raises:
            ConfigurationError: A ``batch_*`` setting is misspelt or wrong.
        """
        for key in app.conf:
            # With a namespace the keys are the user's: CELERY_BATCH_MAX_SIZE.
            name = key.lower().removeprefix((app.conf.prefix or "").lower())
            if name.startswith("batch_") and name not in SETTINGS:
                raise ConfigurationError(f"{key}: no such setting{did_you_mean(name, SETTINGS)}")
        devices = _setting(app, "batch_devices")
        timeout = _setting(app, "batch_load_timeout")
        if not isinstance(timeout, (int, float)) or timeout <= 0:
            raise ConfigurationError(
                f"batch_load_timeout: must be seconds above 0, got {timeout!r}"
            )
        if isinstance(devices, str):
            devices = [name.strip() for name in devices.split(",") if name.strip()]
        return cls(tuple(devices) if devices else None, float(timeout))


def policy_of(task: Any) -> BatchPolicy:
    """
    Merge a task's options with the app's settings.

    Raises:
        ConfigurationError: A value is wrong; the message names the task and,
            where the value came from there, the setting.
    """
    values = {}
    for option, setting in OPTIONS.items():
        own = getattr(task, option)
        values[option] = _setting(task.app, setting) if own is None else own
    try:
        policy = BatchPolicy(**values)
    except ConfigurationError as error:
        raise ConfigurationError(f"{task.name}.{error}") from None
    if policy.max_batch_size > LARGEST_BATCH:
        raise ConfigurationError(
            f"{task.name}.max_batch_size: at most {LARGEST_BATCH}, got {policy.max_batch_size};"
            f" send lists as items if the model can take more at once"
        )
    return policy


def did_you_mean(name: str, known: Any) -> str:
    """Return a hint at the nearest known name, or nothing."""
    near = get_close_matches(name, sorted(known), n=1)
    return f"; did you mean {near[0]}?" if near else ""


def _setting(app: Any, name: str) -> Any:
    return app.conf.get(name, SETTINGS[name])
