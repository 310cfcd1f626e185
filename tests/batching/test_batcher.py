"""When a batch leaves, decision by decision."""

from __future__ import annotations

import pytest

from celery_batch.batching.batch import Batch, Reason, Request
from celery_batch.batching.batcher import Batcher, Wait
from celery_batch.batching.policy import BatchPolicy


@pytest.fixture
def batcher() -> Batcher[str]:
    """Batches of up to 3; max_wait of a second, linger of half a second."""
    return Batcher(BatchPolicy(max_batch_size=3, max_wait=1.0, linger=0.5))


def add(batcher: Batcher[str], items: str, *, at: float) -> None:
    """Add one request per letter."""
    for item in items:
        batcher.add(Request(item, arrived=at))


def what_left(decision: Batch[str] | Wait) -> tuple[str, Reason]:
    """Return a batch's items as one word, and its reason."""
    assert isinstance(decision, Batch)
    return "".join(decision.items), decision.reason


def test_empty_queue_names_no_time(batcher: Batcher[str]):
    """An empty queue changes only with a new request, so there is no time to ask again."""
    assert Wait(None) == batcher.next(now=7.0)


def test_full_batch_leaves_at_once(batcher: Batcher[str]):
    """A full batch does not wait."""
    add(batcher, "abc", at=0.0)

    assert ("abc", Reason.FULL) == what_left(batcher.next(now=0.0))
    assert 0 == len(batcher)


def test_what_does_not_fit_stays_in_the_queue(batcher: Batcher[str]):
    """Many requests leave in full batches, oldest first; the rest waits."""
    add(batcher, "abcdefgh", at=0.0)

    assert ("abc", Reason.FULL) == what_left(batcher.next(now=0.0))
    assert ("def", Reason.FULL) == what_left(batcher.next(now=0.0))
    assert Wait(0.5) == batcher.next(now=0.0)
    assert 2 == len(batcher)


def test_single_request_leaves_after_linger(batcher: Batcher[str]):
    """Without further requests a slot stops waiting after linger, long before max_wait."""
    add(batcher, "a", at=10.0)

    assert Wait(0.25) == batcher.next(now=10.25)
    assert Wait(1 / 1024) == batcher.next(now=10.5 - 1 / 1024)
    assert ("a", Reason.IDLE) == what_left(batcher.next(now=10.5))


def test_single_request_after_a_batch_of_one_leaves_at_once():
    """After a batch of one, a slot does not linger until several requests arrive together."""
    batcher = Batcher(BatchPolicy(max_batch_size=3, max_wait=1.0))
    add(batcher, "a", at=0.0)
    assert isinstance(batcher.next(now=0.0), Wait)
    batcher.next(now=0.5)
    add(batcher, "b", at=1.0)
    assert ("b", Reason.IDLE) == what_left(batcher.next(now=1.0))

    add(batcher, "cd", at=2.0)
    assert ("cd", Reason.IDLE) == what_left(batcher.next(now=2.0))
    add(batcher, "e", at=3.0)
    assert isinstance(batcher.next(now=3.0), Wait)


def test_a_slot_that_is_told_to_expect_more_lingers_after_a_batch_of_one():
    """Others may have come while it could not see them."""
    batcher = Batcher(BatchPolicy(max_batch_size=3, max_wait=1.0))
    add(batcher, "a", at=0.0)
    assert ("a", Reason.IDLE) == what_left(batcher.next(now=0.5))
    batcher.expect_more()
    add(batcher, "b", at=1.0)
    assert isinstance(batcher.next(now=1.0), Wait)

    add(batcher, "cd", at=1.001)
    assert ("bcd", Reason.FULL) == what_left(batcher.next(now=1.001))


def test_explicit_linger_holds_for_single_requests(batcher: Batcher[str]):
    """A linger that was set holds after a batch of one, too."""
    add(batcher, "a", at=0.0)
    batcher.next(now=0.5)
    add(batcher, "b", at=1.0)

    assert Wait(0.5) == batcher.next(now=1.0)


def test_every_new_request_restarts_linger(batcher: Batcher[str]):
    """Linger counts from the last arrival, not from the first."""
    add(batcher, "a", at=0.0)
    add(batcher, "b", at=0.375)

    assert Wait(0.375) == batcher.next(now=0.5)
    assert ("ab", Reason.IDLE) == what_left(batcher.next(now=0.875))


