"""``cuda_devices``, in service-streamer's words and in ours."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable

from celery_batch.errors import ConfigurationError
from celery_batch.serving.devices import VISIBLE, visible_entries, visible_entry, why_doubtful

__all__ = ["device_names", "visible_gpu"]

logger = logging.getLogger(__name__)


def device_names(cuda_devices: Iterable[int | str] | int | str | None) -> list[str] | None:
    """
    Name the devices as `celery_batch.serving.devices.pin` knows them.

    Args:
        cuda_devices: GPUs by number or UUID, or names such as ``"cuda:1"`` and ``"cpu"``;
            one alone, or a string of several with commas between; None for no choice.
            Where ``CUDA_VISIBLE_DEVICES`` is set and all numbers stand in it, they are the
            GPUs that it calls so; else they count what it shows, from 0.

    Raises:
        ConfigurationError: There are none.
    """
    if cuda_devices is None:
        return None
    if isinstance(cuda_devices, str):
        cuda_devices = cuda_devices.split(",")
    elif isinstance(cuda_devices, int):
        cuda_devices = [cuda_devices]
    names = _names([str(each).strip() for each in cuda_devices])
    if not names:
        raise ConfigurationError("cuda_devices: is empty; name at least one, or leave it out")
    if doubt := why_doubtful(names):
        logger.warning("cuda_devices: %s; leave it out, or say 'cpu', to do without", doubt)
    return names


def visible_gpu(name: str) -> str:
    """
    Return what ``CUDA_VISIBLE_DEVICES`` has to say to show one GPU alone.

    Args:
        name: As `device_names` returned it.

    Raises:
        ConfigurationError: There is no such GPU.
    """
    try:
        return visible_entry(name)
    except ConfigurationError as error:
        raise ConfigurationError(str(error).replace("batch_devices", "cuda_devices")) from None


def _names(given: list[str]) -> list[str]:
    visible = visible_entries(os.environ.get(VISIBLE, ""))
    if all(each in visible for each in given if each.isdigit()):
        given = [str(visible.index(each)) if each.isdigit() else each for each in given]
    return [f"cuda:{each}" if _is_gpu(each) else each for each in given]


def _is_gpu(name: str) -> bool:
    return name.isdigit() or name.startswith(("GPU-", "MIG-"))
