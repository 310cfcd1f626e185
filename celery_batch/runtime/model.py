"""The class `Model`: load, predict, unload."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

from celery_batch.errors import ConfigurationError

__all__ = ["Model"]

if TYPE_CHECKING:
    _of_class = classmethod
else:

    class _of_class(classmethod):  # noqa: N801 (called like `classmethod`)
        """A class method that refuses an instance: its worker would make another one."""

        def __get__(self, instance: object, owner: type | None = None) -> Any:
            return super().__get__(instance, owner) if instance is None else _refuse_instance


def _refuse_instance(*_args: Any, **_options: Any) -> NoReturn:
    raise ConfigurationError(
        "as_task is called on the class, as in MyModel.as_task(app): each pool process makes an"
        " instance of its own, without arguments"
    )


class Model:
    """
    A model with a life cycle, loaded once in each pool process, on its device.

    Import heavy libraries inside `load`, not at the top of the module: by then
    the process is pinned to its device, and a web server that only sends tasks
    does not import them.
    """

    #: What an item costs, where the task's batches are limited by cost; a static method that
    #: takes what `predict` takes, for one item, or the name of a parameter whose length counts.
    cost: ClassVar[Any] = None

    #: A text or a whole number that changes with the weights; cached answers of another version are
    #: not used.
    version: ClassVar[Any] = None

    #: The numbers of rows that calls of `predict` have, ascending; None for any.
    batch_sizes: ClassVar[Sequence[int] | None] = None

    #: The lengths that `predict` pads its rows to, ascending; None for any.
    batch_lengths: ClassVar[Sequence[int] | None] = None

    #: The row that fills a call up to its size; an input as in `examples`, or a method that
    #: returns one.  None to repeat the last row of the call.
    padding_row: Any = None

    #: By which items share a batch, where the task has no ``batch_by`` of its own; names of
    #: parameters of `predict` (of `collate`, if that is defined), of which it gets one value
    #: instead of a list, or a static method.
    batch_by: ClassVar[Any] = None

    def load(self, device: str) -> None:
        """
        Load the model.

        Args:
            device: Where to load it: ``"cpu"``, or ``"cuda:0"`` for the one GPU
                this process is pinned to.
        """

    def examples(self) -> Sequence[Any]:
        """
        Return inputs to warm up with, before the worker takes tasks.

        If `predict` has several parameters, each example is a tuple with a value for each of
        them, or a mapping by their names.  A failed warm-up is a failed start.  Without
        examples there is no warm-up.
        """
        return ()

    def example(self, length: int) -> Any:
        """
        Return an input of this length, as in `examples`; needed with `batch_lengths`.

        Before the worker takes tasks, `predict` is called with each of the `batch_sizes` and
        lengths that can occur.

        Args:
            length: One of `batch_lengths`.
        """
        raise NotImplementedError(f"{type(self).__name__} must define example(length)")

    def collate(self, *batch: Any, **named: Any) -> Any:
        """
        Make one value of a batch's inputs, such as a tensor on the device; optional.

        In a worker with one pool process it runs on another thread, while `predict` runs the
        batch before.  It may be called again with a part of the same inputs, and several calls
        may run at once: it must not change what it is given, nor what another call uses.

        Args:
            batch: The inputs, one per request, oldest first.  The parameters of `collate` are
                those of the task: with several, such as ``collate(self, text, lang)``, each is
                a list with one entry per request.
            named: The same for keyword-only parameters.

        Returns:
            What `predict` gets as its one argument; a tuple is not taken apart.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define collate(batch)")

    def predict(self, *batch: Any, **named: Any) -> Any:
        """
        Compute a batch; define it as ``predict(self, batch)`` or with several parameters.

        Args:
            batch: The inputs, one per request, oldest first.  With several parameters, such as
                ``predict(self, text, lang)``, each is a list with one entry per request.
                If the model defines `collate`: the one value that this returned.
            named: The same for keyword-only parameters.

        Returns:
            One output per request, in order.  An `Exception` instance in place of
            an output fails that request alone.  If the model defines `uncollate`: what that takes.
        """
        raise NotImplementedError(f"{type(self).__name__} must define predict(batch)")

    def uncollate(self, output: Any) -> Sequence[Any]:
        """
        Make the outputs of a batch from what `predict` returned; optional.

        In a worker with one pool process it runs on another thread, while `predict` runs the
        next batch.

        Args:
            output: What `predict` returned.

        Returns:
            One output per request, as `predict` returns them without `uncollate`.
        """
        raise NotImplementedError(f"{type(self).__name__} does not define uncollate(output)")

    def unload(self) -> None:
        """Release what `load` took; called when the process ends normally."""

    @_of_class
    def as_task(cls, app: Any, *, name: str | None = None, **options: Any) -> Any:  # noqa: N805 (of the class)
        """
        Make a Celery task that takes single items and runs this model on batches.

        All tasks of one model share its instance in a process.

        Args:
            app: The Celery app.
            name: The task's name, such as ``"workers.infill"``; unless given, the
                module's and the class's, as Celery names the task of a function.
            options: ``max_batch_size``, ``max_wait``, ``linger`` (seconds) and
                every option of Celery's own tasks; ``base`` is a class of yours that derives from
                `BatchTask`.

        Returns:
            The task; the result of ``delay(item)`` is the output for that item.  If `predict`
            has several parameters, or `collate` if it is defined, the task has the same.
        """
        # By name: runtime can be imported without Celery.
        return import_module("celery_batch.task").model_task(app, cls, name=name, **options)