def test_oldest_request_bounds_the_wait(batcher: Batcher[str]):
    """However steadily requests arrive, the oldest leaves when it has waited max_wait."""
    add(batcher, "a", at=0.0)
    add(batcher, "b", at=0.875)

    assert Wait(0.125) == batcher.next(now=0.875)
    assert Wait(1 / 1024) == batcher.next(now=1 - 1 / 1024)
    assert ("ab", Reason.TIMEOUT) == what_left(batcher.next(now=1.0))


def test_requests_left_behind_keep_their_own_arrival(batcher: Batcher[str]):
    """A request that a full batch left behind times out by its own age."""
    add(batcher, "abcd", at=0.0)
    batcher.next(now=0.0)
    batcher.restart_linger(now=0.9375)

    assert Wait(0.0625) == batcher.next(now=0.9375)


def test_max_wait_of_zero_takes_what_waits():
    """With a max_wait of 0 a free slot takes all waiting requests, even a single one."""
    batcher = Batcher(BatchPolicy(max_batch_size=3, max_wait=0))
    add(batcher, "a", at=4.0)

    assert ("a", Reason.TIMEOUT) == what_left(batcher.next(now=4.0))


def test_ahead_of_a_free_slot_only_full_batches_leave(batcher: Batcher[str]):
    """Behind a running batch waiting costs nothing, so a batch that can still grow stays."""
    add(batcher, "ab", at=0.0)

    assert Wait(None) == batcher.next(now=60.0, full_only=True)

    add(batcher, "c", at=60.0)

    assert ("abc", Reason.FULL) == what_left(batcher.next(now=60.0, full_only=True))


def test_share_is_earned_once():
    """While an overtaken batch is ready, it earns the share, and waiting requests earn none."""
    batcher: Batcher[str] = Batcher(BatchPolicy(max_batch_size=2, low_priority_share=0.5))
    bulk = Request("B", 0.0, 9, rows=2)
    for request in [bulk, *(Request(item, 0.0, 0, rows=2) for item in "abcd")]:
        batcher.add(request)
    ready = [what_left(batcher.next(now=0.0, earns_share=False))[0] for _ in range(2)]

    assert ["a", "b"] == ready
    assert ["c", "B", "d"] == [what_left(batcher.next(now=0.0))[0] for _ in range(3)]


def test_batch_keeps_what_its_requests_earned():
    """A batch formed when no urgent request waits keeps its earned share."""
    batcher: Batcher[str] = Batcher(BatchPolicy(max_batch_size=4, low_priority_share=0.25))
    for item, urgency in [("B", 9), ("a", 0), ("b", 0)]:
        batcher.add(Request(item, 0.0, urgency, rows=4))
    batcher.next(now=0.0)
    batcher.next(now=0.0)
    batch = batcher.next(now=0.0)

    assert isinstance(batch, Batch)
    assert (["B"], 0.5) == (batch.items, batch.earned_part)


def test_batch_with_room_that_overtakes_is_urgent_and_not_full():
    """It could not grow, since the others did not fit; a larger size would not help."""
    batcher: Batcher[str] = Batcher(BatchPolicy(max_batch_size=2, low_priority_share=0.0))
    for item, urgency, rows in [("B", 9, 2), ("a", 0, 1)]:
        batcher.add(Request(item, 0.0, urgency, rows=rows))

    assert ("a", Reason.URGENT) == what_left(batcher.next(now=0.0, full_only=True))
    assert ("B", Reason.FULL) == what_left(batcher.next(now=0.0, full_only=True))


def test_linger_restarts_after_time_without_looking(batcher: Batcher[str]):
    """A slot lingers again after time in which arrivals could not be seen."""
    add(batcher, "a", at=0.0)
    batcher.restart_linger(now=0.75)

    assert Wait(0.25) == batcher.next(now=0.75)  # until the timeout: max_wait holds all the same
    assert ("a", Reason.TIMEOUT) == what_left(batcher.next(now=1.0))


