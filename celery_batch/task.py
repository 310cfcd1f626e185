"""
The task that caller and worker share.

It names the worker's side only as dotted strings, as Celery allows, so that a
web process that sends tasks imports none of it.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable
from importlib import import_module
from typing import Any, ClassVar

from celery import Task, signals

from celery_batch.config import OPTIONS, Settings, did_you_mean, policy_of
from celery_batch.errors import ConfigurationError
from celery_batch.serving.model import Model
from celery_batch.serving.residents import resident
from celery_batch.serving.runner import Runner

__all__ = ["BatchTask", "model_task"]

#: From one item's row of arguments to its output.
Answer = Callable[[tuple[Any, ...]], Any]

#: Options that Celery's own decorator understands without declaring them on Task.
_UNDECLARED = {
    *("autoretry_for", "dont_autoretry_for", "override_max_retries", "retry_backoff"),
    *("retry_backoff_max", "retry_jitter", "retry_kwargs"),
    *("queue", "routing_key", "exchange", "delivery_mode", "compression"),
    *("immediate", "mandatory"),
}


class Seat(threading.local):
    """
    Where a worker leaves the way to an item's answer for that item's `run`.

    One per thread: on the threads pool several batches run at once.
    """

    _task_id: str | None = None
    _answer: Answer | None = None

    def take(self, task_id: str, answer: Answer) -> None:
        """
        Leave an answer for the next call of `run`.

        Args:
            task_id: Whose answer it is; a task called inside a hook must not take it.
            answer: Given the item's row of arguments, returns its output or raises.
        """
        self._task_id, self._answer = task_id, answer

    def leave(self, task_id: str | None) -> Answer | None:
        """Return the answer left for this task, once."""
        if self._answer is None or task_id != self._task_id:
            return None
        answer, self._answer = self._answer, None
        return answer


seat = Seat()


class BatchTask(Task):  # type: ignore[misc]
    """
    A task that is called with one item and runs with many.

    The function is written on lists: every parameter arrives as a list with one
    entry per request, and it returns one output per request, in order.  An
    `Exception` instance in place of an output fails that request alone.
    Callers see an ordinary Celery task on single items.
    """

    abstract = True

    Strategy = "celery_batch.worker.strategy:batches"

    #: Acknowledged once the result is stored: what a dying worker held is run elsewhere.
    acks_late = True

    #: Most requests in one batch; `batch_max_size` unless given.
    max_batch_size: ClassVar[int | None] = None

    #: Most seconds a request waits for company while a slot is free; `batch_max_wait`.
    max_wait: ClassVar[float | None] = None

    #: Seconds without a newcomer after which a free slot stops waiting; `batch_linger`.
    linger: ClassVar[float | None] = None

    #: The model behind the task, if it has one with a life cycle.
    model: ClassVar[type[Model] | None] = None

    #: What the user wrote, on lists; `run` is its single-item face.
    batch_run: Callable[..., Any]

    #: Its signature; each parameter becomes a list.
    batch_signature: ClassVar[inspect.Signature]

    @classmethod
    def on_bound(cls, app: Any) -> None:
        """
        Check the options and hook the worker's steps into the app.

        Raises:
            ConfigurationError: An option is misspelt or wrong, or the function
                cannot be called with lists.
        """
        super().on_bound(app)
        if cls.run is Task.run:
            return  # a base class, not a task yet
        if cls.run is not BatchTask._run_item:  # Celery may bind a task more than once
            _refuse_unknown_options(cls)
            cls.batch_signature = _listable_signature(cls)
            cls.batch_run = inspect.getattr_static(cls, "run")
            cls.run = BatchTask._run_item
        Settings.of(app)
        policy_of(cls)
        app.steps["worker"].add("celery_batch.worker.steps:BatchWorker")
        app.steps["consumer"].add("celery_batch.worker.steps:BatchConsumer")

    def _run_item(self, *args: Any, **kwargs: Any) -> Any:
        row = self.row(args, kwargs)
        answer = seat.leave(self.request.id)
        if answer is not None:
            return answer(row)
        # Called directly, eagerly or by a worker without our strategy: a batch of one.
        (outcome,) = self.runner().run(*([value] for value in row))
        return outcome.unwrap()

    def runner(self) -> Runner:
        """Return what runs this task's batches in this process."""
        return Runner(self._run_columns, name=self.name)

    def _run_columns(self, *columns: list[Any]) -> Any:
        by_name = {
            parameter.name: column
            for parameter, column in zip(
                self.batch_signature.parameters.values(), columns, strict=True
            )
            if parameter.kind is parameter.KEYWORD_ONLY
        }
        return self.batch_run(*columns[: len(columns) - len(by_name)], **by_name)

    def row(self, args: Any, kwargs: Any) -> tuple[Any, ...]:
        """
        Line one call's arguments up with the function's parameters.

        Raises:
            TypeError: The call does not fit the function's signature.
        """
        bound = self.batch_signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return tuple(bound.arguments.values())


def model_task(app: Any, model: type[Model], *, name: str, **options: Any) -> Any:
    """
    Make a task of a model; see `Model.as_task`.

    Args:
        app: The Celery app.
        model: Loaded once in each pool process.
        name: The task's name.
        options: Options of the task, Celery's and ours.
    """

    def predict(item: list[Any]) -> Any:
        return resident(model).predict(item)

    predict.__doc__ = model.__doc__
    predict.__module__ = model.__module__
    predict.__qualname__ = f"{model.__qualname__}.predict"
    return app.task(base=BatchTask, name=name, model=model, **options)(predict)


def _refuse_unknown_options(cls: type[BatchTask]) -> None:
    known = {*dir(BatchTask), *OPTIONS, *_UNDECLARED, *dict(Task.from_config)}
    # Only what the decorator put there: a class written by hand may hold anything.
    if not cls.__dict__.get("_decorated"):
        return
    base = cls.__mro__[1]
    for name in vars(cls):
        if name not in known and not name.startswith("_") and not hasattr(base, name):
            raise ConfigurationError(
                f"{cls.name}.{name}: no such task option{did_you_mean(name, known)}"
                f" (declare attributes of your own on a base class)"
            )


def _listable_signature(cls: type[BatchTask]) -> inspect.Signature:
    if vars(cls).get("_dump_pydantic_arguments") is not None:
        raise ConfigurationError(
            f"{cls.name}: pydantic=True checks one call at a time and cannot see lists;"
            f" validate inside the function instead"
        )
    parameters = list(inspect.signature(cls.run).parameters.values())
    if not isinstance(inspect.getattr_static(cls, "run"), staticmethod):
        parameters = parameters[1:]
    if not parameters:
        raise ConfigurationError(f"{cls.name}: must take at least one parameter, the batch")
    for parameter in parameters:
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise ConfigurationError(
                f"{cls.name}: *{parameter.name} cannot become a list per parameter;"
                f" name the parameters"
            )
    return inspect.Signature(parameters)


@signals.worker_process_init.connect(weak=False)  # type: ignore[untyped-decorator]
def _load_models(**_: Any) -> None:
    import_module("celery_batch.worker.loading").load_in_pool_process()
