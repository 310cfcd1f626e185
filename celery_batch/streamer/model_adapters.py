"""Adapts functions, classes and instances to models.

Streamers take what service-streamer took, a function or a `ManagedModel` class, and
our own `Model` besides; `as_model` makes an `Adapter` of each.  It holds only
references until it is loaded, so it can be pickled for a spawned process, which is pinned
to its device before it unpickles, and so before it imports the model's libraries.
"""

from __future__ import annotations

import inspect
import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from celery_batch.batching.cost import CostLimits
from celery_batch.errors import ConfigurationError
from celery_batch.runtime.devices import (
    VISIBLE,
    is_device,
    usable_cores,
    visible_entries,
    visible_entry,
    why_doubtful,
)
from celery_batch.runtime.item_cost import ItemCost
from celery_batch.runtime.model import Model
from celery_batch.runtime.runner import BatchRun, CallCost
from celery_batch.runtime.signature import collates, own_attribute, signature_of, uncollates
from celery_batch.runtime.stages import Stages, check_stages, has_stages

__all__ = [
    "Adapter",
    "CallTime",
    "ManagedModel",
    "as_model",
    "cost_of",
    "device_names",
    "process_environment",
    "time_of",
]

logger = logging.getLogger(__name__)


class ManagedModel:
    """
    A model with service-streamer's life cycle, created in its worker process, on its GPU.

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
            os.environ[VISIBLE] = str(gpu_id)

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

        Returns:
            One output per input, in order.
        """
        msg = f"{type(self).__name__} must define predict(batch)"
        raise NotImplementedError(msg)


def as_model(
    given: Any, args: Sequence[Any] | None = None, kwargs: Mapping[str, Any] | None = None
) -> Adapter:
    """Make a model that is not loaded yet out of a function, or a model's class or instance."""
    kind = _class_of(given)
    if issubclass(kind, Model):
        _require_one_parameter(kind)
        check_stages(kind)
        if has_stages(kind):
            return StagedAdapter(given, tuple(args or ()), dict(kwargs or {}))
    if issubclass(kind, (ManagedModel, Model)) or (callable(given) and kind is not given):
        return Adapter(given, tuple(args or ()), dict(kwargs or {}))
    raise ConfigurationError(
        f"a streamer needs a predict function, a ManagedModel class or a Model class, got {given!r}"
    )


def _class_of(given: Any) -> type:
    return given if isinstance(given, type) else type(given)


def _require_one_parameter(model: type[Model]) -> None:
    """Refuse a model that needs more than an item: a streamer's request is a list of items."""
    parameters = signature_of(model).parameters.values()
    if sum(each.default is each.empty for each in parameters) > 1:
        names = ", ".join(each.name for each in parameters)
        method = "collate" if collates(model) else "predict"
        raise ConfigurationError(
            f"a streamer gives a model one list of items, and {model.__qualname__}.{method} takes"
            f" ({names}); put the values of a request into one item"
        )


def cost_of(given: Any) -> Callable[[Any], Any] | None:
    """Return what an item costs by the `Model` class that was given; None if it does not say."""
    if not (isinstance(given, type) and issubclass(given, Model)):
        return None
    cost: Callable[[Any], Any] | str | None = own_attribute(given, "cost")
    return len if isinstance(cost, str) else cost  # of its only parameter


