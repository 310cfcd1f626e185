"""Same inputs are computed once: who leads, who joins, what is kept, what is called back."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace
from typing import Any

import pytest

from celery_batch.testing import ManualClock
from webapp.cache import MISSING, Cache
from webapp.errors import Overloaded
from webapp.loop_way import LoopWay
from webapp.settings import Settings
from webapp.sharing import SLACK, Sharing, key_of
from webapp.straight import straight
from webapp.thread_way import ThreadWay
from webapp.trip import Trip

THREAD = ThreadWay()


class Office:
    """Sends inputs, and gives answers when it is told to."""

    def __init__(self, clock: Any = None, **settings: Any) -> None:
        self.clock = clock or ManualClock()
        self.sharing = Sharing(Settings(**{"share": True, **settings}), self.clock)
        self.sent: list[Any] = []

    def trip(self, *keys: bytes | None, within: float = 10.0) -> Trip:
        """Begin a request."""
        return Trip(self.sharing, keys, self.clock() + within)

    async def send(self, indices: list[int]) -> list[Any]:
        """Send inputs: results that have not come."""
        return [self.result() for _ in indices]

    def result(self) -> Any:
        """Return a new result."""
        reply = SimpleNamespace(value=None)
        result = SimpleNamespace(id=f"id{len(self.sent)}", reply=reply, state="PENDING")
        self.sent.append(result)
        return result

    def answer(self, number: int, value: Any = None, state: str = "SUCCESS") -> None:
        """Have a result come."""
        vars(self.sent[number]).update(state=state, result=value)
        self.sent[number].reply.value = b"told"

    def go(self, *keys: bytes | None, within: float = 10.0) -> Trip:
        """Begin a request whose own inputs are sent at once."""
        trip = self.trip(*keys, within=within)
        straight(trip.send(THREAD, self.send))
        return trip


def outputs(trip: Trip) -> list[Any]:
    """Return the outputs of a request."""
    return trip.outcomes(lambda result: result.result, lambda value: value)


def test_what_is_in_flight_is_not_sent_again():
    """Requests that ask the same meanwhile have the same result, once within each."""
    office = Office()
    first, second = office.go(b"a", b"b", b"a"), office.go(b"b", b"c")
    for number, value in enumerate("ABC"):
        office.answer(number, value)

    assert 3 == len(office.sent)
    assert [["A", "B", "A"], ["B", "C"]] == [outputs(first), outputs(second)]
    assert [2, 2] == [len(first.results), len(second.results)]
    assert [[], []] == [first.leave(), second.leave()]
    assert 0 == len(office.sharing)


def test_the_last_to_leave_calls_back():
    """A task is called back when nobody waits for it any more, and not before."""
    office = Office()
    first, second = office.go(b"a"), office.go(b"a")

    assert [] == first.leave()
    third = office.go(b"a")
    assert [] == second.leave()
    assert ["id0"] == third.leave()
    assert 0 == len(office.sharing)


def test_who_waits_longer_than_a_task_lives_begins_another():
    """A flight is joined if its task does not expire before the newcomer gives up."""
    office = Office()
    office.go(b"a", within=10)
    office.clock.advance(SLACK)
    office.go(b"a", within=10)
    assert 1 == len(office.sent)
    office.clock.advance(0.1)
    office.go(b"a", within=10)

    assert 2 == len(office.sent)


def test_a_failure_is_that_of_all_who_wait_and_is_not_kept():
    """All who wait have the failure; who comes later tries again."""
    office = Office(cache_seconds=60.0)
    first, second = office.go(b"a"), office.go(b"a")
    office.answer(0, "broken", state="FAILURE")
    later = office.go(b"a")

    assert ["broken"] == outputs(first) == outputs(second)
    assert 2 == len(office.sent)
    assert [[], [], ["id1"]] == [first.leave(), second.leave(), later.leave()]


def test_what_cannot_be_sent_fails_for_all():
    """If sending fails, those who have joined hear why; the next one tries again."""
    office = Office()
    first, second = office.trip(b"a"), office.trip(b"a", b"b")

    async def refuse(_indices: list[int]) -> list[Any]:
        """Fail as a broker does that is away."""
        raise Overloaded("full")

    with pytest.raises(Overloaded):
        straight(first.send(THREAD, refuse))
    with pytest.raises(Overloaded):
        straight(second.send(THREAD, office.send))
    assert [[], ["id0"]] == [first.leave(), second.leave()]
    office.go(b"a")

    assert 2 == len(office.sent)


@pytest.mark.parametrize("is_sending", [True, False], ids=["as it sends", "before"])
def test_who_leads_may_go(*, is_sending: bool):
    """If who leads is cancelled before its input is sent, another sends it."""
    office = Office(time.monotonic)

    async def never(_indices: list[int]) -> list[Any]:
        """Wait for what does not come."""
        await asyncio.Event().wait()
        raise AssertionError

    async def both() -> None:
        """Lead and follow on one loop."""
        leader, follower = office.trip(b"a"), office.trip(b"a")
        leading = asyncio.ensure_future(leader.send(LoopWay(), never))
        following = asyncio.ensure_future(follower.send(LoopWay(), office.send))
        if is_sending:
            await asyncio.sleep(0)
        leading.cancel()
        await asyncio.wait([leading])
        leader.leave()
        await asyncio.wait_for(following, 10)
        office.answer(0, "A")
        assert ["A"] == outputs(follower)

    asyncio.run(both())


def test_a_follower_that_is_cancelled_leaves_the_others():
    """Who gives up waiting for another's sending gives up for himself alone."""
    office = Office(time.monotonic)

    async def both() -> None:
        """Lead and follow on one loop."""
        leader, follower = office.trip(b"a"), office.trip(b"a")
        following = asyncio.ensure_future(follower.send(LoopWay(), office.send))
        await asyncio.sleep(0)
        following.cancel()
        await asyncio.wait([following])
        follower.leave()
        await leader.send(LoopWay(), office.send)
        assert ["id0"] == leader.leave()

    asyncio.run(both())


