"""What whoever looks at a backfill should know at once, each said once."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from celery_batch.backfill.arguments import Arguments
from celery_batch.backfill.rows import Answered, Row

__all__ = ["Notices", "Say"]

#: Is told a line.
Say = Callable[[str], None]

#: Kinds of errors of which the first one is shown.
_KINDS = 5

#: Characters of an error that is shown.
_LONG = 200

#: Rows at the beginning which should not all fail.
_FIRST = 100

#: Names of rows that are remembered to find the same one twice.
_NAMES = 100_000


class Notices:
    """
    Looks at answers as they come, and says what is strange about them.

    Args:
        arguments: How records became rows.
        say: Is told a line.
    """

    def __init__(self, arguments: Arguments, say: Say) -> None:
        self._arguments = arguments
        self._say = say
        self._seen = self._failed = 0
        self._kinds: set[str] = set()
        self._names: set[str] = set()
        self._knows_twins = self._has_hinted = False

    def look(self, answers: Iterable[Answered]) -> None:
        """Look at answers, each once."""
        for answer in answers:
            self._seen += 1
            if answer.error:
                self._failed += 1
                self._show(answer)
            if not (self._knows_twins or len(self._names) == _NAMES):
                self._look_for_twin(answer.row)
            if self._seen == self._failed == _FIRST:
                self._say(
                    f"The first {_FIRST} rows have all failed; Ctrl-C ends it, and --restart"
                    " begins anew once that is mended."
                )

    def _show(self, answer: Answered) -> None:
        kind = answer.error.partition(":")[0]
        if kind in self._kinds or len(self._kinds) == _KINDS:
            return
        self._kinds.add(kind)
        text = " ".join(answer.error.split())
        text = text if len(text) <= _LONG else f"{text[:_LONG]}..."
        self._say(f"{_named(answer.row)} failed: {text}")
        hint = self._arguments.hint(answer.row)
        if hint and self._failed == self._seen and not self._has_hinted:
            self._has_hinted = True
            self._say(hint)

    def _look_for_twin(self, row: Row) -> None:
        if row.key in self._names:
            self._knows_twins = True
            self._names.clear()
            self._say(f"More than one row is named {row.key!r}; --key names them by another field.")
        self._names.add(row.key)


def _named(row: Row) -> str:
    place = row.place.capitalize()
    return place if row.key == str(row.position + 1) else f"{place} ({row.key})"