class Adapter(Model):
    """A model of what the user gave."""

    def __init__(self, given: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._given = given
        self._args = args
        self._kwargs = kwargs
        self._model: Model | None = None
        #: What its items cost, where that is limited.
        self.call_cost: CallCost | None = None

    def __str__(self) -> str:
        kind = _class_of(self._given)
        if issubclass(kind, (ManagedModel, Model)):
            return f"{kind.__qualname__}.predict"
        return getattr(self._given, "__qualname__", None) or repr(self._given)

    @property
    def key_option(self) -> Any:
        """By which items share a batch, as a `Model` class says; None if it does not."""
        kind = _class_of(self._given)
        return own_attribute(kind, "batch_by") if issubclass(kind, Model) else None

    def limit_cost(
        self, cost: Callable[[Any], Any] | None, limits: CostLimits | None
    ) -> ItemCost | None:
        """Limit the cost of its calls; return what computes that of items, None without limits."""
        if limits is None:
            if cost is not None:
                raise ConfigurationError("cost: has no effect without max_batch_cost")
            return None
        cost = cost_of(self._given) if cost is None else cost
        if not callable(cost):
            raise ConfigurationError(
                f"max_batch_cost: needs cost, a function of an item, such as len; got {cost!r}"
            )
        item = inspect.Parameter("item", inspect.Parameter.POSITIONAL_ONLY)
        item_cost = ItemCost(str(self), inspect.Signature([item]), cost)
        self.call_cost = CallCost(item_cost.of_rows, limits)
        return item_cost

    def load(self, device: str) -> None:
        """Make the instance, where a class was given, and load it on its device."""
        made = self._given
        if isinstance(made, type) and issubclass(made, ManagedModel):
            made = made(os.environ.get(VISIBLE) if device.startswith("cuda:") else None)
        elif isinstance(made, type):
            made = made(*self._args, **self._kwargs)
        function = made
        if isinstance(made, ManagedModel):
            made.init_model(*self._args, **self._kwargs)
            function = made.predict
        elif isinstance(made, Model):
            made.load(device)
            self._model, function = made, made.predict
        self.predict = function  # type: ignore[method-assign]

    def predict(self, batch: list[Any]) -> Sequence[Any]:
        """Answer a batch; `load` puts the model's own function in place of this one."""
        raise NotImplementedError

    @property
    def calls(self) -> Callable[..., Any]:
        """What answers a batch, for a runner."""
        return self.predict

    def examples(self) -> Sequence[Any]:
        """Return what the model warms up with."""
        return self._model.examples() if self._model else ()

    def unload(self) -> None:
        """Unload the model."""
        if self._model:
            self._model.unload()
            self._model = None


class StagedAdapter(Adapter):
    """A `Model` that has `collate` or `uncollate`."""

    @property
    def calls(self) -> Stages:
        """The stages of the model, for a runner."""
        return Stages(self.predict, self.collate, self.uncollate)

    def collate(self, batch: list[Any]) -> Any:
        """Collate a batch, if the model does."""
        model: Any = self._model
        return model.collate(batch) if collates(type(model)) else batch

    def uncollate(self, output: Any) -> Any:
        """Uncollate an output, if the model does."""
        model: Any = self._model
        return model.uncollate(output) if uncollates(type(model)) else output


#: The cost of a call with its padding, and its seconds.
CallTime = tuple[float, float]


def time_of(run: BatchRun) -> CallTime | None:
    """Return the average of a batch's calls; None if they cost nothing, or repeated failed ones."""
    counts = run.counts
    if not counts.padded_cost or counts.isolated or counts.out_of_memory:
        return None
    seconds = sum(each.seconds for each in run.timings)
    return counts.padded_cost / counts.calls, seconds / counts.calls


def device_names(cuda_devices: Iterable[int | str] | int | str | None) -> list[str] | None:
    """Name the devices that an option of a streamer names, as `runtime.devices.pin` knows them."""
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


def process_environment(device: str | None, workers: int) -> dict[str, str]:
    """Return the variables of a worker process: its share of the cores, and its GPU."""
    env = {}
    if "OMP_NUM_THREADS" not in os.environ:
        # As many math threads as cores in every process would only fight.
        env["OMP_NUM_THREADS"] = str(max(usable_cores() // workers, 1))
    if device is not None and device.startswith("cuda:"):
        try:
            env[VISIBLE] = visible_entry(device)
        except ConfigurationError as error:
            raise ConfigurationError(str(error).replace("batch_devices", "cuda_devices")) from None
    return env


def _names(given: list[str]) -> list[str]:
    visible = visible_entries(os.environ.get(VISIBLE, ""))
    if all(each in visible for each in given if each.isdigit()):
        given = [str(visible.index(each)) if each.isdigit() else each for each in given]
    return [name if is_device(name := f"cuda:{each}") else each for each in given]
