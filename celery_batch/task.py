"""
`BatchTask`, which client and worker share.

It names the worker's classes only as dotted strings, as Celery allows, so that a
web process that sends tasks does not import them.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from importlib import import_module
from numbers import Real
from types import NoneType
from typing import Any, ClassVar
from weakref import WeakKeyDictionary

from billiard.exceptions import SoftTimeLimitExceeded
from celery import Celery, Task, signals
from celery.exceptions import Retry, TaskPredicate

from celery_batch.batching.cost import CostLimits
from celery_batch.client_methods import ClientMethods
from celery_batch.compat.backend_hooks import register_stored_results
from celery_batch.compat.tasks import check_functions, evaluate_tasks_once
from celery_batch.config import (
    Settings,
    isolates_failures,
    max_queue_of,
    max_worker_losses,
    outputs_of,
    policy_of,
    require,
)
from celery_batch.defaults import Rows, Seconds
from celery_batch.errors import ConfigurationError
from celery_batch.items.functions import (
    ItemKey,
    check_queue_cost,
    check_sort_window,
    item_cost_of,
    item_key_of,
)
from celery_batch.items.pending_answer import RetryItem, RunAgain, pending_answer, retry_options
from celery_batch.items.rows import (
    CallRows,
    ChunkCalls,
    failed_row,
    needs_answer,
    row_count_header,
    run_calls,
)
from celery_batch.items.shapes import check_shapes, fixed_sizes_of
from celery_batch.protocol import PAYLOADS
from celery_batch.runtime.item_cost import ItemCost
from celery_batch.runtime.model import Model
from celery_batch.runtime.outputs import checked, owned
from celery_batch.runtime.registry import instance_of, keep_key_option, key_option
from celery_batch.runtime.runner import CallCost, ErrorPolicy, Runner
from celery_batch.runtime.signature import (
    call_error,
    call_with_columns,
    key_names,
    own_attribute,
    signature_of,
)
from celery_batch.runtime.stages import Stages, check_stages, stages_of
from celery_batch.serialization.arrays import split_rows
from celery_batch.serialization.lists import list_rows
from celery_batch.serialization.row_digest import check_version
from celery_batch.serialization.typed_json import register_types
from celery_batch.task_options import (
    NO_PYDANTIC,
    check_celery_options,
    check_model_options,
    check_retried_errors,
    keep_app_class,
    listable_signature,
    refuse_misspelt_annotations,
    refuse_model,
    refuse_unknown_options,
)

# As kombu does it with our serializers, unless celery_batch is imported without being installed.
register_types()
register_stored_results()
check_functions(refuse_model)
evaluate_tasks_once()

__all__ = ["BatchTask", "add_bootsteps", "model_task"]


class BatchTask(ChunkCalls, ClientMethods):
    """
    A task that is called with one item and runs with many.

    The function is written on lists: every parameter arrives as a list with one
    entry per request, and it returns one output per request, in order.  An
    `Exception` instance in place of an output fails that request alone.
    Callers see an ordinary Celery task on single items.
    """

    abstract = True

    Strategy = "celery_batch.worker.intake.strategy:batches"
    Request = "celery_batch.worker.intake.request:BatchRequest"

    #: Acknowledged once the result is stored, so the requests of a worker that dies run elsewhere.
    acks_late = True

    #: Most rows in one model call, from 1 to 1,024 (200 on Python 3.12 before 3.12.10, where nested
    #: calls are limited; that of callers counts, too). A request has one row, a chunk many.
    max_batch_size: ClassVar[Rows | None] = None

    #: Longest time that a request waits for others while a pool process is free, from its arrival
    #: in the worker. If the requests that arrived during a batch have fewer than half of its rows,
    #: it counts from the end of that batch.
    max_wait: ClassVar[Seconds | None] = None

    #: Time without a new request after which a free pool process stops waiting.
    linger: ClassVar[Seconds | None] = None

    #: Share of the places in batches, from 0 to 0.5, for requests that more urgent ones overtake.
    low_priority_share: ClassVar[float | None] = None

    #: The weight of the task among those that share a worker. While several have work, their
    #: seconds in the model are in proportion to it.
    device_share: ClassVar[float] = 1.0

    #: What an item costs, as a function of its arguments, or the name of the parameter whose length
    #: counts. It runs in the worker's main process, without a model; a `Model` may define it.
    cost: ClassVar[Callable[..., Any] | str | None] = None

    #: The highest cost of one model call; None counts rows alone.
    max_batch_cost: ClassVar[float | None] = None

    #: The highest cost of one item; one that costs more fails with `ItemTooLarge`.
    max_item_cost: ClassVar[float | None] = None

    #: Whether the model pads all rows to the longest. A batch then costs that times its rows.
    padded: ClassVar[bool] = False

    #: From how many batches' worth of waiting requests a padded batch of similar lengths is
    #: chosen; 0 is first come, first served.
    sort_window: ClassVar[int] = 8

    #: Whether equal items that wait at the same time are computed only once.
    dedupe: ClassVar[bool] = False

    #: Time for which answers are kept in Redis and used again; None keeps none.
    cache_ttl: ClassVar[Seconds | None] = None

    #: A text or a whole number that changes with the model; answers of another version are not
    #: used. A `Model` may have it.
    version: ClassVar[str | int | None] = None

    #: The numbers of rows that calls have, ascending; None is any. A call with fewer rows is filled
    #: up to the next. A `Model` may have it.
    batch_sizes: ClassVar[Sequence[Rows] | None] = None

    #: The lengths that rows are padded to, ascending; None is any. A `Model` may have it.
    batch_lengths: ClassVar[Sequence[int] | None] = None

    #: The row that fills calls up, as a value, or a tuple of one for each parameter, or a function
    #: that returns it. None repeats the last row. A `Model` may have it.
    padding_row: ClassVar[Any] = None

    #: Returns a row of a given length, to warm up with; a `Model` has it as a method.
    example: ClassVar[Callable[[int], Any] | None] = None

    #: Only items with equal keys share a batch. Names of parameters, of which the function then
    #: gets one value instead of a list; or a function of an item's arguments, which runs as `cost`.
    #: A `Model` may have it.
    batch_by: ClassVar[Callable[..., Any] | str | Sequence[str] | None] = None

    #: Whether outputs in arrays, one for the batch or one for each item, become "arrays", one for
    #: each item, or "lists" of numbers.
    outputs: ClassVar[str | None] = None

    #: Whether workers refuse calls with `QueueFull` that would miss the `target_latency`.
    shed: ClassVar[bool] = False

    #: Whether a batch that raises, or runs out of memory, is run again in halves until the failing
    #: items stand alone. With False every item fails with the error, and none is seen twice.
    isolate_failures: ClassVar[bool | None] = None

    #: How often a process may die that runs an item, or prepares it behind a running batch, before
    #: the item fails with `PoisonItem`; the last time the item was alone.
    max_worker_losses: ClassVar[int | None] = None

    #: Whether each item has a tracer of its own; not where the function gets requests.
    traces_items: ClassVar[bool] = True

    #: The model behind the task, if it has one with a life cycle.
    model: ClassVar[type[Model] | None] = None

    #: The stages of its model; None if it has none.
    _stages: ClassVar[Stages | None] = None

    #: The user's function, on lists; `run` is replaced by `_run_item`.
    _batch_run: Callable[..., Any]

    #: Its signature; each parameter is a list.
    _batch_signature: ClassVar[inspect.Signature]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Replace ``run``, which is written on lists, by one for single items."""
        # Here and not when an app binds the task: Celery has registered it by then, and may have
        # wrapped its `run` for ``autoretry_for``.
        super().__init_subclass__(**kwargs)
        if cls.__dict__.get("_decorated"):
            keep_app_class(cls, vars(cls)["app"])
        if cls.run in (Task.run, BatchTask._run_item) or not cls.traces_items:
            return  # a base class, or a task whose `run` has been replaced
        refuse_unknown_options(cls, BatchTask._known_options())
        check_retried_errors(cls)
        cls._batch_signature = listable_signature(cls)
        cls._batch_run = inspect.getattr_static(cls, "run")
        own = own_attribute(cls, "batch_by")
        by_model = key_option(cls.model) if cls.model else None
        cls._key_names = key_names(by_model if own is None else own)
        cls.run = BatchTask._run_item

    @staticmethod
    def _known_options() -> set[str]:
        return {*dir(BatchTask), *dict(Task.from_config)}

    @classmethod
    def on_bound(cls, app: Any) -> None:
        """Check the options together with the app's settings, and add the worker's bootsteps."""
        super().on_bound(app)
        if cls.run is not BatchTask._run_item:
            return  # a base class, not a task yet
        Settings.of(app)
        refuse_misspelt_annotations(cls, BatchTask._known_options())
        policy_of(cls)
        item_cost_of(cls)
        check_version(cls)
        check_shapes(cls)
        item_key_of(cls)
        check_sort_window(cls)
        isolates_failures(cls)
        max_worker_losses(cls)
        outputs_of(cls)
        max_queue_of(app, cls)
        check_queue_cost(cls)
        check_celery_options(cls)
        add_bootsteps(app)

    def _run_item(self, *args: Any, **kwargs: Any) -> Any:
        answer = pending_answer.pop(self.request.id)
        if answer is None and self.request.get(PAYLOADS):  # a worker without our strategy
            stored = import_module("celery_batch.payloads.arguments")
            self.request.batch_unread = True  # for `retry`: no later try would have them
            args, kwargs = stored.with_values(self.app, self.request, args, kwargs)
            self.request.update(batch_unread=False, args=args, kwargs=kwargs)
        rows = self._call_rows(self.request, args, kwargs)
        if answer is not None:
            outcome = answer(rows)
        else:  # called directly, eagerly or by a worker without our strategy: a batch of one
            with pending_answer.running_batch():
                (outcome,) = run_calls(self, [rows])
        if outcome.again:
            raise RunAgain
        if isinstance(outcome.error, Retry):
            raise super().retry(throw=False, **retry_options(outcome.error))
        if isinstance(outcome.error, TaskPredicate):
            if needs_answer(self.request):
                raise outcome.whole or failed_row(outcome.error)
        elif outcome.whole is not None:  # for `retry`, which autoretry calls with one row's error
            self.request.batch_error = outcome.whole
        return outcome.unwrap()

    def retry(self, *args: Any, throw: bool = True, **options: Any) -> Any:
        """
        Retry as in any task; inside a batch function, every item of the batch.

        Each item is retried by itself, with its own arguments and its own count of
        retries.  To retry one item only, return an exception for it that
        ``autoretry_for`` names.

        Args:
            args: As Celery's; not inside a batch function.
            throw: Raise, so that the function ends here; else return what to raise.
            options: ``exc``, ``countdown``, ``eta``, ``max_retries`` and options of
                `apply_async`; ``countdown`` is in seconds.

        Returns:
            What to raise, unless `throw`.

        Raises:
            Retry: Always, if `throw`.
            ConfigurationError: New arguments were given for a whole batch.
        """
        if not pending_answer.in_batch:
            if self.request.get("batch_unread") and "exc" in options:
                raise options["exc"]
            whole = self.request.get("batch_error")
            if whole is not None and "exc" in options:
                options["exc"] = whole
            return super().retry(*args, throw=throw, **options)
        if args or "args" in options or "kwargs" in options:
            raise ConfigurationError(
                f"{self.name}: a batch is retried with each item's own arguments;"
                f" leave args and kwargs out of retry()"
            )
        again = RetryItem(options)
        if throw:
            raise again
        return again

    def replace(self, sig: Any) -> Any:
        """
        Replace the task as any other; not inside a batch function.

        Args:
            sig: The signature of the task that takes its place.

        Returns:
            In eager mode the result of the other task; in a worker Celery ends this one here.

        Raises:
            ConfigurationError: Called inside a batch function, which runs for many requests.
        """
        if pending_answer.in_batch:
            raise ConfigurationError(
                f"{self.name}: replace() replaces one request, and a batch function answers"
                f" for many; return the outputs and link the next task to each request"
            )
        return super().replace(sig)

    @cached_property
    def _split_outputs(self) -> Callable[[Any], Any]:
        """Makes arrays, or lists of numbers, of a batch's outputs in arrays."""
        split = split_rows if outputs_of(self) == "arrays" else list_rows
        return lambda outputs: split(owned(outputs))

    @cached_property
    def _item_cost(self) -> ItemCost | None:
        """Computes what items cost; None if that is not limited."""
        return item_cost_of(self)

    @cached_property
    def _item_key(self) -> ItemKey | None:
        """Computes the keys of items; None if batches are not formed by key."""
        return item_key_of(self)

    @cached_property
    def _batch_runner(self) -> Runner:
        """Runs this task's batches in this process, and remembers what fits into memory."""
        policy = policy_of(self)
        cost = None
        if self._item_cost is not None:
            any_cost = CostLimits(
                policy.max_batch_size, math.inf, is_padded=False, sizes=policy.batch_sizes
            )
            limits = policy.cost_limits or any_cost
            cost = CallCost(self._item_cost.of_rows, limits)
        return Runner(
            self._batch_stages,
            self.name,
            self._error_policy(),
            most=policy.max_batch_size,
            cost=cost,
            fixed_sizes=fixed_sizes_of(self),
        )

    def _error_policy(self) -> ErrorPolicy:
        isolate = isolates_failures(self)
        if not self.acks_late:  # the message is gone: what is interrupted cannot run again
            return ErrorPolicy(isolate, (TaskPredicate, SoftTimeLimitExceeded))
        return ErrorPolicy(isolate, (TaskPredicate,), (SoftTimeLimitExceeded,))

    @cached_property
    def _batch_stages(self) -> Stages:
        """What runs a batch: the stages of its model, or its function as the only one."""
        stages = self._stages or Stages(self._call_function)
        return stages.followed_by(self._split_outputs)

    def _call_function(self, *columns: list[Any]) -> Any:
        values = self._as_called(columns)
        return call_with_columns(self._batch_run, self._batch_signature, values)

    def run_batch(self, *columns: Iterable[Any], **named: Iterable[Any]) -> list[Any]:
        """
        Call the batch function in this process, with lists, as a test of it does.

        The function runs once, with all rows: no worker, no message, no hooks, and no search
        for the rows that make it raise.  (`run` and a direct call take one item.)

        Args:
            columns: One list per parameter, one entry per row; for a function of one
                parameter simply the rows.
            named: Lists for parameters by name.

        Returns:
            One output per row, in order; an `Exception` instance in place of an output is
            returned as it is.

        Raises:
            InvalidChunk: There are no rows, or the lists differ in length.
            TypeError: The lists do not fit the function's parameters.
            WrongResultCount: The function did not return one output per row.
        """
        args, kwargs, rows = self._as_message(columns, named)
        chunk = self._chunk_of(args, kwargs, rows)
        return list(checked(self.name, self._batch_stages(*chunk.columns), rows))

    def _call_rows(self, request: Any, args: Any, kwargs: Any) -> CallRows:
        """Return a request's row of values, or its chunk if the message says so."""
        count = row_count_header(request)
        if count is not None:
            return self._chunk_of(args, kwargs, count)
        try:
            bound = self._batch_signature.bind(*args, **kwargs)
        except TypeError as error:
            raise call_error(self.name, self._batch_signature, error) from None
        bound.apply_defaults()
        return tuple(bound.arguments.values())


