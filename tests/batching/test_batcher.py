"""When a batch leaves, decision by decision."""

from __future__ import annotations

import pytest

from celery_batch.batching.batch import Batch, Reason
from celery_batch.batching.batcher import Batcher, Done, Wait
from celery_batch.batching.policy import BatchPolicy
from celery_batch.batching.request import Request


@pytest.fixture
def batcher() -> Batcher[str]:
    """Batches of up to 3; a second for company, half of it without a newcomer."""
    return Batcher(BatchPolicy(max_batch_size=3, max_wait=1.0, linger=0.5))


def add(batcher: Batcher[str], items: str, *, at: float) -> None:
    """Put one request per letter in line."""
    for item in items:
        batcher.add(Request(item, arrived=at))


def what_left(decision: Batch[str] | Wait | Done) -> tuple[str, Reason]:
    """Return a batch's items as one word, and its reason."""
    assert isinstance(decision, Batch)
    return "".join(decision.items), decision.reason


def test_nobody_in_line_is_nothing_to_wait_for(batcher: Batcher[str]):
    """An empty line changes only when somebody comes, so there is no time to ask again."""
    assert Wait(None) == batcher.next(now=7.0)


def test_full_batch_leaves_at_once(batcher: Batcher[str]):
    """As many requests as fit leave without waiting for anything."""
    add(batcher, "abc", at=0.0)

    assert ("abc", Reason.FULL) == what_left(batcher.next(now=0.0))
    assert 0 == len(batcher)


def test_one_short_of_full_still_waits(batcher: Batcher[str]):
    """A batch with room left waits for company."""
    add(batcher, "ab", at=0.0)

    assert Wait(0.5) == batcher.next(now=0.0)
    assert 2 == len(batcher)


def test_what_does_not_fit_stays_in_line(batcher: Batcher[str]):
    """A crowd leaves in batches of full size, oldest first; the rest waits."""
    add(batcher, "abcdefgh", at=0.0)

    assert ("abc", Reason.FULL) == what_left(batcher.next(now=0.0))
    assert ("def", Reason.FULL) == what_left(batcher.next(now=0.0))
    assert Wait(0.5) == batcher.next(now=0.0)
    assert 2 == len(batcher)


def test_lone_request_leaves_after_linger(batcher: Batcher[str]):
    """With nobody else coming a slot stops waiting after linger, long before max_wait."""
    add(batcher, "a", at=10.0)

    assert Wait(0.25) == batcher.next(now=10.25)
    assert Wait(1 / 1024) == batcher.next(now=10.5 - 1 / 1024)
    assert ("a", Reason.IDLE) == what_left(batcher.next(now=10.5))


def test_lone_request_after_a_lone_one_leaves_at_once():
    """After a batch of one, company is not waited for until some has shown."""
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


def test_linger_that_was_given_holds_for_lone_requests(batcher: Batcher[str]):
    """Who says how long to linger is taken at the word, company or none."""
    add(batcher, "a", at=0.0)
    batcher.next(now=0.5)
    add(batcher, "b", at=1.0)

    assert Wait(0.5) == batcher.next(now=1.0)


def test_every_newcomer_starts_the_silence_anew(batcher: Batcher[str]):
    """Linger counts from the last arrival, not from the first."""
    add(batcher, "a", at=0.0)
    add(batcher, "b", at=0.375)

    assert Wait(0.375) == batcher.next(now=0.5)
    assert ("ab", Reason.IDLE) == what_left(batcher.next(now=0.875))


def test_oldest_request_bounds_the_wait(batcher: Batcher[str]):
    """However steadily newcomers arrive, the oldest leaves when it has waited max_wait."""
    add(batcher, "a", at=0.0)
    add(batcher, "b", at=0.875)

    assert Wait(0.125) == batcher.next(now=0.875)
    assert Wait(1 / 1024) == batcher.next(now=1 - 1 / 1024)
    assert ("ab", Reason.TIMEOUT) == what_left(batcher.next(now=1.0))


def test_wait_counts_from_arrival_not_from_the_question(batcher: Batcher[str]):
    """A request that waited while all slots were busy leaves as soon as one is free."""
    add(batcher, "a", at=0.0)

    assert ("a", Reason.TIMEOUT) == what_left(batcher.next(now=60.0))


def test_left_over_requests_keep_their_own_arrival(batcher: Batcher[str]):
    """What stays behind a full batch is due by its own age."""
    add(batcher, "abcd", at=0.0)
    batcher.next(now=0.0)
    batcher.looked_away(now=0.9375)

    assert Wait(0.0625) == batcher.next(now=0.9375)


def test_no_wait_means_whoever_is_there():
    """With a max_wait of 0 a free slot takes what is in line, were it one request."""
    batcher = Batcher(BatchPolicy(max_batch_size=3, max_wait=0))
    add(batcher, "a", at=4.0)

    assert ("a", Reason.TIMEOUT) == what_left(batcher.next(now=4.0))


