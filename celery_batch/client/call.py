"""One call on its way to become a message."""

from __future__ import annotations

from json.encoder import encode_basestring_ascii as quoted
from typing import Any, NamedTuple

from kombu.utils.functional import maybe_list

from celery_batch.client.ids import new_id
from celery_batch.client.reprs import described
from celery_batch.client.template import Template, json_text
from celery_batch.client.terms import Terms

__all__ = ["Call"]

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
    """

    args: Any
    kwargs: Any
    options: dict[str, Any]
    parent: Any

    def is_plain(self) -> bool:
        """Return whether its options have the types that a template has room for."""
        options = self.options
        for name in options:
            value = options[name]
            if name in _TEXTS and not (value is None or type(value) is str):
                return False
        index = options.get("group_index")
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

    def text(self, template: Template, terms: Terms, task_id: str, **told: str | None) -> str:
        """
        Return the message.

        Args:
            template: For its kind.
            terms: The app's settings.
            task_id: Its id.
            told: ``reply_to`` and ``reply``: where to Celery and we would have the answer.
        """
        options, args, kwargs = self.options, self.args or (), self.kwargs or {}
        root_id, parent_id = options.get("root_id"), options.get("parent_id")
        if self.parent:
            root_id = root_id or self.parent.request.root_id or self.parent.request.id
            parent_id = parent_id or self.parent.request.id
        index = options.get("group_index")
        values = {
            "task_id": json_text(task_id),
            "root_id": json_text(root_id or task_id),
            "parent_id": json_text(parent_id),
            "group_id": json_text(options.get("group_id")),
            "group_index": "null" if index is None else str(index),
            "reply_to": json_text(options.get("reply_to") or told["reply_to"]),
            "eta": "null",
            "shadow": json_text(options.get("shadow") or None),
            "argsrepr": quoted(described(args, terms.args_limit, terms.repr_levels)),
            "kwargsrepr": quoted(described(kwargs, terms.kwargs_limit, terms.repr_levels)),
            "tag": f'"{new_id()}"',
            "reply": json_text(told["reply"]),
        }
        return template.fill((args, kwargs, self._embed(template)), values)

    def leave_trail(self, result: Any) -> None:
        """Tell the task that calls of its child."""
        if self.parent and self.options.get("add_to_parent", True):
            self.parent.add_trail(result)

    def _embed(self, template: Template) -> dict[str, Any]:
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
