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

from celery_batch.client_methods import ClientMethods
from celery_batch.compat.older_celery import is_pydantic
from celery_batch.config import Settings, max_queue_of, max_worker_losses, policy_of
from celery_batch.errors import ConfigurationError
from celery_batch.task import BatchTask, add_bootsteps
from celery_batch.task_options import check_celery_options, refuse_unknown_options

__all__ = ["Batches", "SimpleRequest"]

#: What tasks of celery-batches may override and these may not: there is no such step here.
_INTERNAL = ("flush", "_do_flush", "Strategy")

#: Options of batch tasks that have a meaning for a list of requests, too.
_SHARED = ("device_share", "low_priority_share", "max_queue", "max_worker_losses", "traces_items")

#: Those that have none.
_OF_BATCH_TASKS = {
    name
    for name in inspect.get_annotations(BatchTask) | inspect.get_annotations(ClientMethods)
    if not name.startswith("_") and name not in _SHARED
}

#: What Celery's result backends read of a request, beside its arguments.
_READ_BY_BACKENDS = ("group", "group_index", "parent_id", "root_id")


def __getattr__(name: str) -> NoReturn:
    if name == "trace":
        raise ImportError(
            "celery_batch.batches has no trace: the worker itself runs batches, and nothing is"
            " traced for each call; use the signals task_prerun and task_postrun"
        )
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


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

    # What `mark_as_done` and `mark_as_failure` read, where the call is a part of a chord, or has
    # tasks that follow its failure.
    chord: Any = None
    group: str | None = None
    group_index: int | None = None
    errbacks: Any = None
    chain: Any = None
    parent_id: str | None = None
    root_id: str | None = None

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

    def __getattr__(self, name: str) -> Any:
        """Return a header of the message: the channel on which the caller waits is one."""
        try:
            return self.__dict__["request_dict"][name]
        except KeyError:
            raise AttributeError(name) from None

    def __repr__(self) -> str:
        return f"<SimpleRequest {self.name}[{self.id}]>"

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
        vars(found).update({name: headers.get(name) for name in _READ_BY_BACKENDS})
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

    #: Acknowledged before its batch runs, unless this or `task_acks_late` is True.
    acks_late: Any = None

    traces_items = False

    #: Most calls in one batch.
    flush_every: ClassVar[int] = 10

    #: Seconds after which a batch leaves that is not full.
    flush_interval: ClassVar[float] = 30

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Take the options of celery-batches; refuse steps of it that there are none of here."""
        super().__init_subclass__(**kwargs)
        label = cls.name or cls.__qualname__
        for name in _INTERNAL:
            if getattr(cls, name, None) is not getattr(Batches, name, None):
                raise ConfigurationError(
                    f"{label}.{name}: celery_batch.batches has no such step to override;"
                    f" flush_every and flush_interval say when a batch leaves"
                )
        for name in _OF_BATCH_TASKS:
            if getattr(cls, name) is not getattr(BatchTask, name):
                raise ConfigurationError(
                    f"{label}.{name}: is an option of BatchTask, and has no meaning for a list of"
                    f" requests; leave it out, or rename an attribute of your own"
                )
        if cls.run is not Batches.run:
            known = {*dir(Batches), *dict(Task.from_config)}.difference(_OF_BATCH_TASKS)
            refuse_unknown_options(cls, known)
            _check_function(cls, label)
        cls._batch_signature = inspect.signature(_any_call)

    @classmethod
    def on_bound(cls, app: Any) -> None:
        """Check the options together with the app's settings, and add the worker's bootsteps."""
        super().on_bound(app)
        if cls.run is Batches.run:
            return  # a base class, not a task yet
        cls.max_batch_size = cls.flush_every  # here, since `task_annotations` may have changed it
        cls.max_wait = cls.linger = cls.flush_interval
        Settings.of(app)
        _check_policy(cls)
        max_worker_losses(cls)
        max_queue_of(app, cls)
        check_celery_options(cls)
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
        # Past a batch task's own, which refuses what a worker could not store.
        return super(ClientMethods, self).apply(([request],), {}, *more, **options)

    def retry(self, *_args: Any, **_options: Any) -> NoReturn:
        """
        Refuse to retry: a batch has no message of its own.

        Raises:
            ConfigurationError: Always.
        """
        raise ConfigurationError(
            f"{self.name}: retry() retries one request, and this function has a list of them; send"
            f" a call again with apply_async(request.args, request.kwargs, task_id=request.id)"
        )

    def run_batch(self, *_columns: Any, **_named: Any) -> NoReturn:
        """
        Refuse rows.

        Raises:
            ConfigurationError: Always.
        """
        raise takes_no_rows(self)

    backfill = _as_message = run_batch


def _check_policy(cls: Any) -> None:
    """Refuse wrong values under the names of celery-batches."""
    for name in ("flush_every", "flush_interval"):
        if getattr(cls, name) is None:
            raise ConfigurationError(f"{cls.name}.{name}: must be a number, got None")
    try:
        policy_of(cls)
    except ConfigurationError as error:
        text = str(error).replace("max_batch_size", "flush_every")
        raise ConfigurationError(text.replace("max_wait", "flush_interval")) from None


def takes_no_rows(task: Any) -> ConfigurationError:
    """Return the error of somebody who wants to give a `Batches` task rows."""
    return ConfigurationError(
        f"{task.name}: its function takes a list of requests, not rows; make it a BatchTask for"
        f" this"
    )


def _check_function(cls: Any, label: str) -> None:
    """Refuse what would be silently ignored."""
    if is_pydantic(cls):
        raise ConfigurationError(
            f"{label}: pydantic=True checks the arguments of one call; leave"
            f" it out, and check those of each request"
        )
    if getattr(cls, "autoretry_for", ()):
        raise ConfigurationError(
            f"{label}.autoretry_for: a batch has no message to retry; send the calls again, with"
            f" apply_async(request.args, request.kwargs, task_id=request.id)"
        )
    is_method = not isinstance(inspect.getattr_static(cls, "run"), (staticmethod, classmethod))
    try:  # as it is called: a wrapper may take less than what it wraps
        signature = inspect.signature(cls.run, follow_wrapped=False)
        signature.bind(*([cls] if is_method else []), [])
    except TypeError as error:
        raise ConfigurationError(
            f"{label}: its function must take one argument, the list of requests: {error}"
        ) from None
    if inspect.iscoroutinefunction(inspect.unwrap(cls.run)):
        raise ConfigurationError(f"{label}: is a coroutine function, and nothing would await it")


def _any_call(*args: Any, **kwargs: Any) -> None:
    """Take any arguments, as a call of a `Batches` task does."""