def test_no_linger_means_not_to_wait_for_company():
    """With a linger of 0 a free slot never stays idle while somebody waits."""
    batcher = Batcher(BatchPolicy(max_batch_size=3, max_wait=1.0, linger=0))
    add(batcher, "ab", at=4.0)

    assert ("ab", Reason.IDLE) == what_left(batcher.next(now=4.0))


def test_batches_of_one_leave_at_once():
    """A maximum of 1 never waits and never pairs."""
    batcher = Batcher(BatchPolicy(max_batch_size=1))
    add(batcher, "ab", at=0.0)

    assert ("a", Reason.FULL) == what_left(batcher.next(now=0.0))
    assert ("b", Reason.FULL) == what_left(batcher.next(now=0.0))
    assert Wait(None) == batcher.next(now=0.0)


def test_ahead_of_a_free_slot_only_full_batches_leave(batcher: Batcher[str]):
    """Behind a running batch waiting is free, so a batch that can still grow stays."""
    add(batcher, "ab", at=0.0)

    assert Wait(None) == batcher.next(now=60.0, ahead=True)

    add(batcher, "c", at=60.0)

    assert ("abc", Reason.FULL) == what_left(batcher.next(now=60.0, ahead=True))


def test_overtaken_twice_over_is_owed_once():
    """A batch that lies ready is owed its share itself, so those in line earn none meanwhile."""
    paid: Batcher[str] = Batcher(BatchPolicy(max_batch_size=2, low_priority_share=0.5))
    bulk = Request("B", 0.0, 9, rows=2)
    for request in [bulk, *(Request(item, 0.0, 0, rows=2) for item in "abcd")]:
        paid.add(request)
    lies_ready = [what_left(paid.next(now=0.0, owes=False))[0] for _ in range(2)]

    assert ["a", "b"] == lies_ready
    assert ["c", "B", "d"] == [what_left(paid.next(now=0.0))[0] for _ in range(3)]


def test_batch_takes_along_what_it_was_owed_in_line():
    """Made ready when nobody urgent waits, it is not to be overtaken as if it were new."""
    batcher: Batcher[str] = Batcher(BatchPolicy(max_batch_size=4, low_priority_share=0.25))
    for item, urgency in [("B", 9), ("a", 0), ("b", 0)]:
        batcher.add(Request(item, 0.0, urgency, rows=4))
    batcher.next(now=0.0)
    batcher.next(now=0.0)
    batch = batcher.next(now=0.0)

    assert isinstance(batch, Batch)
    assert (["B"], 0.5) == (batch.items, batch.guaranteed)


def test_batch_that_goes_before_others_and_has_room_is_not_called_full():
    """It could not grow, as these did not fit in; a larger size would not help it."""
    batcher: Batcher[str] = Batcher(BatchPolicy(max_batch_size=2, low_priority_share=0.0))
    for item, urgency, rows in [("B", 9, 2), ("a", 0, 1)]:
        batcher.add(Request(item, 0.0, urgency, rows=rows))

    assert ("a", Reason.URGENT) == what_left(batcher.next(now=0.0, ahead=True))
    assert ("B", Reason.FULL) == what_left(batcher.next(now=0.0, ahead=True))


def test_silence_that_nobody_could_see_does_not_count(batcher: Batcher[str]):
    """After looking away a slot lingers anew: newcomers may stand at the door unread."""
    add(batcher, "a", at=0.0)
    batcher.looked_away(now=0.75)

    assert Wait(0.25) == batcher.next(now=0.75)  # until due: max_wait holds all the same
    assert ("a", Reason.TIMEOUT) == what_left(batcher.next(now=1.0))


def test_one_who_came_while_a_crowd_was_answered_waits_for_it(batcher: Batcher[str]):
    """A crowd and one beside it come together, and do not take turns for good."""
    add(batcher, "a", at=0.0)
    batcher.group_ended(now=60.0, rows=3, urgency=0)

    assert Wait(0.5) == batcher.next(now=60.0)
    add(batcher, "bc", at=60.25)
    assert ("abc", Reason.FULL) == what_left(batcher.next(now=60.25))


def test_one_who_waits_for_a_crowd_does_so_once(batcher: Batcher[str]):
    """However many crowds are answered beside it, it is due when the first has had its time."""
    add(batcher, "a", at=0.0)
    for now in (60.0, 60.25, 60.75):
        batcher.group_ended(now=now, rows=3, urgency=0)

    assert Wait(0.25) == batcher.next(now=60.75)
    assert ("a", Reason.TIMEOUT) == what_left(batcher.next(now=61.0))


@pytest.mark.parametrize(("items", "rows", "urgency"), [("ab", 4, 0), ("a", 2, 0), ("a", 3, 9)])
def test_nobody_else_waits_for_a_crowd(batcher: Batcher[str], items: str, rows: int, urgency: int):
    """Half as many as the crowd are one themselves; and who is overtaken comes when he may."""
    add(batcher, items, at=0.0)
    batcher.group_ended(now=60.0, rows=rows, urgency=urgency)

    assert (items, Reason.TIMEOUT) == what_left(batcher.next(now=60.0))