def test_request_that_arrived_during_a_large_batch_waits_for_its_callers(batcher: Batcher[str]):
    """It and the callers of the batch join, and do not alternate for good."""
    add(batcher, "a", at=0.0)
    batcher.batch_ended(now=60.0, rows=3, urgency=0)

    assert Wait(0.5) == batcher.next(now=60.0)
    add(batcher, "bc", at=60.25)
    assert ("abc", Reason.FULL) == what_left(batcher.next(now=60.25))


def test_request_waits_for_the_callers_of_a_batch_once(batcher: Batcher[str]):
    """However many batches end meanwhile, its max_wait begins again only once."""
    add(batcher, "a", at=0.0)
    for now in (60.0, 60.25, 60.75):
        batcher.batch_ended(now=now, rows=3, urgency=0)

    assert Wait(0.25) == batcher.next(now=60.75)
    assert ("a", Reason.TIMEOUT) == what_left(batcher.next(now=61.0))


@pytest.mark.parametrize(("items", "rows", "urgency"), [("ab", 4, 0), ("a", 2, 0), ("a", 3, 9)])
def test_no_other_request_waits_for_the_callers_of_a_batch(
    batcher: Batcher[str], items: str, rows: int, urgency: int
):
    """Half as many as the batch are not few; and requests of another urgency do not wait."""
    add(batcher, items, at=0.0)
    batcher.batch_ended(now=60.0, rows=rows, urgency=urgency)

    assert (items, Reason.TIMEOUT) == what_left(batcher.next(now=60.0))


def test_restart_before_the_last_arrival_changes_nothing(batcher: Batcher[str]):
    """Linger never counts from before the last arrival."""
    add(batcher, "a", at=2.0)
    batcher.restart_linger(now=1.0)

    assert Wait(0.25) == batcher.next(now=2.25)
    assert ("a", Reason.IDLE) == what_left(batcher.next(now=2.5))


def test_suspect_goes_first_and_alone():
    """A request that may kill its process runs alone, also behind a running batch."""
    batcher: Batcher[str] = Batcher(BatchPolicy(max_batch_size=2, max_wait=1.0))
    batcher.add(Request("a", arrived=1.0))
    batcher.add(Request("suspect", arrived=0.5, alone=True))
    batcher.add(Request("b", arrived=1.0))

    assert (3, True, 0.5) == (len(batcher), batcher.is_full, batcher.oldest)

    suspect = batcher.next(now=1.0, full_only=True)

    assert (["suspect"], Reason.ALONE) == _named(suspect)
    assert isinstance(suspect, Batch)
    assert suspect.is_suspect
    assert (["a", "b"], Reason.FULL) == _named(batcher.next(now=1.0))


def add_redelivered(batcher: Batcher[str], items: str, *, at: float = 0.0, key: str = "") -> None:
    """Add one request that was delivered again per letter."""
    for item in items:
        batcher.add(Request(item, arrived=at, key=key, redelivered=True))


def suspects_left(batcher: Batcher[str], now: float = 0.0) -> str:
    """Return the items of the next batch, which ends with answers, as one word."""
    items, _ = what_left(batcher.next(now, full_only=True))
    batcher.redelivered_ended(now, len(items))
    return items


def test_those_delivered_again_run_together_once_some_did_well():
    """The first runs alone, each batch doubles the next, and all go before the others."""
    batcher: Batcher[str] = Batcher(BatchPolicy(max_batch_size=4, max_wait=1.0))
    add(batcher, "xy", at=0.0)
    add_redelivered(batcher, "abcdefghijkl")

    assert ["a", "bc", "defg", "hijk", "l"] == [suspects_left(batcher) for _ in range(5)]
    assert ("xy", Reason.TIMEOUT) == what_left(batcher.next(now=1.0))


def test_those_delivered_again_run_alone_until_the_first_has_ended():
    """While nothing is known of them, each runs alone; so they do after a minute without any."""
    batcher: Batcher[str] = Batcher(BatchPolicy(max_batch_size=4))
    add_redelivered(batcher, "abcdef")
    first = [what_left(batcher.next(0.0))[0] for _ in range(2)]
    batcher.redelivered_ended(0.0, 1)
    then = what_left(batcher.next(0.0))[0]

    assert ["a", "b", "cd"] == [*first, then]
    assert "e" == what_left(batcher.next(61.0))[0]


