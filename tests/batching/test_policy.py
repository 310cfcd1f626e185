"""The numbers that a user may set."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_batch import BatchPolicy, ConfigurationError

SECONDS = st.floats(min_value=0, max_value=3600)


@given(max_wait=SECONDS, linger=st.none() | SECONDS)
def test_linger_is_never_above_max_wait(max_wait: float, linger: float | None):
    """A slot lingers for the given time, or 2 ms, and max_wait bounds both."""
    policy = BatchPolicy(max_wait=max_wait, linger=linger)
    expected = 0.002 if linger is None else linger

    assert min(expected, max_wait) == policy.linger_seconds


@pytest.mark.parametrize("size", [0, -1, 1.5, 2.0, "8", None, True], ids=repr)
def test_invalid_sizes_are_refused(size: object):
    """The message names the option, what it must be and what it was."""
    with pytest.raises(ConfigurationError) as refusal:
        BatchPolicy(max_batch_size=size)

    assert f"max_batch_size: must be a whole number of at least 1, got {size!r}" == str(
        refusal.value
    )


@pytest.mark.parametrize("name", ["max_wait", "linger"])
@pytest.mark.parametrize(
    "value", [-0.001, float("nan"), float("inf"), float("-inf"), "10ms", True, 1j], ids=repr
)
def test_invalid_times_are_refused(name: str, value: object):
    """A time is a finite number from 0 up."""
    with pytest.raises(ConfigurationError) as refusal:
        BatchPolicy(**{name: value})

    assert f"{name}: must be seconds as a number from 0 up, got {value!r}" == str(refusal.value)


@pytest.mark.parametrize("weight", [0, -1.0, True, "2", float("inf"), float("nan")])
def test_device_share_must_be_a_positive_number(weight: object):
    """Whatever a user may have set it to."""
    with pytest.raises(ConfigurationError) as refusal:
        BatchPolicy(device_share=weight)

    assert f"device_share: must be a number above 0, got {weight!r}" == str(refusal.value)


@pytest.mark.parametrize("share", [-0.1, 0.6, float("nan"), "a tenth", None, True], ids=repr)
def test_share_is_a_number_up_to_a_half(share: object):
    """With more, less urgent requests would go before urgent ones."""
    with pytest.raises(ConfigurationError) as refusal:
        BatchPolicy(low_priority_share=share)

    assert f"low_priority_share: must be a number from 0 to 0.5, got {share!r}" == str(
        refusal.value
    )


@pytest.mark.parametrize("ttl", [0, 0.0005, True, "1h", float("inf"), float("nan")], ids=repr)
def test_answers_are_kept_for_seconds(ttl: object):
    """At least the millisecond that Redis counts."""
    with pytest.raises(ConfigurationError) as refusal:
        BatchPolicy(cache_ttl=ttl)

    assert f"cache_ttl: must be seconds above 0, or None for no cache, got {ttl!r}" == str(
        refusal.value
    )


@pytest.mark.parametrize("dedupe", [None, 1, "yes"], ids=repr)
def test_rows_are_shared_or_not(dedupe: object):
    """There is no third way."""
    with pytest.raises(ConfigurationError, match=r"^dedupe: must be True or False, got "):
        BatchPolicy(dedupe=dedupe)
