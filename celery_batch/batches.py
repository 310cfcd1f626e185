"""
Tasks that are written for celery-batches, on this package's consumer.

Change ``from celery_batches import Batches`` to ``from celery_batch.batches import Batches``.
The interface is that of celery-batches 0.11 (https://celery-batches.readthedocs.io).
"""

from __future__ import annotations

import inspect
from typing import Any, ClassVar, NoReturn

from celery import Task
from celery.utils.nodenames import gethostname
from kombu.utils.uuid import uuid

from celery_batch.config import Settings, max_queue_of, max_worker_losses, policy_of
from celery_batch.errors import ConfigurationError
from celery_batch.task import BatchTask, add_bootsteps
from celery_batch.task_options import refuse_unknown_options

__all__ = ["Batches", "SimpleRequest"]

#: What tasks of celery-batches may override and these may not: there is no such step here.
_INTERNAL = ("flush", "_do_flush", "Strategy")


class SimpleRequest:
    """
    One call of a `Batches` task.

    Args:
        id: The task's id, under which its result is stored.
        name: The task's name.
        args: Positional arguments of the call.
        kwargs: Keyword arguments of the call.
        delivery_info: Where its message came from.
        hostname: The worker's name.
        ignore_result: Whether its caller wants no result.
        reply_to: The queue of results of the RPC backend.
        correlation_id: What the RPC backend knows its result by.
        request_dict: The headers of its message.
    """

    #: What `mark_as_done` and `mark_as_failure` continue after this call.
    chord: Any = None
    group: str | None = None
    group_index: int | None = None
    errbacks: Any = None
    chain: Any = None

    def __init__(
        self,
        id: str,  # noqa: A002 (celery-batches' name)
        name: str,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
        delivery_info: dict[str, Any] | None = None,
        hostname: str | None = None,
        ignore_result: bool = False,  # noqa: FBT001, FBT002 (celery-batches' signature)
        reply_to: str | None = None,
        correlation_id: str | None = None,
        request_dict: dict[str, Any] | None = None,
    ) -> None:
        self.id = id
        self.name = name
        self.args = args
        self.kwargs = kwargs or {}
        self.delivery_info = delivery_info
        self.hostname = hostname
        self.ignore_result = ignore_result
        self.reply_to = reply_to
        self.correlation_id = correlation_id
        self.request_dict = request_dict or {}

    def __repr__(self) -> str:
        return f"<SimpleRequest {self.name}[{self.id}]>"

    @classmethod
    def from_request(cls, request: Any) -> SimpleRequest:
        """
        Return what is known of a worker's request.

        Args:
            request: A `celery.worker.request.Request`.
        """
        args, kwargs, embed = request._payload  # noqa: SLF001 (as celery-batches does)
        found = cls.from_headers(request.id, request.request_dict, args, kwargs, embed or {})
        found.delivery_info, found.hostname = request.delivery_info, request.hostname
        return found

    @classmethod
    def from_headers(
        cls,
        task_id: str,
        headers: dict[str, Any],
        args: Any,
        kwargs: dict[str, Any],
        embed: dict[str, Any],
    ) -> SimpleRequest:
        """
        Return a call as its message describes it.

        Args:
            task_id: The call's id.
            headers: Of its message.
            args: Positional arguments.
            kwargs: Keyword arguments.
            embed: What Celery embeds beside the arguments.
        """
        found = cls(
            task_id,
            headers.get("task") or "",
            args,
            kwargs,
            headers.get("delivery_info"),
            headers.get("hostname"),
            bool(headers.get("ignore_result")),
            headers.get("reply_to"),
            headers.get("correlation_id"),
            headers,
        )
        found.chord, found.errbacks = embed.get("chord"), embed.get("errbacks")
        found.chain = embed.get("chain")
        found.group, found.group_index = headers.get("group"), headers.get("group_index")
        return found


class Batches(BatchTask):
    """
    A task whose function gets a list of calls, and stores the results of its calls itself.

    The function has one parameter, a list of `SimpleRequest`.  It runs once for a batch, in the
    worker's pool, and stores results with ``app.backend.mark_as_done(request.id, ...)`` and
    ``mark_as_failure``.  What it returns goes to the signals `task_success` and `task_postrun`.

    If it raises, each call fails whose result it has not stored and that it has not sent again,
    so that its caller does not wait for ever.
    """

    abstract = True

    # A call may have any arguments: the function's parameter is not one of them.
    typing = False

    # As `task_acks_late` says; a `BatchTask` differs.
    acks_late: Any = None

    traces_items = False

    #: Most calls in one batch.
    flush_every: ClassVar[int] = 10

    #: Seconds after which a batch leaves that is not full.
    flush_interval: ClassVar[float] = 30

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """
        Take the options of celery-batches.

        Raises:
            ConfigurationError: An option is misspelt, or the class overrides a step of
                celery-batches that there is none of here.
        """
        super().__init_subclass__(**kwargs)
        for name in _INTERNAL:
            if name in vars(cls):
                raise ConfigurationError(
                    f"{cls.name or cls.__qualname__}.{name}: celery_batch.batches has no"
                    f" such step to override; what a batch is, flush_every and flush_interval say"
                )
        if cls.run is not Batches.run:
            refuse_unknown_options(cls, {*dir(Batches), *dict(Task.from_config)})
        cls.max_batch_size = cls.flush_every
        cls.max_wait = cls.linger = cls.flush_interval
        cls._batch_signature = inspect.signature(_any_call)

    @classmethod
    def on_bound(cls, app: Any) -> None:
        """
        Check the options together with the app's settings, and add the worker's bootsteps.

        Raises:
            ConfigurationError: An option or a setting is wrong.
        """
        super().on_bound(app)
        if cls.run is Batches.run:
            return  # a base class, not a task yet
        Settings.of(app)
        policy_of(cls)
        max_worker_losses(cls)
        max_queue_of(app, cls)
        add_bootsteps(app)

    def run(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Run the function; each task has its own."""
        raise NotImplementedError("must implement run(requests)")

    def apply(self, args: Any = None, kwargs: Any = None, *more: Any, **options: Any) -> Any:
        """
        Run a batch of one call at once, in this process.

        Args:
            args: Positional arguments of the call.
            kwargs: Keyword arguments of the call.
            more: Celery's other positional parameters.
            options: Celery's options.

        Returns:
            An `EagerResult` of what the function returns.
        """
        options["task_id"] = options.get("task_id") or uuid()
        place = {name: options.get(name) for name in ("exchange", "routing_key", "priority")}
        request = SimpleRequest(
            options["task_id"],
            self.name,
            tuple(args or ()),
            kwargs,
            {"is_eager": True, **place},
            gethostname(),
            bool(options.get("ignore_result")),
        )
        return super().apply(([request],), {}, *more, **options)


def _any_call(*args: Any, **kwargs: Any) -> None:
    """Take any arguments, as a call of a `Batches` task does."""