def test_looking_away_before_the_last_arrival_changes_nothing(batcher: Batcher[str]):
    """Silence never counts from before the last newcomer."""
    add(batcher, "a", at=2.0)
    batcher.looked_away(now=1.0)

    assert Wait(0.25) == batcher.next(now=2.25)
    assert ("a", Reason.IDLE) == what_left(batcher.next(now=2.5))


def test_draining_leaves_nobody_behind(batcher: Batcher[str]):
    """When nobody else will come, the rest leaves at once, full batches first, and that is all."""
    add(batcher, "abcd", at=0.0)
    batcher.drain()

    assert ("abc", Reason.FULL) == what_left(batcher.next(now=0.0))
    assert ("d", Reason.DRAINED) == what_left(batcher.next(now=0.0))
    assert Done() == batcher.next(now=0.0)
    assert Done() == batcher.next(now=0.0, ahead=True)


def test_draining_does_not_jump_a_busy_slot(batcher: Batcher[str]):
    """The last, smaller batch too waits until its slot is free."""
    add(batcher, "a", at=0.0)
    batcher.drain()

    assert Wait(None) == batcher.next(now=0.0, ahead=True)
    assert ("a", Reason.DRAINED) == what_left(batcher.next(now=0.0))


def test_clearing_gives_everybody_back(batcher: Batcher[str]):
    """Who has not left can be had back, oldest first, and is then forgotten."""
    add(batcher, "ab", at=0.0)
    left = batcher.clear()

    assert [Request("a", 0.0), Request("b", 0.0)] == left
    assert 0 == len(batcher)
    assert Wait(None) == batcher.next(now=60.0)


def test_oldest_tells_who_waits_longest(batcher: Batcher[str]):
    """It is the arrival of the head of the line, None where there is no line."""
    assert batcher.oldest is None

    add(batcher, "a", at=1.0)
    add(batcher, "b", at=2.0)

    assert 1.0 == batcher.oldest


def test_batcher_says_how_it_stands(batcher: Batcher[str]):
    """A log line shows how many wait, and whether anybody else may come."""
    add(batcher, "ab", at=0.0)

    assert "<Batcher open: 2 waiting of 3>" == repr(batcher)

    batcher.drain()

    assert "<Batcher draining: 2 waiting of 3>" == repr(batcher)


def test_suspect_goes_first_and_alone():
    """Who may take processes down goes without company, also behind a running batch."""
    batcher: Batcher[str] = Batcher(BatchPolicy(max_batch_size=2, max_wait=1.0))
    batcher.add(Request("a", arrived=1.0))
    batcher.add(Request("suspect", arrived=0.5, alone=True))
    batcher.add(Request("b", arrived=1.0))

    assert (3, True, 0.5) == (len(batcher), batcher.is_full, batcher.oldest)
    assert (["suspect"], Reason.ALONE) == _named(batcher.next(now=1.0, ahead=True))
    assert (["a", "b"], Reason.FULL) == _named(batcher.next(now=1.0))


def test_newcomer_waits_behind_suspects_as_well():
    """Requests that go alone go before everybody, and their rows count for who comes next."""
    batcher: Batcher[str] = Batcher(BatchPolicy(max_batch_size=3, max_wait=1.0))
    batcher.add(Request("urgent", arrived=0.0, urgency=1, rows=2))
    batcher.add(Request("patient", arrived=0.0, urgency=9, rows=4))
    first = batcher.urgency
    batcher.add(Request("suspect", arrived=0.0, urgency=9, alone=True))

    assert (1, 9) == (first, batcher.urgency)
    assert (2, 3) == batcher.before(urgency=5)
    assert (3, 7) == batcher.before(urgency=9)
    assert 2 == batcher.rows_of(urgency=1)
    assert 7 == batcher.rows


def test_suspects_are_given_back_too():
    """Clearing the line forgets nobody."""
    batcher: Batcher[str] = Batcher(BatchPolicy(max_batch_size=2))
    batcher.add(Request("a", arrived=1.0))
    batcher.add(Request("suspect", arrived=2.0, alone=True))

    assert 1.0 == batcher.oldest
    assert ["suspect", "a"] == [request.item for request in batcher.clear()]
    assert (0, None) == (len(batcher), batcher.oldest)


def test_deadline_ends_the_wait_of_a_suspect():
    """Whose time is up before a slot is free is given up; who has no deadline waits on."""
    batcher: Batcher[str] = Batcher(BatchPolicy(max_batch_size=2))
    assert batcher.next_deadline is None
    batcher.add(Request("patient", arrived=0.0, alone=True))
    batcher.add(Request("late", arrived=0.0, alone=True, deadline=7.0))

    assert (7.0, 0.0) == (batcher.next_deadline, batcher.oldest)
    assert [] == batcher.expire(now=6.9)
    assert ["late"] == [request.item for request in batcher.expire(now=7.0)]
    assert (["patient"], Reason.ALONE) == _named(batcher.next(now=8.0))


def _named(decision: object) -> tuple[list[str], Reason]:
    assert isinstance(decision, Batch)
    return decision.items, decision.reason
