"""One call on its way to become a message."""

from __future__ import annotations

from typing import Any, NamedTuple

from kombu.utils.functional import maybe_list

from celery_batch.client.amqp_template import AmqpTemplate
from celery_batch.client.outbox import Letter
from celery_batch.client.reprs import described
from celery_batch.client.template import Fields, Template
from celery_batch.client.terms import Terms

__all__ = ["AnyTemplate", "Call"]

#: For one broker or the other.
AnyTemplate = Template | AmqpTemplate

#: Options that are texts, or nothing.
_TEXTS = frozenset(("task_id", "root_id", "parent_id", "group_id", "reply_to", "shadow"))
#: Options that say what comes after.
_AFTERWARDS = frozenset(("link", "link_error", "chain", "chord"))


class Call(NamedTuple):
    """
    What `apply_async` was given.

    Args:
        args: Positional arguments, or None.
        kwargs: Keyword arguments, or None.
        options: Its options.
        parent: The task that calls, if one does.
        expires: When it is to run no more, by its options or by its task's.
    """

    args: Any
    kwargs: Any
    options: dict[str, Any]
    parent: Any
    expires: Any = None

    def is_plain(self) -> bool:
        """Return whether its options have the types that a template has room for."""
        options = self.options
        for name in options:
            value = options[name]
            if name in _TEXTS and not (value is None or type(value) is str):
                return False
        headers, index = options.get("headers"), options.get("group_index")
        if not (headers is None or type(headers) is dict):
            return False
        return index is None or type(index) is int

    def check(self, task: Any) -> None:
        """
        Check the arguments as Celery does.

        Raises:
            TypeError: They do not fit the task.
        """
        args, kwargs = self.args or (), self.kwargs or {}
        if task.typing:
            task.__header__(*args, **kwargs)
        if not isinstance(args, (list, tuple)):
            raise TypeError("task args must be a list or tuple")

    def letter(
        self, template: AnyTemplate, terms: Terms, task_id: str, told: Fields
    ) -> Letter | None:
        """
        Return the message; None if it has no place for one of its options.

        Args:
            template: For its kind.
            terms: The app's settings.
            task_id: Its id.
            told: ``reply_to`` and ``reply``: where to Celery and we would have the answer;
                and what is to be said of its expiry.
        """
        options, args, kwargs = self.options, self.args or (), self.kwargs or {}
        root_id, parent_id = options.get("root_id"), options.get("parent_id")
        if self.parent:
            root_id = root_id or self.parent.request.root_id or self.parent.request.id
            parent_id = parent_id or self.parent.request.id
        values: Fields = {
            **told,
            **self.constants(told),
            "task_id": task_id,
            "root_id": root_id or task_id,
            "parent_id": parent_id,
            "argsrepr": described(args, terms.args_limit, terms.repr_levels),
            "kwargsrepr": described(kwargs, terms.kwargs_limit, terms.repr_levels),
        }
        return template.letter((args, kwargs, self._embed(template)), values)

    def constants(self, told: Fields) -> Fields:
        """Return what all calls with these options have, as `letter` is told."""
        options = self.options
        return {
            "parent_id": options.get("parent_id"),
            "group_id": options.get("group_id"),
            "group_index": options.get("group_index"),
            "reply_to": options.get("reply_to") or told["reply_to"],
            "shadow": options.get("shadow") or None,
            "reply": told["reply"],
            "headers": options.get("headers"),
        }

    def leave_trail(self, result: Any) -> None:
        """Tell the task that calls of its child."""
        if self.parent and self.options.get("add_to_parent", True):
            self.parent.add_trail(result)

    def _embed(self, template: AnyTemplate) -> dict[str, Any]:
        options = self.options
        if _AFTERWARDS.isdisjoint(options):
            return template.embed
        return {
            **template.embed,
            "callbacks": maybe_list(options.get("link")),
            "errbacks": maybe_list(options.get("link_error")),
            "chain": options.get("chain"),
            "chord": options.get("chord"),
        }