#: The models and options of which the tasks of each app were made, by the names of the tasks.
_made: WeakKeyDictionary[Celery, dict[str, tuple[str, dict[str, Any]]]] = WeakKeyDictionary()


def add_bootsteps(app: Any) -> None:
    """Add what workers need for batch tasks."""
    app.steps["worker"].add("celery_batch.worker.bootsteps:BatchWorker")
    app.steps["worker"].add("celery_batch.worker.metrics.exporter:BatchMetrics")
    app.steps["consumer"].add("celery_batch.worker.bootsteps:BatchConsumer")
    app.steps["consumer"].add("celery_batch.worker.metrics.health_step:HealthStep")


def model_task(
    app: Any,
    model: type[Model],
    *,
    name: str | None = None,
    base: type[BatchTask] = BatchTask,
    **options: Any,
) -> Any:
    """Make a task of a model; see `Model.as_task`."""
    if not isinstance(app, Celery):
        raise ConfigurationError(
            f"{model.__qualname__}.as_task: takes the Celery app itself, as in"
            f" {model.__qualname__}.as_task(app), got {app!r:.60}"
        )
    name = name or app.gen_task_name(model.__name__, model.__module__)
    is_base = isinstance(base, type) and issubclass(base, BatchTask)
    require(is_base, f"{name}.base", "a class that derives from BatchTask", base)
    if options.get("pydantic"):  # before Celery asks for the library
        raise ConfigurationError(f"{name}: {NO_PYDANTIC}")
    if options.get("bind"):
        raise ConfigurationError(
            f"{name}: bind=True is for functions: self of a model's methods is the model; leave it"
            f" out, and put hooks into a class that base= names"
        )
    check_model_options(model)
    if model.predict is Model.predict:
        raise ConfigurationError(f"{name}: {model.__qualname__} must define predict(batch)")
    for stage in ("collate", "predict", "uncollate"):
        if inspect.iscoroutinefunction(getattr(model, stage)):
            raise ConfigurationError(
                f"{name}: {model.__qualname__}.{stage} is an async function, which cannot run in"
                f" Celery's pool; write it with def"
            )
    _refuse_another(app, name, model, options)
    _keep_key_names(name, model, options.get("batch_by"))

    check_stages(model)
    stages = stages_of(model, key_names(key_option(model)), lambda: instance_of(model))

    def predict(*columns: list[Any]) -> Any:  # for its name and signature: batches run in stages
        return stages(*columns)

    predict.__signature__ = _item_signature(model)  # type: ignore[attr-defined]
    predict.__doc__ = model.__doc__
    predict.__module__ = model.__module__
    predict.__qualname__ = f"{model.__qualname__}.predict"
    return app.task(base=base, name=name, model=model, _stages=stages, **options)(predict)


