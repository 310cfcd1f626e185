"""Batches by key: who shares one, which key goes first, and what 10,000 keys cost."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Hashable
from itertools import count
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from celery_batch.batching.batch import Batch, Reason, Request
from celery_batch.batching.batcher import Wait
from celery_batch.batching.keyed_batcher import KeyedBatcher
from celery_batch.batching.policy import BatchPolicy

TOLERANCE = 1e-9


def batcher(size: int = 4, max_wait: float = 1.0, **options: Any) -> KeyedBatcher[str]:
    """Return an empty queue."""
    return KeyedBatcher(BatchPolicy(size, max_wait, **{"linger": 0.5, **options}))


def add(queue: KeyedBatcher[str], keys: str, now: float = 0.0, **fields: Any) -> None:
    """Add a request for each letter, which is its key."""
    for key in keys:
        queue.add(Request(key, now, key=key, **fields))


def taken(queue: KeyedBatcher[str], now: float, **options: bool) -> str:
    """Return the keys of the requests of the next batch; "" if there is none."""
    found = queue.next(now, **options)
    return "".join(found.items) if isinstance(found, Batch) else ""


def test_only_requests_of_one_key_share_a_batch():
    """A full batch leaves; others wait for more of their own key."""
    queue = batcher()
    add(queue, "abababac")
    found = queue.next(0.0)

    assert isinstance(found, Batch)
    assert ("a", "aaaa", Reason.FULL) == (found.key, "".join(found.items), found.reason)
    assert Wait(0.5) == queue.next(0.0)
    assert (4, 2) == (len(queue), queue.keys)


def test_a_slot_is_woken_for_a_key_only_when_it_is_due():
    """A request that has come since the key was put into its order makes that later."""
    queue = batcher()
    add(queue, "a", 0.0)
    add(queue, "a", 0.2)

    assert Wait(pytest.approx(0.5)) == queue.next(0.2)


def test_each_key_has_its_own_linger():
    """A key that gets no more requests does not wait for those that do."""
    queue = batcher()
    add(queue, "ab", 0.0)
    add(queue, "b", 0.4)

    assert "a" == taken(queue, 0.5)
    assert Wait(pytest.approx(0.1)) == queue.next(0.8)
    assert ("bb", Reason.IDLE) == (taken(queue, 0.9), Reason.IDLE)


def test_each_key_has_its_own_max_wait():
    """It counts from the key's oldest request, however many others come."""
    queue = batcher(linger=1.0)
    add(queue, "b", 0.2)
    for n in range(4):
        add(queue, "a", n * 0.3)

    assert Reason.FULL == queue.next(0.9).reason  # type: ignore[union-attr]
    add(queue, "b", 0.9)
    assert Wait(pytest.approx(0.2)) == queue.next(1.0)
    assert Reason.TIMEOUT == queue.next(1.2).reason  # type: ignore[union-attr]


def test_the_end_of_a_batch_lets_its_own_key_wait():
    """Its callers may call again; those of other keys do not wait for them."""
    queue = batcher()
    add(queue, "ab", 0.0)
    queue.batch_ended(0.4, 4, 0, "a")
    queue.batch_ended(0.4, 4, 0, "nobody's")

    assert "b" == taken(queue, 0.5)
    assert Wait(pytest.approx(0.2)) == queue.next(0.7)
    assert "a" == taken(queue, 0.9)


def test_a_linger_that_begins_anew_holds_for_all_keys():
    """The worker was busy elsewhere, and could not see what came."""
    queue = batcher()
    add(queue, "ab", 0.0)
    queue.restart_linger(0.4)

    assert Wait(pytest.approx(0.3)) == queue.next(0.6)
    assert "ab" == taken(queue, 0.9) + taken(queue, 0.9)