def test_what_runs_alone_shares_no_batch_with_those_delivered_again():
    """Nor do those whose keys differ, or whose cost does not fit."""
    policy = BatchPolicy(max_batch_size=8, max_batch_cost=3.0)
    batcher: Batcher[str] = Batcher(policy)
    batcher.redelivered_ended(0.0, 8)
    add_redelivered(batcher, "ab", key="one")
    add_redelivered(batcher, "c", key="two")
    batcher.add(Request("d", 0.0, alone=True))
    for name in "ef":
        batcher.add(Request(name, 0.0, redelivered=True, cost=2.0))

    assert ["ab", "c", "d", "e", "f"] == [suspects_left(batcher) for _ in range(5)]


@pytest.mark.parametrize("place", range(40))
def test_one_that_ends_its_worker_is_soon_alone(place: int):
    """All before it are answered meanwhile, and its worker ends a few times only."""
    waiting = [chr(ord("A") + number) for number in range(40)]
    culprit, ends, batch = waiting[place], 0, ""
    while batch != culprit:
        batcher: Batcher[str] = Batcher(BatchPolicy(max_batch_size=16))
        add_redelivered(batcher, "".join(waiting))
        while culprit not in (batch := what_left(batcher.next(0.0))[0]):
            batcher.redelivered_ended(0.0, len(batch))
            waiting = [each for each in waiting if each not in batch]
        ends += 1

    assert culprit == waiting[0]
    assert ends <= 6


def test_new_request_waits_behind_suspects():
    """Requests that run alone go before all others, and their rows count."""
    batcher: Batcher[str] = Batcher(BatchPolicy(max_batch_size=3, max_wait=1.0))
    batcher.add(Request("urgent", arrived=0.0, urgency=1, rows=2))
    batcher.add(Request("bulk", arrived=0.0, urgency=9, rows=4))
    first = batcher.urgency
    batcher.add(Request("suspect", arrived=0.0, urgency=9, alone=True))

    assert (1, 9) == (first, batcher.urgency)
    assert (2, 3) == batcher.before(urgency=5)
    assert (3, 7) == batcher.before(urgency=9)
    assert 2 == batcher.rows_of(urgency=1)
    assert 7 == batcher.rows


def test_clearing_returns_suspects_too():
    """Requests that run alone are returned as well, first of all."""
    batcher: Batcher[str] = Batcher(BatchPolicy(max_batch_size=2))
    batcher.add(Request("a", arrived=1.0))
    batcher.add(Request("suspect", arrived=2.0, alone=True))

    assert 1.0 == batcher.oldest
    assert ["suspect", "a"] == [request.item for request in batcher.clear()]
    assert (0, None) == (len(batcher), batcher.oldest)


def test_deadline_ends_the_wait_of_a_suspect():
    """It is removed when its deadline passes; one without a deadline waits on."""
    batcher: Batcher[str] = Batcher(BatchPolicy(max_batch_size=2))
    assert batcher.next_deadline is None
    batcher.add(Request("bulk", arrived=0.0, alone=True))
    batcher.add(Request("late", arrived=0.0, alone=True, deadline=7.0))

    assert (7.0, 0.0) == (batcher.next_deadline, batcher.oldest)
    assert [] == batcher.expire(now=6.9)
    assert ["late"] == [request.item for request in batcher.expire(now=7.0)]
    assert (["bulk"], Reason.ALONE) == _named(batcher.next(now=8.0))


def _named(decision: object) -> tuple[list[str], Reason]:
    assert isinstance(decision, Batch)
    return decision.items, decision.reason


def test_removed_requests_do_not_leave():
    """Those that run alone can be removed as well as the others."""
    batcher: Batcher[str] = Batcher(BatchPolicy(2, 1.0))
    for name, alone in (("a", True), ("b", False), ("c", True), ("d", False), ("e", False)):
        batcher.add(Request(name, 0.0, alone=alone))
    removed = batcher.remove(lambda request: request.item in "ab")

    assert ["a", "b"] == [request.item for request in removed]
    assert (3, 2) == (len(batcher), batcher.work_before(0) - 1)
