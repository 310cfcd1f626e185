"""The rows of a backfill that have been sent and not answered, and which are sent next.

Rule 1: this module knows no broker, no clock and no file.
Rule 2: at most ``window`` rows are pending, so the broker never holds more; and at most
        `MOST_WINDOWS` times as many are held here, with answers that wait for an earlier row:
        a slow worker's rows must not keep fast workers idle, nor memory grow without end.
Rule 3: nothing more is sent while the rows and answers held have ``window_bytes`` or more.
Rule 4: the input is read no further than that, and at one go no longer than the caller has
        time for: what has been read is sent, though a chunk might have more rows.
Rule 5: a chunk that is large enough in bytes gets no more rows: brokers limit messages.
Rule 6: a row with a flaw is not sent; the flaw is its answer.
Rule 7: where batches are formed by key, a chunk has rows of one key: some chunks' worth of rows
        are read at one go, and cut by their keys.
Rule 8: a chunk that fails as a whole is sent again row by row; a row that fails has failed.
Rule 9: a chunk that is lost is sent again, `MOST_RESENDS` times.
Rule 10: an error of the input is raised once the rows before it are answered.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from celery_batch.errors import DeadlineExceeded
from celery_batch.serialization.arrays import is_array, size_of

__all__ = [
    "TIMEOUT",
    "WINDOW_BYTES",
    "Answer",
    "Chunk",
    "Limits",
    "Row",
    "Unreadable",
    "Window",
    "byte_size",
]

#: Bytes counted for a number, and for any other small value.
_SMALL = 8

#: Members of a list by which the size of a long one is estimated.
_SAMPLE = 8

#: The types in most rows of numbers: checked first.
_NUMBERS = frozenset((int, float, bool, type(None)))

#: Windows of rows that may be held, most of them answered and waiting for an earlier row.
MOST_WINDOWS = 8

#: Bytes that may be held, unless another number is given.
WINDOW_BYTES = 64 << 20

#: Bytes from which on a chunk gets no more rows.
_CHUNK_BYTES = 4 << 20

#: Chunks' worth of rows that are read at one go, to be cut by key.
_CHUNKS_TO_CUT = 8

#: Seconds without any answer after which lost chunks are sent again.
TIMEOUT = 60.0

#: How often a chunk is sent again that is neither in the broker nor in a worker, without an answer.
MOST_RESENDS = 5

#: The error of a row that was sent again so often.
_NO_ANSWER = (
    f"{DeadlineExceeded.__name__}: was sent {MOST_RESENDS + 1} times; each time no worker had it"
    " any more, and no result was stored"
)


class Row(NamedTuple):
    """One row of the input."""

    #: Counted from 0, in the input's order.
    position: int
    #: Its name in the input; its number from 1 if it has no name.
    key: str
    #: One for each parameter of the batch function.
    values: tuple[Any, ...]
    #: Why it cannot be sent at all, as ``"Type: message"``; "" if it can.
    flaw: str = ""
    #: Where it begins in a file that has lines, counted from 1; else 0.
    line: int = 0
    #: A record with fields of other names is the first value, as a whole.
    is_whole: bool = False
    #: The item that a backfill in Python was given; None for a row read from a file.
    item: Any = None

    @property
    def place(self) -> str:
        """Where it is, in words."""
        return f"line {self.line}" if self.line else f"row {self.position + 1}"

    @property
    def title(self) -> str:
        """Where it is, in words, and its name if it has one."""
        return self.place if self.key == str(self.position + 1) else f"{self.place} ({self.key})"


class Answer(NamedTuple):
    """
    A row's output, or its error.

    Args:
        row: The row.
        output: The model's; None if the row failed.
        error: Why it failed, as ``"Type: message"``; "" if it did not.
    """

    row: Row
    output: Any = None
    error: str = ""

    @property
    def item(self) -> Any:
        """The item that a backfill in Python was given."""
        return self.row.item


@dataclass(frozen=True, slots=True)
class Unreadable:
    """Stands for a record that could not be read: where and why, and its name if known."""

    why: str
    key: str = ""


def byte_size(value: Any) -> int:
    """Estimate the bytes of a value: a character is one, and a few members stand for long lists."""
    if type(value) in _NUMBERS:
        return _SMALL
    if isinstance(value, (str, bytes, bytearray, memoryview)):
        return len(value)
    if isinstance(value, dict):
        return sum(byte_size(name) + byte_size(each) for name, each in value.items())
    if isinstance(value, (list, tuple)):
        if len(value) <= _SAMPLE:
            return sum(map(byte_size, value))
        sample = value[:: len(value) // _SAMPLE]
        return sum(map(byte_size, sample)) * len(value) // len(sample)
    return size_of(value) if is_array(value) else _SMALL


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How many rows are pending at once, and in what order their answers come."""

    #: Most pending rows.
    window: int
    #: Most rows in one message; never more than fit into one model call, so that no request waits
    #: longer for a chunk than for a batch.
    chunk_size: int
    #: Answers come in the input's order; else as they are known.
    in_order: bool = True
    #: Bytes of rows and answers held from which on nothing more is sent.
    window_bytes: int = WINDOW_BYTES
    #: Seconds without any answer after which lost chunks are sent again.
    patience: float = TIMEOUT
    #: Pending rows for each worker that answers, where that makes more than ``window``.
    rows_per_worker: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Chunk:
    """Rows that are sent in one message; a single row is sent as an ordinary call."""

    rows: tuple[Row, ...]
    #: How often it was lost and sent again.
    resends: int = 0

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def is_single(self) -> bool:
        """Whether it is one row."""
        return len(self.rows) == 1

    @property
    def columns(self) -> list[list[Any]]:
        """The rows' values, one list for each parameter."""
        return [list(column) for column in zip(*(row.values for row in self.rows), strict=True)]