def test_a_key_of_single_requests_does_not_linger():
    """After a batch of one of its key, a free slot takes the next request at once."""
    queue = batcher(linger=None)
    add(queue, "aabb", 0.0)
    assert "aabb" == taken(queue, 1.0) + taken(queue, 1.0)
    add(queue, "c", 2.0)
    assert "c" == taken(queue, 2.002)
    add(queue, "acd", 3.0)

    assert "cd" == taken(queue, 3.0) + taken(queue, 3.0)
    assert Wait(pytest.approx(0.002)) == queue.next(3.0)


@pytest.mark.parametrize("waiting", ["", "a"])
def test_a_key_that_is_told_to_expect_more_lingers(waiting: str):
    """After a batch of one of its key, whether others of the key wait already or not."""
    queue = batcher(linger=None)
    add(queue, "a", 0.0)
    assert "a" == taken(queue, 1.0)
    add(queue, waiting, 2.0)
    queue.expect_more("a")
    add(queue, "a" if not waiting else "", 2.0)

    assert Wait(pytest.approx(0.002)) == queue.next(2.0)


def test_a_new_key_lingers_after_a_batch_of_one_of_another():
    """More requests were to be expected, of whatever key."""
    queue = batcher(linger=None)
    add(queue, "a", 0.0)
    assert "a" == taken(queue, 1.0)
    queue.expect_more()
    add(queue, "b", 2.0)

    assert Wait(pytest.approx(0.002)) == queue.next(2.0)


def test_behind_a_running_batch_a_key_is_served_once_it_has_enough_work():
    """A long row that makes its batch full by padding waits there for those that pad less."""
    policy = BatchPolicy(8, 10.0, max_batch_cost=100, padded=True)
    queue: KeyedBatcher[float] = KeyedBatcher(policy)
    found = []
    for n, cost in enumerate([60.0, 20.0, 20.0]):
        queue.add(Request(cost, float(n), cost=cost, key="a"))
        found.append((queue.is_full, queue.next(float(n), full_only=True)))
    *before, (is_full, batch) = found

    assert [(False, Wait(None))] * 2 == before
    assert is_full
    assert isinstance(batch, Batch)
    assert batch.items == [60.0]


def test_behind_a_running_batch_due_keys_compete_with_full_ones():
    """If no key has a full batch they wait; else they would wait as long as one has."""
    queue = batcher()
    add(queue, "r", 0.0)
    assert Wait(None) == queue.next(5.0, full_only=True)
    add(queue, "bbbbbbbb", 4.0)

    assert ["r", "bbbb", "bbbb"] == [taken(queue, 5.0, full_only=True) for _ in range(3)]


def test_behind_a_running_batch_many_due_keys_are_served():
    """None of them would gain much until the slot is free, and the device would wait for it."""
    queue = batcher()
    for n in range(31):
        add(queue, chr(ord("A") + n), n / 100)

    assert Wait(None) == queue.next(5.0, full_only=True)
    add(queue, "z", 1.0)
    assert Wait(None) == queue.next(1.0, full_only=True)  # 32 keys, of which one is not due
    assert taken(queue, 5.0, full_only=True) == "A"
    assert Wait(None) == queue.next(5.0, full_only=True)


def test_ready_keys_take_turns():
    """A key that was served goes behind those that were not, however many it has waiting."""
    queue = batcher(2)
    add(queue, "aaaaaabbbbcc")

    assert ["aa", "bb", "cc", "aa", "bb", "aa"] == [taken(queue, 0.0) for _ in range(6)]


def test_a_key_that_comes_again_at_once_is_not_first_again():
    """What it had of the slots is known while others wait for their turn."""
    queue = batcher(2)
    add(queue, "aaaabb", 0.0)
    found = [taken(queue, 0.0)]
    for _ in range(5):
        add(queue, "bb", 1.0)
        found.append(taken(queue, 1.0))

    assert ["aa", "bb", "aa", "bb", "bb", "bb"] == found


def test_larger_requests_count_for_more():
    """A chunk of three batches is three turns."""
    queue = batcher(2)
    queue.add(Request("A", 0.0, rows=6, key="a"))
    add(queue, "aabbbbbbbb")

    assert ["A", "bb", "bb", "bb", "aa", "bb"] == [taken(queue, 0.0) for _ in range(6)]


