"""``cuda_devices``, in service-streamer's words and in ours."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable

from celery_batch.errors import ConfigurationError
from celery_batch.serving.devices import why_doubtful

__all__ = ["device_names"]

logger = logging.getLogger(__name__)


def device_names(cuda_devices: Iterable[int | str] | int | str | None) -> list[str] | None:
    """
    Name the devices as `celery_batch.serving.devices.pin` knows them.

    Args:
        cuda_devices: GPUs by number or UUID, or names such as ``"cuda:1"`` and ``"cpu"``;
            one alone, or a string of several with commas between; None for no choice.
            Where ``CUDA_VISIBLE_DEVICES`` is set, a number that stands in it is that GPU;
            any other counts what it shows, from 0.

    Raises:
        ConfigurationError: There are none.
    """
    if cuda_devices is None:
        return None
    if isinstance(cuda_devices, str):
        cuda_devices = cuda_devices.split(",")
    elif isinstance(cuda_devices, int):
        cuda_devices = [cuda_devices]
    names = [_name(str(each).strip()) for each in cuda_devices]
    if not names:
        raise ConfigurationError("cuda_devices: is empty; name at least one, or leave it out")
    if doubt := why_doubtful(names):
        logger.warning("cuda_devices: %s; leave it out, or say 'cpu', to do without", doubt)
    return names


def _name(given: str) -> str:
    visible = [each.strip() for each in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")]
    if given.isdigit() and given in visible:
        return f"cuda:{visible.index(given)}"
    return f"cuda:{given}" if given.isdigit() or given.startswith(("GPU-", "MIG-")) else given
