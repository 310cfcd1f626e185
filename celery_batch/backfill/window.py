"""The rows of a backfill that are on their way, and which leave next.

Rule 1: this file knows no broker, no clock and no file; facts come in, decisions go out.
Rule 2: at most ``window`` rows are on their way, so the broker never holds more; and at most
        `AHEAD` times as many are held here, with answers that wait for a row before them:
        a slow worker's rows must not keep fast ones idle, nor memory grow without end.
Rule 3: nothing more leaves while what is held weighs ``window_bytes`` or more.
Rule 4: the input is read no further than that, and in one go no longer than its reader has
        time for: what has been read leaves, though a parcel might have more rows.
Rule 5: a parcel has no more rows once it is heavy, as brokers take no message of any size.
Rule 6: a row with a flaw does not leave; it has come to its end where it stands.
Rule 7: a chunk that fails as a whole is sent again row by row; a row that fails has failed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

__all__ = [
    "AHEAD",
    "WINDOW_BYTES",
    "Answered",
    "Parcel",
    "Row",
    "Unreadable",
    "Window",
    "weight",
]


class Row(NamedTuple):
    """
    One row of the input.

    Args:
        position: Counted from 0, in the input's order.
        key: What the input calls it; its line number if it has no name.
        values: One for each parameter of the batch function.
        flaw: Why it cannot be asked at all, as ``"Type: message"``; "" if it can.
        line: Where it begins in a file that has lines, counted from 1; else 0.
        is_whole: A record with fields of other names is the first value, as a whole.
    """

    position: int
    key: str
    values: tuple[Any, ...]
    flaw: str = ""
    line: int = 0
    is_whole: bool = False

    @property
    def place(self) -> str:
        """Where it is, in words."""
        return f"line {self.line}" if self.line else f"row {self.position + 1}"


class Answered(NamedTuple):
    """
    A row that has come to its end.

    Args:
        row: Which.
        output: The model's; None if it failed.
        error: Why it failed, as ``"Type: message"``; "" if it did not.
        item: What a backfill in Python was given; None of a row that was read from a file.
    """

    row: Row
    output: Any = None
    error: str = ""
    item: Any = None


@dataclass(frozen=True, slots=True)
class Unreadable:
    """
    What stands in the place of a record that could not be read.

    Args:
        why: Where it is and what is wrong.
        key: What the input calls it, if that is known.
    """

    why: str
    key: str = ""


#: Bytes of a number, and of whatever else is small.
_SMALL = 8


#: Members of a list by which a long one is judged.
_SAMPLE = 8


#: What most rows of numbers are made of: told at once.
_NUMBERS = frozenset((int, float, bool, type(None)))


def weight(value: Any) -> int:
    """
    Return about how many bytes a value has.

    Texts count a byte for each character, and of long lists a few members stand for all.

    Args:
        value: What goes into a message.
    """
    if type(value) in _NUMBERS:
        return _SMALL
    if isinstance(value, (str, bytes, bytearray, memoryview)):
        return len(value)
    if isinstance(value, dict):
        return sum(weight(name) + weight(each) for name, each in value.items())
    if isinstance(value, (list, tuple)):
        if len(value) <= _SAMPLE:
            return sum(map(weight, value))
        sample = value[:: len(value) // _SAMPLE]
        return sum(map(weight, sample)) * len(value) // len(sample)
    return _SMALL


#: Windows of rows that may be held, most of them answered ahead of one that is not.
AHEAD = 8


#: Bytes that may be held, unless another number is given.
WINDOW_BYTES = 64 << 20


#: Bytes and characters of a parcel that is large enough, however few its rows are.
_HEAVY = 4 << 20


@dataclass(frozen=True, slots=True, eq=False)
class Parcel:
    """
    Rows that travel together.

    Args:
        rows: At least one.
        is_single: It is one row that goes as an ordinary call.
    """

    rows: tuple[Row, ...]
    is_single: bool = False

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def columns(self) -> list[list[Any]]:
        """The rows' values, one list for each parameter."""
        return [list(column) for column in zip(*(row.values for row in self.rows), strict=True)]


