"""What users of one device get of it, for any weights, amounts and estimates."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from celery_batch.worker.scheduling.priority import FairShare

WEIGHTS = st.lists(st.sampled_from([0.5, 1.0, 2.0, 3.0]), min_size=2, max_size=4)

#: Of each use: how long it takes, and how long it was expected to take.
USES = st.lists(
    st.tuples(st.floats(min_value=0.01, max_value=5.0), st.floats(min_value=0.01, max_value=5.0)),
    min_size=1,
    max_size=200,
)

#: What adding up amounts may cost in float arithmetic.
TOLERANCE = 1e-6


class Device:
    """A device that one user has at a time: the one whose use starts first."""

    def __init__(self, weights: Sequence[float]) -> None:
        self.share = FairShare()
        self.weights = weights
        self.had = [0.0] * len(weights)
        self.longest = [0.0] * len(weights)

    def use(self, users: Sequence[int], took: float, expected: float) -> int:
        """Let one of these users have the device; return which."""
        user = min(users, key=self.share.start)
        weight = self.weights[user]
        self.share.begin(self.share.charge(user, expected, weight))
        self.share.correct(user, took - expected, weight)
        self.had[user] += took / weight
        self.longest[user] = max(self.longest[user], took / weight)
        return user

    def assert_fair(self, users: Sequence[int]) -> None:
        """Check that no two of these differ by more than their longest uses, by weight."""
        for one in users:
            for other in users:
                most = self.longest[one] + self.longest[other] + TOLERANCE
                assert abs(self.had[one] - self.had[other]) <= most


@given(weights=WEIGHTS, uses=USES)
def test_users_who_always_want_more_get_parts_by_weight(
    weights: list[float], uses: list[tuple[float, float]]
):
    """However wrong the estimates are, at no time has one more than a use ahead of another."""
    device = Device(weights)
    for took, expected in uses:
        device.use(range(len(weights)), took, expected)
        device.assert_fair(range(len(weights)))


@given(weights=WEIGHTS, before=USES, uses=USES)
def test_who_was_idle_gets_no_credit(
    weights: list[float], before: list[tuple[float, float]], uses: list[tuple[float, float]]
):
    """From the time at which all want more, they get parts by weight, whatever was before."""
    device = Device(weights)
    for took, expected in before:  # the first user has the device for itself
        device.use([0], took, expected)
    device.had = [0.0] * len(weights)
    for took, expected in uses:
        device.use(range(len(weights)), took, expected)
        device.assert_fair(range(len(weights)))


def test_who_comes_late_goes_next():
    """A user without uses so far starts at the present, before the one that has the device."""
    share = FairShare()
    share.begin(share.charge("busy", 1.0))
    share.begin(share.charge("busy", 1.0))

    assert share.start("late") == 1.0
    assert share.start("busy") == 2.0


def test_several_uses_are_charged_before_they_begin():
    """Each starts where the last one of its user ends, and a correction moves the next one."""
    share = FairShare()

    assert [0.0, 2.0] == [share.charge("one", 1.0, 0.5), share.charge("one", 1.0, 0.5)]

    share.correct("one", -0.5, 0.5)
    share.correct("other", 3.0)

    assert (3.0, 3.0) == (share.start("one"), share.start("other"))
