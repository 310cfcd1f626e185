"""Adapts functions, classes and instances to models.

Streamers take what service-streamer took, a function or a `ManagedModel` class, and
our own `Model` besides; `as_model` makes one thing of all three.  What it returns
holds nothing but references until it is loaded, so it can be pickled for a spawned
process, which is pinned to its device before it unpickles, and so before it imports
the model's libraries.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from celery_batch.errors import ConfigurationError, LoadFailed
from celery_batch.runtime import registry
from celery_batch.runtime.devices import VISIBLE, visible_entries, visible_entry, why_doubtful
from celery_batch.runtime.model import Model
from celery_batch.runtime.signature import signature_of

__all__ = [
    "ManagedModel",
    "as_model",
    "device_names",
    "visible_gpu",
    "warm",
]


_VISIBLE = "CUDA_VISIBLE_DEVICES"


class ManagedModel:
    """
    A model with service-streamer's life cycle: made in its worker process, on its GPU.

    Args:
        gpu_id: The one GPU it may see; None for whatever there is.
    """

    def __init__(self, gpu_id: Any = None) -> None:
        self.model: Any = None
        self.gpu_id = gpu_id
        self.set_gpu_id(gpu_id)

    @staticmethod
    def set_gpu_id(gpu_id: Any = None) -> None:
        """
        Show one GPU alone to libraries that are imported from here on.

        Args:
            gpu_id: Its number or UUID; None changes nothing.
        """
        if gpu_id is not None:
            os.environ[_VISIBLE] = str(gpu_id)

    def init_model(self, *args: Any, **kwargs: Any) -> None:
        """
        Load the model; override this.

        Args:
            args: The streamer's ``model_init_args``.
            kwargs: Its ``model_init_kwargs``.
        """
        msg = f"{type(self).__name__} must define init_model()"
        raise NotImplementedError(msg)

    def predict(self, batch: list[Any]) -> Sequence[Any]:
        """
        Answer a batch with one output per input, in order; override this.

        Args:
            batch: The inputs, oldest first.
        """
        msg = f"{type(self).__name__} must define predict(batch)"
        raise NotImplementedError(msg)


def as_model(
    given: Any, args: Sequence[Any] | None = None, kwargs: Mapping[str, Any] | None = None
) -> Model:
    """
    Make a model that is not loaded yet out of what the user gave.

    Args:
        given: A predict function, a `ManagedModel` class or a `Model` class; an instance
            of either is taken, too.
        args: For ``init_model``, or for the `Model` class; a function has no use for them.
        kwargs: Likewise.

    Returns:
        Its ``load(device)`` comes first, then ``predict(batch)`` as often as need be, then
        ``unload()``; ``str()`` of it is the name of what was given.  It can be pickled where
        what was given can.

    Raises:
        ConfigurationError: It is none of these.
    """
    kind = given if isinstance(given, type) else type(given)
    if issubclass(kind, Model):
        _require_one_parameter(kind)
    if isinstance(given, type) and issubclass(given, (ManagedModel, Model)):
        return _Constructed(given, tuple(args or ()), dict(kwargs or {}))
    if isinstance(given, (ManagedModel, Model)):
        return _Instance(given, tuple(args or ()), dict(kwargs or {}))
    if callable(given) and not isinstance(given, type):
        return _Function(given)
    raise ConfigurationError(
        f"a streamer needs a predict function, a ManagedModel class or a Model class, got {given!r}"
    )


def _require_one_parameter(model: type[Model]) -> None:
    """Refuse a model that needs more than an item: a streamer's request is a list of items."""
    parameters = signature_of(model).parameters.values()
    if sum(each.default is each.empty for each in parameters) > 1:
        names = ", ".join(each.name for each in parameters)
        raise ConfigurationError(
            f"a streamer gives a model one list of items, and {model.__qualname__}.predict takes"
            f" ({names}); put the values of a request into one item"
        )


def warm(model: Model, device: str) -> None:
    """
    Load a model and warm it up, in a thread or process that nobody sees end.

    Args:
        model: As `as_model` returned it.
        device: Where to live.

    Raises:
        LoadFailed: It could not be loaded; or left, as programs do that miss something.
    """
    name = str(model)
    try:
        registry.warm(lambda: model, name, device)
    except LoadFailed:
        raise
    except BaseException as error:
        raise LoadFailed(f"{name} on {device}: {type(error).__name__}: {error}") from error


class _Function(Model):
    """A predict function, which has nothing to load."""

    def __init__(self, given: Callable[[list[Any]], Sequence[Any]]) -> None:
        self.predict = given  # type: ignore[method-assign]

    def __str__(self) -> str:
        return getattr(self.predict, "__qualname__", None) or repr(self.predict)


class _Constructed(Model):
    """A model by its class and what it is to be made with."""

    def __init__(
        self, kind: type[ManagedModel | Model], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        self._kind = kind
        self._args = args
        self._kwargs = kwargs
        self._made: Model | None = None

    def __str__(self) -> str:
        return f"{self._kind.__qualname__}.predict"

    def load(self, device: str) -> None:
        """Make the instance and load it on its device."""
        if issubclass(self._kind, ManagedModel):
            instance = self._kind(_gpu_of(device))
            self._made = _Instance(instance, self._args, self._kwargs)
        else:
            self._made = self._kind(*self._args, **self._kwargs)
        self._made.load(device)
        self.predict = self._made.predict  # type: ignore[method-assign]

    def examples(self) -> Sequence[Any]:
        """Return what the instance warms up with."""
        return self._made.examples() if self._made else ()

    def unload(self) -> None:
        """Let the instance go."""
        if self._made is not None:
            self._made.unload()
            self._made = None


class _Instance(Model):
    """A model that its user has made already."""

    def __init__(
        self, instance: ManagedModel | Model, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        self._instance = instance
        self._args = args
        self._kwargs = kwargs

    def __str__(self) -> str:
        return f"{type(self._instance).__qualname__}.predict"

    def load(self, device: str) -> None:
        """Load it on its device."""
        if isinstance(self._instance, ManagedModel):
            self._instance.init_model(*self._args, **self._kwargs)
        else:
            self._instance.load(device)
        self.predict = self._instance.predict  # type: ignore[method-assign]

    def examples(self) -> Sequence[Any]:
        """Return what it warms up with."""
        return self._instance.examples() if isinstance(self._instance, Model) else ()

    def unload(self) -> None:
        """Let go of what it took."""
        if isinstance(self._instance, Model):
            self._instance.unload()


def _gpu_of(device: str) -> str | None:
    """Return the GPU that this process is pinned to, as the environment calls it."""
    return os.environ.get(_VISIBLE) if device.startswith("cuda:") else None


logger = logging.getLogger(__name__)


def device_names(cuda_devices: Iterable[int | str] | int | str | None) -> list[str] | None:
    """
    Name the devices as `celery_batch.runtime.devices.pin` knows them.

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
