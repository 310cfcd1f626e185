"""How groups and chords reach the broker: piece by piece, and what a failure says of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from celery import chord, group
from kombu.exceptions import OperationalError

from celery_batch import PartlySent, QueueFull
from celery_batch.client.publish import buffer
from tests.client.conftest import Sender
from tests.client.publish.test_sending import counted, texts, warmed


def fewer_tries(sender: Callable[..., Sender], **conf: Any) -> Sender:
    """Return a sender whose writes fail at once where Redis refuses them."""
    here = sender(task_publish_retry_policy={"max_retries": 0, "interval_start": 0}, **conf)
    return warmed(here)


def waiting(here: Sender) -> int:
    """Return how many messages lie in the queue."""
    return int(here.redis.llen("celery"))


@pytest.fixture(autouse=True)
def _no_time_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is kept for long is written, too: on a slow machine sooner than a piece is full."""
    monkeypatch.setattr("celery_batch.client.publish.buffer.monotonic", lambda: 0.0)


def canvas(here: Sender, kind: str, members: Iterator[Any]) -> Any:
    """Return a group, or a chord with one, over a generator."""
    return group(members) if kind == "group" else chord(members, here.task.si("body"))


def learned(here: Sender, kind: str) -> Sender:
    """Send the first of its kind, which takes Celery's path."""
    canvas(here, kind, (here.task.s(number) for number in range(3))).apply_async()
    here.taken()
    return here


@pytest.mark.parametrize("limit", [1, 10])
@pytest.mark.parametrize("kind", ["group", "chord"])
def test_what_a_generator_makes_is_sent_while_it_makes_more(
    sender: Callable[..., Sender], kind: str, limit: int
) -> None:
    """A group or chord over a generator is sent piece by piece, with one connection, too."""
    here = learned(warmed(sender(broker_pool_limit=limit)), kind)
    seen: list[int] = []

    def members() -> Iterator[Any]:
        """Look now and then how much has been sent."""
        for number in range(2500):
            if number % 1200 == 1199:
                seen.append(waiting(here))
            yield here.task.s(number)

    with counted(here) as calls:
        result = canvas(here, kind, members()).apply_async()
    ids = [message["headers"]["id"] for message in here.taken()["celery"]]
    header = result if kind == "group" else result.parent

    assert [1000, 2000] == seen
    assert 3 == calls["lpush"]
    assert [each.id for each in header] == ids


@pytest.mark.parametrize("kind", ["group", "chord"])
def test_what_comes_slowly_is_sent_meanwhile(
    sender: Callable[..., Sender], monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Where a generator takes its time, its first members do not wait for a thousand others."""
    here = learned(warmed(sender()), kind)
    clock = iter(range(1000))
    monkeypatch.setattr("celery_batch.client.publish.buffer.monotonic", lambda: 60.0 * next(clock))
    seen: list[int] = []

    def members() -> Iterator[Any]:
        """Look each time how much has been sent; for all that is known here, minutes pass."""
        for number in range(20):
            seen.append(waiting(here))
            yield here.task.s(number)

    canvas(here, kind, members()).apply_async()

    assert seen[-1] >= 10
    assert 20 == waiting(here)


@pytest.mark.parametrize("fails", ["with the others", "alone"])
def test_members_of_two_queues_are_told_apart_when_one_fails(
    sender: Callable[..., Sender], fails: str
) -> None:
    """The error of a group names the members that were sent, by their places, of all kinds."""
    here = fewer_tries(sender, task_ignore_result=True)

    @here.app.task(name="ordinary")
    def ordinary(number: int) -> int:
        return number

    lost = here.task.s("lost").set(queue="broken")
    if fails == "alone":  # what is no single batch task is sent at once
        lost = lost | here.task.s()
    members = [here.task.s("a"), here.task.s("b") | here.task.s(), ordinary.s(1), here.task.s("c")]
    for each in (*members, lost):  # the first of their kinds
        group(each).apply_async()
    here.taken()
    here.redis.set("broken", "not a list")
    with pytest.raises(OperationalError, match="WRONGTYPE") as caught:
        group([*members, lost]).apply_async()
    here.redis.delete("broken")
    sent = {message["headers"]["id"] for message in here.taken()["celery"]}

    assert isinstance(caught.value, PartlySent)
    assert ({1, 2} if fails == "alone" else {0, 1, 2, 3}) == set(caught.value.places)
    assert list(caught.value.places.values()) == caught.value.sent
    assert sent == {(each.parent or each).id for each in caught.value.sent}


def test_a_failure_after_a_thousand_members_says_so(sender: Callable[..., Sender]) -> None:
    """When a later write of a group fails, those that were written before are named."""
    here = learned(fewer_tries(sender), "group")

    def members() -> Iterator[Any]:
        """Have the queue break after a while."""
        for number in range(1500):
            if number == 1200:
                here.redis.rename("celery", "kept")
                here.redis.set("celery", "not a list")
            yield here.task.s(number)

    with pytest.raises(PartlySent, match="only 1000 calls were surely sent") as caught:
        group(members()).apply_async()
    here.redis.rename("kept", "celery")

    assert list(range(1000)) == list(caught.value.places)
    assert [each.id for each in caught.value.sent] == [
        message["headers"]["id"] for message in here.taken()["celery"]
    ]


def test_a_group_of_which_nothing_is_sent_fails_as_celerys(sender: Callable[..., Sender]) -> None:
    """Where no member was sent, the error is kombu's alone."""
    here = learned(fewer_tries(sender), "group")
    here.redis.set("celery", "not a list")
    with pytest.raises(OperationalError, match="WRONGTYPE") as caught:
        group(here.task.s(number) for number in range(3)).apply_async()

    assert type(caught.value) is OperationalError


def test_a_generator_that_never_fits_is_read_no_further(sender: Callable[..., Sender]) -> None:
    """With `max_queue` a group is refused as soon as it is known to be too large."""
    here = sender()
    task = here.make("few", max_queue=5)
    made: list[int] = []

    def members() -> Iterator[Any]:
        """Count what is made."""
        for number in range(100_000):
            made.append(number)
            yield task.s(number)

    with pytest.raises(QueueFull, match="max_queue=5"):
        group(members()).apply_async()

    assert len(made) < 10
    assert {} == here.taken()


def test_a_limit_holds_up_nobody_elses_generator(sender: Callable[..., Sender]) -> None:
    """A task without a limit is sent piece by piece, though another one has a limit."""
    here = learned(warmed(sender()), "group")
    here.make("few", max_queue=5)
    seen: list[int] = []

    def members() -> Iterator[Any]:
        """Look at the end how much has been sent."""
        for number in range(buffer.MOST_MESSAGES + 200):
            if number == buffer.MOST_MESSAGES + 100:
                seen.append(waiting(here))
            yield here.task.s(number)

    group(members()).apply_async()

    assert [buffer.MOST_MESSAGES] == seen
    assert buffer.MOST_MESSAGES + 200 == len(texts(here.taken()))


def test_a_mixed_group_passes_whole_or_not_at_all(sender: Callable[..., Sender]) -> None:
    """Where some members have a limit, none is sent unless there is room for all of them."""
    here = warmed(sender())
    few = here.make("few", max_queue=3)

    def members(number: int) -> Iterator[Any]:
        """Mix what has a limit with what has none."""
        for each in range(number):
            yield here.task.s(each)
            yield few.s(each)

    with pytest.raises(QueueFull):
        group(members(4)).apply_async()
    refused = here.taken()
    group(members(3)).apply_async()

    assert {} == refused
    assert 6 == len(texts(here.taken()))