def test_keys_share_the_slots_by_cost():
    """A key of expensive items gets as much work done as one of cheap items, not as many items."""
    queue = batcher(64, max_batch_cost=100)
    for n in range(400):
        queue.add(Request("x", n * 1e-3, cost=25, key="x"))
        queue.add(Request("y", n * 1e-3, cost=5, key="y"))
    done: Counter[str] = Counter()
    for _ in range(20):
        done.update(taken(queue, 1.0))

    assert {"x": 40, "y": 200} == done


def test_urgent_requests_go_first():
    """Before a full batch of others, though more of their key may come; the reason says so."""
    queue = batcher()
    add(queue, "aaaaa", 0.0)
    add(queue, "u", 0.1, urgency=-1)
    assert -1 == queue.urgency
    found = queue.next(0.1)

    assert isinstance(found, Batch)
    assert ("u", -1, Reason.URGENT) == (found.key, found.urgency, found.reason)
    assert ("aaaa", 0) == (taken(queue, 0.1), queue.urgency)


def test_a_more_urgent_request_makes_its_key_more_urgent():
    """Until it has left; the room of its batch is for others of its key."""
    queue = batcher(2)
    add(queue, "bbaaa")
    add(queue, "a", urgency=-1)

    assert ["aa", "bb", "aa"] == [taken(queue, 0.0) for _ in range(3)]


def test_overtaken_keys_have_their_share():
    """While urgent requests never cease, every fourth batch is of a key without them."""
    queue = batcher(2, low_priority_share=0.25)
    add(queue, "llmm")
    found = []
    for n in range(9):
        add(queue, "uuvv", float(n), urgency=-1)
        decision = queue.next(float(n))
        assert -1 == decision.urgency  # type: ignore[union-attr]
        found.append(decision.key)  # type: ignore[union-attr]

    assert [3, 7] == [n for n, key in enumerate(found) if key in "lm"]
    assert {"l", "m"} == {found[3], found[7]}


def test_a_share_is_not_earned_where_the_overtaken_batch_has_it():
    """Nor by keys that nothing overtakes; what they had earned goes with the next batch."""
    queue = batcher(2, low_priority_share=0.5)
    add(queue, "ll")
    add(queue, "uu", urgency=-1)
    assert "uu" == taken(queue, 0.0, earns_share=False)
    add(queue, "uu", urgency=-1)
    assert "uu" == taken(queue, 0.0)
    found = queue.next(0.0)

    assert isinstance(found, Batch)
    assert ("ll", 0.5) == ("".join(found.items), found.earned_part)


def test_a_share_goes_to_a_key_that_is_not_ready():
    """Its request would have left with any batch that urgent ones do not fill."""
    queue = batcher(2, low_priority_share=0.5)
    add(queue, "l")
    add(queue, "uuuuuu", urgency=-1)

    assert ["uu", "l", "uu"] == [taken(queue, 0.0) for _ in range(3)]


def test_those_that_run_alone_go_first():
    """They share no batch with others of their key."""
    queue = batcher()
    add(queue, "aaaa")
    queue.add(Request("A", 0.5, urgency=3, alone=True, deadline=2.0, key="a"))

    assert (True, 5, 5, 3, 2.0) == (
        queue.is_full,
        len(queue),
        queue.rows,
        queue.urgency,
        queue.next_deadline,
    )
    assert ("A", "aaaa") == (taken(queue, 1.0), taken(queue, 1.0))


def test_those_delivered_again_share_batches_with_their_own_key():
    """The first runs alone; once it has ended, several of one key do, before all others."""
    queue = batcher()
    add(queue, "aaaa")
    add(queue, "aaabbb", redelivered=True)
    found = [taken(queue, 0.0)]
    queue.redelivered_ended(0.0, 1)
    found += [taken(queue, 0.0) for _ in range(4)]

    assert ["a", "aa", "bb", "b", "aaaa"] == found