class Window:
    """
    The rows of a backfill that are on their way.

    Args:
        rows: The input, read when there is room.
        window: Most rows on their way.
        parcel: Most rows in one message.
        in_order: Answers come in the input's order; else as they are known.
        window_bytes: Bytes and characters of rows, and of answers that wait for others,
            from which on nothing more leaves.
    """

    def __init__(
        self,
        rows: Iterable[Row],
        *,
        window: int,
        parcel: int,
        in_order: bool = True,
        window_bytes: int = WINDOW_BYTES,
    ) -> None:
        self.window = window
        self.window_bytes = window_bytes
        self._rows: Iterator[Row] = iter(rows)
        self._parcel = parcel
        self._in_order = in_order
        self._again: deque[Parcel] = deque()
        self._order: deque[int] = deque()
        self._known: dict[int, Answered] = {}
        self._unread = True
        #: Rows that have left and have no answer yet.
        self.flying = 0
        #: What the rows that are held weigh.
        self.bytes = 0

    def __repr__(self) -> str:
        return f"<Flight: {self.flying} rows on their way of {self.window}>"

    @property
    def away(self) -> int:
        """Rows at which somebody may be: those of `flying` that do not have to leave again."""
        return self.flying - sum(map(len, self._again))

    @property
    def held(self) -> int:
        """Rows that are on their way, or wait for one that left before them."""
        return self.flying + len(self._known)

    @property
    def is_over(self) -> bool:
        """Whether every row of the input has its answer, and has been given."""
        return not (self._unread or self._again or self.held)

    @property
    def has_room(self) -> bool:
        """Whether another parcel may leave."""
        most = max(self.window, self._parcel)
        are_few = self.flying + self._parcel <= most and self.held + self._parcel <= AHEAD * most
        return are_few and self.bytes < self.window_bytes

    @property
    def could_read(self) -> bool:
        """Whether there is room for more of the input, and there may be more."""
        return self._unread and self.has_room

    def departures(self, is_late: Callable[[], bool] = lambda: False) -> Iterator[Parcel]:
        """
        Yield what may leave now; who asks sends it before asking for the next.

        Args:
            is_late: Says whether to leave the rest of the input for another time.
        """
        while self._again:
            yield self._again.popleft()
        while self.could_read:
            rows = self._next_rows(is_late)
            self.flying += len(rows)
            if rows:
                yield Parcel(rows, is_single=len(rows) == 1)
            if is_late():
                return

    def _next_rows(self, is_late: Callable[[], bool]) -> tuple[Row, ...]:
        rows, parcel_bytes, most = [], 0, self._parcel
        for row in self._rows:
            if self._in_order:
                self._order.append(row.position)
            heavy = weight(row.values)
            self.bytes += heavy
            if row.flaw:
                self._know(Answered(row, error=row.flaw))
                most -= 1
            else:
                rows.append(row)
                parcel_bytes += heavy
            if len(rows) >= most or parcel_bytes >= _HEAVY or is_late():
                break
        else:
            self._unread = False
        return tuple(rows)

    def arrived(self, answers: Iterable[Answered]) -> None:
        """
        Take in what is known of rows that were on their way.

        Args:
            answers: Each row's, once.
        """
        for answer in answers:
            self.flying -= 1
            self._know(answer)

    def _know(self, answer: Answered) -> None:
        self.bytes += weight(answer.output)
        self._known[answer.row.position] = answer

    def due(self) -> list[Answered]:
        """Return the answers that are due now, each once."""
        if self._in_order:
            due = []
            while self._order and self._order[0] in self._known:
                due.append(self._known.pop(self._order.popleft()))
        else:
            due = list(self._known.values())
            self._known.clear()
        self.bytes -= sum(weight(each.row.values) + weight(each.output) for each in due)
        return due

    def fell_apart(self, parcel: Parcel) -> None:
        """Have the rows of a parcel that failed as a whole leave again, each by itself."""
        self._again.extend(Parcel((row,), is_single=True) for row in parcel.rows)

    def lost(self, parcel: Parcel) -> None:
        """Have a parcel that nobody has any more leave again."""
        self._again.append(parcel)
