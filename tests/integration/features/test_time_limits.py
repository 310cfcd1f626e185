"""Soft and hard time limits: of the task, of a call, of the worker."""

from __future__ import annotations

import pytest
from billiard.exceptions import SoftTimeLimitExceeded, TimeLimitExceeded

from tests.services.place import Place

pytestmark = pytest.mark.alike_on_brokers


def test_the_soft_limit_fails_the_slow_item_alone(place: Place):
    """An item over the task's ``soft_time_limit`` hears of it; its neighbours succeed."""
    results = [place.nap_soft.delay(seconds) for seconds in (0, 20, 0)]
    left, slow, right = place.get(results)

    assert [0, 0] == [left, right]
    assert isinstance(slow, SoftTimeLimitExceeded)


def test_the_hard_limit_fails_the_slow_item_alone(place: Place):
    """An item over the task's ``time_limit`` fails; its neighbours succeed in a new process."""
    before = place.who.delay(0).get(timeout=30)[1]
    results = [place.nap_hard.delay(seconds) for seconds in (0, 20, 0)]
    left, slow, right = place.get(results)

    assert [0, 0] == [left, right]
    assert isinstance(slow, TimeLimitExceeded)
    assert before != place.who.delay(0).get(timeout=30)[1]


@pytest.mark.parametrize(
    ("option", "error"),
    [("soft_time_limit", SoftTimeLimitExceeded), ("time_limit", TimeLimitExceeded)],
)
def test_a_limit_of_one_call_is_kept(place: Place, option: str, error: type[Exception]):
    """A limit given to ``apply_async`` holds for that call's batch."""
    result = place.nap.apply_async((20,), **{option: 0.5})

    with pytest.raises(error):
        result.get(timeout=30)
    assert 0 == place.nap.delay(0).get(timeout=30)


def test_a_call_cannot_ask_for_the_impossible(place: Place):
    """A call's limit of a microsecond counts as 0.1 s, which a quick batch keeps."""
    result = place.nap.apply_async((20,), time_limit=1e-6)

    with pytest.raises(TimeLimitExceeded) as caught:
        result.get(timeout=30)
    assert 0.1 == caught.value.args[0]


@pytest.mark.pools("solo", "threads")
def test_pools_without_limits_ignore_them(place: Place):
    """The solo and threads pools cannot interrupt a model, as in Celery; it ends by itself."""
    assert 1.2 == place.nap_soft.delay(1.2).get(timeout=30)


def test_the_workers_own_limits_are_kept(place: Place):
    """``task_soft_time_limit`` and ``task_time_limit`` hold for tasks without their own."""
    queue = place.unique("limited")
    conf = {"task_soft_time_limit": 0.5, "task_time_limit": 5}
    with place.another("-c", "1", queue=queue, conf=conf):
        with pytest.raises(SoftTimeLimitExceeded):
            place.nap.apply_async((20,), queue=queue).get(timeout=30)
        answer = place.nap.apply_async((0,), queue=queue).get(timeout=30)

    assert 0 == answer