def test_those_that_run_alone_expire():
    """After their deadline."""
    queue = batcher()
    queue.add(Request("A", 0.5, alone=True, deadline=2.0, key="a"))

    assert (0.5, []) == (queue.oldest, queue.expire(1.0))
    assert ["A"] == [request.item for request in queue.expire(2.0)]


def test_a_batch_can_leave_before_it_is_due():
    """Whoever asks for it says why; a key that is due goes before one that is not."""
    queue = batcher()
    add(queue, "b", 0.0)
    add(queue, "a", 0.3)
    found = [queue.take(0.5, Reason.AHEAD) for _ in range(2)]

    assert [("b", Reason.IDLE), ("a", Reason.AHEAD)] == [(each.key, each.reason) for each in found]


def test_a_new_policy_holds_for_what_waits():
    """Sizes, times and costs of all keys."""
    queue = batcher(4)
    add(queue, "aab", cost=1.0)
    assert not queue.is_full
    queue.policy = BatchPolicy(2, 0.0)

    assert queue.is_full
    assert ["aa", "b"] == [taken(queue, 0.0), taken(queue, 0.0)]
    assert 0.0 == queue.policy.max_wait


def test_an_older_request_brings_its_key_forward():
    """One that runs again counts from its first arrival."""
    queue = batcher()
    add(queue, "a", 1.0)
    queue.add(Request("a", 0.5, -1, key="a"))

    assert 0.5 == queue.oldest
    assert Wait(pytest.approx(0.1)) == queue.next(1.4)


def test_other_keys_go_before_a_request():
    """Each is a batch, unless all of its requests are less urgent; its own key is none of them."""
    queue = batcher()
    add(queue, "aab", urgency=0)
    add(queue, "cd", urgency=5)
    asked = [Request("", 0.0, urgency, key=key) for urgency in (-1, 0, 5) for key in "acx"]

    assert [0, 0, 0, 1, 2, 2, 3, 3, 4] == [queue.other_keys(each) for each in asked]


def test_one_request_is_removed_without_a_look_at_other_keys():
    """A more urgent request that equals it takes its place; there may be 10,000 keys."""
    queue = batcher()
    looked_at: list[str] = []
    unwanted = Request("a", 0.2, key="a")
    add(queue, "aabbbbc", 0.1)
    queue.add(unwanted)
    for name, key in queue._keys.items():
        remove = key.batcher.remove
        key.batcher.remove = lambda each, name=name, remove=remove: (  # type: ignore[method-assign,misc]
            looked_at.append(name) or remove(each)  # type: ignore[func-returns-value]
        )
    queue.discard(unwanted)

    assert ["a"] == looked_at
    assert (7, 3, True) == (len(queue), queue.keys, queue.is_full)
    assert ["aa", "bbbb", "c"] == sorted(taken(queue, 2.0) for _ in range(3))


def test_requests_of_which_others_take_some_keep_their_places():
    """A key of which nothing is left is forgotten."""
    queue = batcher()
    add(queue, "aaaab")
    removed = queue.remove(lambda request: request.item == "a")

    assert (4, 1, False) == (len(removed), queue.keys, queue.is_full)
    assert "b" == "".join(request.item for request in queue.clear())
    assert (0, 0, None, None) == (len(queue), queue.rows, queue.oldest, queue.urgency)
    assert Wait(None) == queue.next(9.0)


@pytest.mark.no_cover
def test_many_keys_cost_no_scan():
    """As many function calls for each request and batch with 10,000 keys as with 100."""

    def calls(keys: int) -> float:
        queue: KeyedBatcher[int] = KeyedBatcher(BatchPolicy(32, 0.01))
        for n in range(2 * keys):
            queue.add(Request(n, n * 1e-6, key=n % keys))
        number = 0

        def note(*_: object) -> None:
            nonlocal number
            number += 1

        queue.next(1.0)  # all are due by then, which takes time once
        sys.setprofile(note)
        for n in range(100):
            queue.add(Request(n, 1.0, key=n * 7 % keys))
            queue.next(1.0 + n * 1e-3)
        sys.setprofile(None)
        return number

    calls(100)  # whatever happens once

    assert calls(10_000) < 1.5 * calls(100)


