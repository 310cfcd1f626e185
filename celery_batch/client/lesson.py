"""What Celery is given to send, so that its message shows where the blanks are."""

from __future__ import annotations

import os
from typing import Any, NamedTuple

from celery_batch.replies import REPLY_HEADER

__all__ = ["BLANK_OPTIONS", "MARK", "PARTS", "Form", "mark_parts", "teach"]

#: Never part of a message that is not ours, as nobody can foresee it.
MARK = f"blank-{os.urandom(12).hex()}-"

#: Seconds: for Celery to say what it makes of them, and we where.
_SOME_TIME = 60

#: Arguments of `Celery.send_task` that become blanks.
BLANK_OPTIONS = (
    *("task_id", "root_id", "parent_id", "group_id", "group_index"),
    *("reply_to", "shadow"),
)
#: Blanks that are put into the message once it is made.
PARTS = ("argsrepr", "kwargsrepr", "reply", "headers", "expires", "expiration")


class Form(NamedTuple):
    """
    Which parts a message has that others of its task leave out.

    Args:
        reply: It says where its answer is told.
        expires: It says when it is to run no more.
        headers: It has headers of its caller's.
    """

    reply: bool
    expires: bool
    headers: bool


def teach(
    task: Any,
    options: dict[str, Any],
    learner: Any,
    form: Form,
) -> None:
    """
    Have Celery send a call whose options are blanks.

    Args:
        task: The task that is called.
        options: The options of all the calls, the task's own among them.
        learner: A producer that keeps the message.
        form: What the message has beside.
    """
    headers: dict[str, str | None] = {MARK + "headers": None} if form.headers else {}
    if form.reply:
        headers[REPLY_HEADER] = MARK + "reply"
    options = {**options, "headers": headers, "expires": _SOME_TIME if form.expires else None}
    blanks = {option: MARK + option for option in BLANK_OPTIONS}
    task.app.send_task(
        task.name,
        (),
        {},
        producer=learner,
        task_type=task,
        result_cls=_NoResult,
        add_to_parent=False,
        **blanks,
        **options,
    )


def mark_parts(headers: dict[str, Any], properties: dict[str, Any], form: Form) -> None:
    """
    Make blanks of what Celery has worked out for itself.

    Args:
        headers: Of a message that Celery made.
        properties: Likewise.
        form: What the message has beside.
    """
    for part in ("argsrepr", "kwargsrepr"):
        headers[part] = MARK + part
    if form.expires:
        headers["expires"] = MARK + "expires"
        properties["expiration"] = MARK + "expiration"


class _NoResult:
    def __init__(self, _task_id: str) -> None:
        self.ignored = True