def _until_error(rows: Iterator[Row], errors: list[Exception]) -> Iterator[Row]:
    """Yield rows until reading them raises; it has no reference to a window, which has it."""
    try:
        yield from rows
    except Exception as error:  # noqa: BLE001 (whatever a caller's iterator raises)
        errors.append(error)


class Window:
    """The rows of a backfill that are pending, or wait for the answer of an earlier row."""

    def __init__(
        self,
        rows: Iterable[Row],
        limits: Limits,
        key_of: Callable[[Row], Hashable] | None = None,
    ) -> None:
        #: Most pending rows; grows with the number of workers.
        self.size = limits.window
        self._limits = limits
        self._key_of = key_of
        self._input_errors: list[Exception] = []
        self._rows = _until_error(iter(rows), self._input_errors)
        self._resend: deque[Chunk] = deque()
        self._order: deque[int] = deque()
        self._answers: dict[int, Answer] = {}
        self._has_unread = True
        #: Rows that were sent, or are to be sent again, and have no answer yet.
        self.pending = 0
        #: Bytes of the rows and answers held.
        self.bytes = 0

    @property
    def sent(self) -> int:
        """How many pending rows are in the broker or in a worker, as far as is known."""
        return self.pending - sum(map(len, self._resend))

    @property
    def held(self) -> int:
        """How many rows are pending, or answered and not yet returned."""
        return self.pending + len(self._answers)

    @property
    def is_over(self) -> bool:
        """Whether the answers of all rows have been returned."""
        return not (self._has_unread or self._resend or self.held or self._input_errors)

    @property
    def can_read(self) -> bool:
        """Whether there is room for another chunk, and there may be more input."""
        chunk_size = self._read_size
        most = max(self.size, chunk_size)
        return (
            self._has_unread
            and self.pending + chunk_size <= most
            and self.held + chunk_size <= MOST_WINDOWS * most
            and self.bytes < self._limits.window_bytes
        )

    @property
    def _read_size(self) -> int:
        """Most rows that are read at one go."""
        size = self._limits.chunk_size
        return (
            size if self._key_of is None else max(size, min(_CHUNKS_TO_CUT * size, self.size // 2))
        )

    def next_chunks(self, is_late: Callable[[], bool] = lambda: False) -> Iterator[Chunk]:
        """Yield the chunks that may be sent now, until it is late to read more of the input."""
        if self._input_errors and not self.held:
            raise self._input_errors[0]
        while self._resend:
            yield self._resend.popleft()
        while self.can_read:
            rows = self._next_rows(is_late)
            self.pending += len(rows)
            yield from self._cut(rows)
            if is_late():
                return

    def _cut(self, rows: tuple[Row, ...]) -> Iterator[Chunk]:
        if self._key_of is None:
            if rows:
                yield Chunk(rows)
            return
        by_key: dict[Hashable, list[Row]] = {}
        for row in rows:
            by_key.setdefault(self._key_of(row), []).append(row)
        size = self._limits.chunk_size
        for alike in by_key.values():
            yield from (Chunk(tuple(alike[i : i + size])) for i in range(0, len(alike), size))

    def _next_rows(self, is_late: Callable[[], bool]) -> tuple[Row, ...]:
        rows, chunk_bytes, most = [], 0, self._read_size
        for row in self._rows:
            if self._limits.in_order:
                self._order.append(row.position)
            row_bytes = byte_size(row.values)
            self.bytes += row_bytes
            if row.flaw:
                self._add(Answer(row, error=row.flaw))
                most -= 1
            else:
                rows.append(row)
                chunk_bytes += row_bytes
            if len(rows) >= most or chunk_bytes >= _CHUNK_BYTES or is_late():
                break
        else:
            self._has_unread = False
        return tuple(rows)

    def add(self, answers: Iterable[Answer]) -> None:
        """Add the answers of pending rows."""
        for answer in answers:
            self.pending -= 1
            self._add(answer)

    def _add(self, answer: Answer) -> None:
        self.bytes += byte_size(answer.output)
        self._answers[answer.row.position] = answer

    def take_answers(self) -> list[Answer]:
        """Return each answer once, in the input's order if that is wanted."""
        if self._limits.in_order:
            taken = []
            while self._order and self._order[0] in self._answers:
                taken.append(self._answers.pop(self._order.popleft()))
        else:
            taken = list(self._answers.values())
            self._answers.clear()
        self.bytes -= sum(byte_size(each.row.values) + byte_size(each.output) for each in taken)
        return taken

    def split(self, chunk: Chunk) -> None:
        """Send the rows of a chunk that failed as a whole again, each by itself."""
        self._resend.extend(Chunk((row,)) for row in chunk.rows)

    def resend(self, chunks: Iterable[Chunk]) -> None:
        """Send chunks again that were not sent."""
        self._resend.extend(chunks)

    def resend_lost(self, chunks: Sequence[Chunk]) -> bool:
        """Send lost chunks again, each a few times; return whether rows have failed instead."""
        failed = [chunk for chunk in chunks if chunk.resends >= MOST_RESENDS]
        again = [chunk for chunk in chunks if chunk.resends < MOST_RESENDS]
        self._resend.extend(Chunk(chunk.rows, chunk.resends + 1) for chunk in again)
        self.add(Answer(row, error=_NO_ANSWER) for chunk in failed for row in chunk.rows)
        return bool(failed)