def test_keys_without_requests_are_forgotten():
    """However many keys there have been, some hundred bytes of few of them are kept."""
    queue: KeyedBatcher[int] = KeyedBatcher(BatchPolicy(32, 0.0, linger=0.0))
    queue.add(Request(-1, 0.0, 9, key="never served"))
    for n in range(6000):
        queue.add(Request(n, float(n), key=n))
        queue.next(float(n), earns_share=False)
    parts = [queue._keys, queue._idle, queue._ages._entries]
    parts += [level.ready._entries for level in queue._levels.values()]
    parts += [level.waiting._entries for level in queue._levels.values()]

    assert 1 == len(queue)
    assert all(len(part) <= 1100 for part in parts)


POLICIES = st.sampled_from(
    [
        BatchPolicy(3, 1.0, 0.25, 0.25),
        BatchPolicy(1, 0.0),
        BatchPolicy(4, 1.0, None, 0.5),
        BatchPolicy(4, 1.0, 0.5, 0.0),
        BatchPolicy(8, 1.0, 0.25, 0.25, max_batch_cost=10, padded=True, sort_window=2),
        BatchPolicy(8, 1.0, 0.25, 0.25, max_batch_cost=10),
    ]
)

EVENTS = st.one_of(
    st.tuples(
        st.just("arrive"),
        st.tuples(
            st.integers(0, 5),
            st.sampled_from([0, 0, 0, -1, 2]),
            st.integers(1, 6),
            st.integers(1, 8),
        ),
    ),
    st.tuples(st.just("pass"), st.sampled_from([0.0, 0.1, 0.25, 0.5, 1.0])),
    st.tuples(st.just("ask"), st.booleans()),
    st.tuples(st.sampled_from(["remove", "suspect"]), st.integers(0, 5)),
    st.tuples(st.sampled_from(["clear", "policy"]), POLICIES),
)


class Model:
    """A queue beside a plain list of what should wait in it."""

    def __init__(self, policy: BatchPolicy) -> None:
        self.queue: KeyedBatcher[int] = KeyedBatcher(policy)
        self.waiting: dict[int, Request[int]] = {}
        self.names = count()
        self.now = 0.0

    def arrive(self, what: tuple[int, int, int, int]) -> None:
        """A request arrives, with its key, urgency, rows and cost."""
        key, urgency, rows, cost = what
        self._add(Request(next(self.names), self.now, urgency, rows=rows, cost=cost, key=key))

    def suspect(self, key: int) -> None:
        """One arrives that runs alone."""
        self._add(Request(next(self.names), self.now, alone=True, key=key))

    def _add(self, request: Request[int]) -> None:
        self.waiting[request.item] = request
        self.queue.add(request)

    def pass_(self, seconds: float) -> None:
        """Time passes."""
        self.now += seconds

    def remove(self, key: int) -> None:
        """Others take all requests of a key."""
        removed = self.queue.remove(lambda request: request.key == key)
        assert sorted(r.item for r in removed) == sorted(
            r.item for r in self.waiting.values() if r.key == key
        )
        for request in removed:
            del self.waiting[request.item]

    def clear(self, _: BatchPolicy) -> None:
        """All go back."""
        assert sorted(r.item for r in self.queue.clear()) == sorted(self.waiting)
        self.waiting.clear()

    def policy(self, policy: BatchPolicy) -> None:
        """An operator changes the policy, but not what work is counted in."""
        if (policy.max_batch_cost, policy.padded) == (
            self.queue.policy.max_batch_cost,
            self.queue.policy.padded,
        ):
            self.queue.policy = policy

    def ask(self, full_only: bool) -> None:  # noqa: FBT001 (an event's value)
        """A slot asks for a batch."""
        found = self.queue.next(self.now, full_only=full_only)
        if isinstance(found, Batch):
            self._check_batch(found)
        elif not full_only:
            self._check_wait(found)

    def _check_batch(self, batch: Batch[int]) -> None:
        assert 1 == len({request.key for request in batch.requests})
        if batch.requests[0].alone:
            assert 1 == len(batch)
        for request in batch.requests:
            assert request is self.waiting.pop(request.item)
        for left in self.waiting.values():  # first come, first served within a key
            if self.queue.policy.max_batch_cost is None and left.key == batch.key:
                for request in batch.requests:
                    if request.urgency == left.urgency and not (left.alone or request.alone):
                        assert request.arrived <= left.arrived

    def _check_wait(self, found: Wait) -> None:
        if not self.waiting:
            assert found.seconds is None
            return
        oldest = min(request.arrived for request in self.waiting.values())
        assert found.seconds is not None
        assert 0 < found.seconds <= oldest + self.queue.policy.max_wait - self.now + TOLERANCE

    def check(self) -> None:
        """What the queue reports is what waits."""
        waiting, queue = self.waiting.values(), self.queue
        assert len(waiting) == len(queue)
        assert sum(request.rows for request in waiting) == queue.rows
        assert min((request.arrived for request in waiting), default=None) == queue.oldest
        alone = [request for request in waiting if request.alone]
        urgencies = [request.urgency for request in alone[:1] or waiting]
        assert min(urgencies, default=None) == queue.urgency
        for urgency in (-1, 0, 2):
            before = [r for r in waiting if r.alone or r.urgency <= urgency]
            assert (len(before), sum(r.rows for r in before)) == queue.before(urgency)
            work = sum(queue.policy.work_of(each.rows, each.cost) for each in before)
            assert work == pytest.approx(queue.work_before(urgency))
            exactly = [r for r in waiting if r.urgency == urgency and not r.alone]
            assert sum(r.rows for r in exactly) == queue.rows_of(urgency)


