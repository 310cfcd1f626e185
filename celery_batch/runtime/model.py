"""The class `Model`: load, predict, unload."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

__all__ = ["Model"]


class Model:
    """
    A model with a life cycle, loaded once in each pool process, on its device.

    Import heavy libraries inside `load`, not at the top of the module: by then
    the process is pinned to its device, and a web server that only sends tasks
    never pays for the import.
    """

    def load(self, device: str) -> None:
        """
        Get ready to predict.

        Args:
            device: Where to live: ``"cpu"``, or ``"cuda:0"`` for the one GPU
                this process is pinned to.
        """

    def examples(self) -> Sequence[Any]:
        """
        Return inputs to warm up with, before the first task is taken.

        Where `predict` has several parameters, each is a tuple with a value for each of
        them, or a mapping by their names.  A failed warm-up is a failed start.  No examples,
        no warm-up.
        """
        return ()

    def predict(self, *batch: Any, **named: Any) -> Sequence[Any]:
        """
        Answer a batch; define it as ``predict(self, batch)`` or with several parameters.

        Args:
            batch: The inputs, one per request, oldest first.  Of several parameters, such as
                ``predict(self, text, lang)``, each is a list with one entry per request.
            named: Likewise, for parameters that are given by keyword only.

        Returns:
            One output per request, in order.  An `Exception` instance in place of
            an output fails that request alone.
        """
        msg = f"{type(self).__name__} must define predict(batch)"
        raise NotImplementedError(msg)

    def unload(self) -> None:
        """Let go of what `load` took; called when the process ends in peace."""

    @classmethod
    def as_task(cls, app: Any, *, name: str | None = None, **options: Any) -> Any:
        """
        Make a Celery task that answers single items with this model.

        All tasks of one model share the instance that a process has loaded.

        Args:
            app: The Celery app.
            name: The task's name, such as ``"workers.infill"``; unless given, the
                module's and the class's, as Celery names the task of a function.
            options: ``max_batch_size``, ``max_wait``, ``linger`` (seconds) and
                every option of Celery's own tasks.

        Returns:
            The task; ``delay(item)`` gives the output for that item.  Where `predict` has
            several parameters, the task has the same.
        """
        # By name: serving knows nothing of Celery, and stays importable without it.
        return import_module("celery_batch.task").model_task(app, cls, name=name, **options)
