"""Which rows of a batch run, and which output each gets."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from celery_batch.items.rows import CallRows, Chunk, columns_of
from celery_batch.runtime.runner import Outcome
from celery_batch.serialization.row_digest import RowDigest
from celery_batch.telemetry.report import Reuse
from celery_batch.worker.executor.row_reuse import RowReuse
from celery_batch.worker.redis.answer_cache import Found


class Answers:
    """A cache that knows some answers, in place of one in Redis."""

    def __init__(self, *known: int) -> None:
        self.known = {digest_of(each): f"cached {each}" for each in known}
        self.stored: dict[bytes, Any] = {}
        self.ttl = 1.0

    def look_up(self, digests: list[bytes]) -> Found:
        """Return what is known of these."""
        found = {each: self.known[each] for each in digests if each in self.known}
        return Found(found, b"an epoch")

    def store(self, epoch: bytes, answers: list[tuple[bytes, Any]]) -> None:
        """Remember answers."""
        assert b"an epoch" == epoch
        self.stored.update(answers)


DIGEST = RowDigest("reuse")


def digest_of(number: int) -> bytes:
    """Return the digest of a row with one number."""
    found = DIGEST.of((number,))
    assert found is not None
    return found


def run(numbers: list[Any], cache: Answers | None) -> tuple[list[Any], list[Any], Any]:
    """Return which numbers run, the output of each, and what was known of them."""
    reused = RowReuse(DIGEST, cache).look_up([numbers])  # type: ignore[arg-type]
    (running,) = reused.columns([numbers])
    outputs = [f"computed {each}" for each in running]
    if cache is not None:
        reused.store(outputs)
    return running, reused.outputs(outputs), reused


def test_equal_rows_run_once():
    """Each gets the output of the first."""
    running, outputs, reused = run([1, 2, 1, 1, 3, 2], None)

    assert [1, 2, 3] == running
    assert [f"computed {each}" for each in (1, 2, 1, 1, 3, 2)] == outputs
    assert Reuse(hits=0, misses=0, duplicates=3) == reused.counts


def test_cached_rows_do_not_run():
    """The others do, and are stored."""
    cache = Answers(1, 3)
    running, outputs, reused = run([1, 2, 3, 1, 2], cache)

    assert [2] == running
    assert ["cached 1", "computed 2", "cached 3", "cached 1", "computed 2"] == outputs
    assert Reuse(hits=3, misses=1, duplicates=1) == reused.counts
    assert {digest_of(2): "computed 2"} == cache.stored


def test_rows_that_cannot_be_compared_all_run():
    """They are neither looked up nor stored."""
    odd = {1, 2}
    cache = Answers()
    running, _, reused = run([odd, odd], cache)

    assert [odd, odd] == running
    assert Reuse(hits=0, misses=2, duplicates=0) == reused.counts
    assert not cache.stored


def test_errors_are_not_stored():
    """Neither is a row that has no outcome yet."""
    cache = Answers()
    reused = RowReuse(DIGEST, cache).look_up([[1, 2, 3]])  # type: ignore[arg-type]
    reused.store(["fine", Outcome(error=ValueError()), Outcome(again=True)])

    assert {digest_of(1): "fine"} == cache.stored


REQUESTS = st.lists(
    st.one_of(
        st.integers(0, 5).map(lambda number: (number,)),
        st.lists(st.integers(0, 5), min_size=1, max_size=4).map(
            lambda numbers: Chunk((numbers,), len(numbers))
        ),
    ),
    min_size=1,
)


@given(REQUESTS, st.sets(st.integers(0, 5)), st.data())
def test_what_is_left_of_a_batch_is_as_if_the_rest_had_never_been(
    requests: list[CallRows], known: set[int], data: st.DataObject
):
    """Requests that expire leave out their own rows only."""
    dropped = data.draw(st.sets(st.integers(0, len(requests) - 1), max_size=len(requests) - 1))
    reuse = RowReuse(DIGEST, Answers(*known))  # type: ignore[arg-type]
    rest = [each for number, each in enumerate(requests) if number not in dropped]
    left = reuse.look_up(columns_of(requests)).without(requests, dropped)
    alone = reuse.look_up(columns_of(rest))

    assert (alone.places, alone.running) == (left.places, left.running)
    assert alone.counts == left.counts
