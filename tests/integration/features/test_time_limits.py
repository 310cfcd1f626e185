"""Soft and hard time limits: of the task, of a call, of the worker."""

from __future__ import annotations

import pytest
from billiard.exceptions import SoftTimeLimitExceeded, TimeLimitExceeded

from tests.services.shared_setup import SharedSetup

pytestmark = pytest.mark.alike_on_brokers


def test_the_soft_limit_fails_the_slow_item_alone(shared: SharedSetup):
    """An item over the task's ``soft_time_limit`` hears of it; its neighbours succeed."""
    results = [shared.nap_soft.delay(seconds) for seconds in (0, 20, 0)]
    left, slow, right = shared.get(results)

    assert [0, 0] == [left, right]
    assert isinstance(slow, SoftTimeLimitExceeded)


def test_the_hard_limit_fails_the_slow_item_alone(shared: SharedSetup):
    """An item over the task's ``time_limit`` fails; its neighbours succeed in a new process."""
    before = shared.who.delay(0).get(timeout=30)[1]
    results = [shared.nap_hard.delay(seconds) for seconds in (0, 20, 0)]
    left, slow, right = shared.get(results)

    assert [0, 0] == [left, right]
    assert isinstance(slow, TimeLimitExceeded)
    assert before != shared.who.delay(0).get(timeout=30)[1]


@pytest.mark.parametrize(
    ("option", "error"),
    [("soft_time_limit", SoftTimeLimitExceeded), ("time_limit", TimeLimitExceeded)],
)
def test_a_limit_of_one_call_is_kept(shared: SharedSetup, option: str, error: type[Exception]):
    """A limit given to ``apply_async`` holds for that call's batch."""
    result = shared.nap.apply_async((20,), **{option: 0.5})

    with pytest.raises(error):
        result.get(timeout=30)
    assert 0 == shared.nap.delay(0).get(timeout=30)


def test_a_call_cannot_ask_for_the_impossible(shared: SharedSetup):
    """A call's limit of a microsecond counts as 0.1 s, which a quick batch keeps."""
    result = shared.nap.apply_async((20,), time_limit=1e-6)

    with pytest.raises(TimeLimitExceeded) as caught:
        result.get(timeout=30)
    assert 0.1 == caught.value.args[0]


@pytest.mark.pools("solo", "threads")
def test_pools_without_limits_ignore_them(shared: SharedSetup):
    """The solo and threads pools cannot interrupt a model, as in Celery; it ends by itself."""
    assert 1.2 == shared.nap_soft.delay(1.2).get(timeout=30)


def test_the_workers_own_limits_are_kept(shared: SharedSetup):
    """``task_soft_time_limit`` and ``task_time_limit`` hold for tasks without their own."""
    queue = shared.unique("limited")
    conf = {"task_soft_time_limit": 0.5, "task_time_limit": 5}
    with shared.another("-c", "1", queue=queue, conf=conf):
        with pytest.raises(SoftTimeLimitExceeded):
            shared.nap.apply_async((20,), queue=queue).get(timeout=30)
        answer = shared.nap.apply_async((0,), queue=queue).get(timeout=30)

    assert 0 == answer