def test_a_sending_that_takes_too_long_is_given_up():
    """A thread waits for another's sending until its own deadline."""
    office = Office()
    office.trip(b"a")
    follower = office.trip(b"a", within=-1e9)

    with pytest.raises(TimeoutError):
        straight(follower.send(THREAD, office.send))


def test_outputs_are_kept_for_a_while():
    """What was answered answers the same again, until it is too old."""
    office = Office(share=False, cache_seconds=5.0)
    first = office.go(b"a")
    office.answer(0, "A")
    first.leave()
    office.clock.advance(4.9)
    assert ["A"] == outputs(office.go(b"a"))
    office.clock.advance(0.2)
    office.go(b"a")

    assert 2 == len(office.sent)


def test_without_sharing_each_request_sends_its_own():
    """The cache alone joins nobody."""
    office = Office(share=False, cache_seconds=5.0)
    office.go(b"a")
    office.go(b"a")

    assert 2 == len(office.sent)
    assert 0 == len(office.sharing)


def test_the_cache_keeps_what_is_asked_for():
    """Of too many outputs those that were not asked for the longest go."""
    cache = Cache(2, 10.0)
    cache.put(b"a", 1, now=0)
    cache.put(b"b", None, now=0)
    cache.get(b"a", now=1)
    cache.put(b"c", 3, now=1)

    assert [1, MISSING, 3] == [cache.get(key, now=2) for key in (b"a", b"b", b"c")]
    assert 2 == len(cache)
    assert MISSING is cache.get(b"a", now=10)


def test_keys_tell_apart_what_is_not_the_same():
    """Task, type and content make the key; what has no plain content has none."""
    values = ["a", "b", b"a", "1", 1, None, ["a"], {"a": 1}, b'"a"']
    keys = {key_of(task, value) for task in ("x", "y") for value in values}

    assert 2 * len(values) == len(keys)
    assert key_of("x", {"a": 1, "b": 2}) == key_of("x", {"b": 2, "a": 1})
    assert key_of("x", object()) is None


def test_settings_say_whether_there_is_anything_to_do():
    """With neither sharing nor a cache there is nothing to do."""
    assert [False, True, True] == [
        bool(Sharing(Settings(**each))) for each in ({}, {"share": True}, {"cache_seconds": 1.0})
    ]