def _refuse_another(app: Celery, name: str, model: type[Model], options: dict[str, Any]) -> None:
    """Refuse a second task of one name: Celery would return the first, with its options."""
    # A module that is imported again, or run as a script, makes equal tasks of another class.
    plain = (str, Real, NoneType)
    values = {key: value if isinstance(value, plain) else ... for key, value in options.items()}
    made = (model.__qualname__, values)
    first = _made.setdefault(app, {}).setdefault(name, made)
    if made != first:
        raise ConfigurationError(
            f"{name}: {first[0]}.as_task has made a task of this name, which Celery would return,"
            f" with its options; give this one a name of its own, as in as_task(app, name=...)"
        )


def _keep_key_names(name: str, model: type[Model], batch_by: Any) -> None:
    """Keep which values the `predict` of a model gets, since all of its tasks share that."""
    names, own = key_names(batch_by), key_names(key_option(model))
    if own and batch_by is not None and set(names) != set(own):
        raise ConfigurationError(
            f"{name}.batch_by: {model.__qualname__}.predict gets one value of {', '.join(own)},"
            f" in all tasks of this model, got {batch_by!r}; leave the option out"
        )
    if not own and not keep_key_option(model, batch_by if names else None):
        raise ConfigurationError(
            f"{name}.batch_by: {model.__qualname__}.predict gets lists in another task of this"
            f" model, and here one value of {', '.join(names)}; put batch_by into the class"
        )


def _item_signature(model: type[Model]) -> inspect.Signature:
    """Return what the task of a model takes: an ``item``, or what `predict` has several of."""
    signature = signature_of(model)
    parameters = list(signature.parameters.values())
    if len(parameters) == 1 and parameters[0].kind is parameters[0].POSITIONAL_OR_KEYWORD:
        parameters = [parameters[0].replace(name="item")]
    return inspect.Signature([each.replace(annotation=each.empty) for each in parameters])


@signals.worker_process_init.connect(weak=False)  # type: ignore[untyped-decorator]
def _load_models(**_: Any) -> None:
    import_module("celery_batch.worker.executor.loader").load_in_pool_process()
