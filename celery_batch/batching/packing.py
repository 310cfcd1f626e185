"""

How many waiting rows a batch takes.

Rule 1: a batch takes the head of the line, as it stands, until it has
        ``max_batch_size`` rows; whoever does not fit stays, and so does everybody
        behind it: nobody is overtaken by somebody smaller.
Rule 2: a request of more rows than a batch has begins a batch of its own, which
        runs in several slices; nobody who came before it has to sit that out.
Rule 3: one that merely does not fit into what is left goes along, and the batch has
        a second slice, if two slices then take more of the line than two batches.
Rule 4: the last slice is filled up with those who come next; that is the end.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

__all__ = ["portion"]


def portion(size: int, line: Iterable[int]) -> int:
    """
    Return how many requests of a line go together.

    Args:
        size: Most rows in one slice, at least 1.
        line: How many rows each request has, at least 1, in their order.
    """
    rows = iter(line)
    taken, room, misfit = _fill(size, rows)
    if not misfit or not room:
        return taken
    if not taken:
        more, *_ = _fill(-misfit % size, rows)
        return 1 + more
    if misfit > size:
        return taken
    with_it, room_apart, beyond = _fill(size - misfit, rows)
    if not 0 < beyond <= room_apart + room:
        return taken
    more, *_ = _fill(room_apart + room - beyond, rows)
    return taken + 1 + with_it + 1 + more


def _fill(room: int, rows: Iterator[int]) -> tuple[int, int, int]:
    """Return how many fit, the room they leave, and the rows of the first misfit; 0 if none."""
    count = 0
    for each in rows:
        if each > room:
            return count, room, each
        room -= each
        count += 1
    return count, room, 0
