"""
How many waiting requests one batch takes, where requests have many rows.

Rule 1: a batch takes requests from the front of the queue, in their order, until it has
        ``max_batch_size`` rows. The first that does not fit stays, and so do all behind it:
        a smaller request never overtakes a larger one.
Rule 2: a request with more rows than a batch starts a batch of its own, which runs in
        several model calls; requests that came before it do not wait for these.
Rule 3: a request that does not fit into the rest of a batch joins it all the same, and the
        batch runs in two model calls, if these take more requests than two batches would.
Rule 4: the last model call is filled with the requests that come next.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

__all__ = ["pack"]


def pack(size: int, rows: Iterable[int]) -> int:
    """
    Return how many requests of a queue form the next batch.

    Args:
        size: Most rows in one model call, at least 1.
        rows: How many rows each waiting request has, at least 1, in their order.
    """
    waiting = iter(rows)
    first_count, first_room, misfit = _fill(size, waiting)
    if not misfit or not first_room:
        return first_count
    if not first_count:
        more, *_ = _fill(-misfit % size, waiting)
        return 1 + more
    if misfit > size:
        return first_count
    # Two batches would be the first and this second one, and leave the room of both unused.
    second_count, second_room, second_misfit = _fill(size - misfit, waiting)
    room = first_room + second_room
    if not 0 < second_misfit <= room:
        return first_count
    more, *_ = _fill(room - second_misfit, waiting)
    return first_count + 1 + second_count + 1 + more


def _fill(room: int, waiting: Iterator[int]) -> tuple[int, int, int]:
    """Return how many fit, the room they leave, and the rows of the first misfit; 0 if none."""
    count = 0
    for rows in waiting:
        if rows > room:
            return count, room, rows
        room -= rows
        count += 1
    return count, room, 0