@settings(max_examples=300, deadline=None)
@given(policy=POLICIES, events=st.lists(EVENTS, min_size=5, max_size=60))
def test_promises_hold_for_any_events(policy: BatchPolicy, events: list[tuple[str, Any]]):
    """
    Nothing is lost, leaves twice, or shares a batch with another key.

    While a slot is free no request waits for longer than max_wait, whatever else waits.
    """
    model = Model(policy)
    for name, value in events:
        getattr(model, {"pass": "pass_"}.get(name, name))(value)
        model.check()
    model.pass_(model.queue.policy.max_wait)
    while model.waiting:
        model.ask(full_only=False)
        model.check()

    assert Wait(None) == model.queue.next(model.now)


@settings(max_examples=30, deadline=None)
@given(
    size=st.integers(1, 5),
    busy=st.integers(1, 6),
    data=st.data(),
    full_only=st.booleans(),
)
@pytest.mark.no_cover
def test_a_rare_key_is_not_starved(size: int, busy: int, data: st.DataObject, full_only: bool):  # noqa: FBT001 (drawn)
    """
    A request that is due leaves after two batches of each busy key at most.

    Whichever of these are full whenever a slot asks, and though the slot is never free.
    """
    queue: KeyedBatcher[Hashable] = KeyedBatcher(BatchPolicy(size, 0.5, linger=0.5))
    waiting: Counter[int] = Counter()
    waits, longest = None, 0
    for step in range(60):
        now = float(step)
        for key in data.draw(st.sets(st.integers(1, busy), min_size=1)):
            for _ in range(2 * size - waiting[key]):
                waiting[key] += 1
                queue.add(Request(key, now, key=key))
        if waits is None and data.draw(st.booleans()):
            waits = 0
            queue.add(Request(0, now - 0.5, key=0))
        found = queue.next(now, full_only=full_only)
        assert isinstance(found, Batch)
        waiting[found.key] -= len(found)  # type: ignore[index]
        if found.key == 0:
            waits = None
        elif waits is not None:
            waits += 1
            longest = max(longest, waits)

    assert longest <= 2 * busy
