"""The numbers that a user may set."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_batch import BatchPolicy, ConfigurationError
from celery_batch.batching.policy import DEFAULT_LINGER

SECONDS = st.floats(min_value=0, max_value=3600)


def test_defaults_suit_a_web_service():
    """By default a batch holds up to 32 requests that wait at most 10 ms."""
    policy = BatchPolicy()

    assert (32, 0.01, None) == (policy.max_batch_size, policy.max_wait, policy.linger)
    assert 0.002 == policy.linger_seconds == DEFAULT_LINGER


@given(max_wait=SECONDS, linger=st.none() | SECONDS)
def test_linger_is_never_above_max_wait(max_wait: float, linger: float | None):
    """A slot lingers for the given time, or 2 ms, and max_wait bounds both."""
    policy = BatchPolicy(max_wait=max_wait, linger=linger)
    expected = 0.002 if linger is None else linger

    assert min(expected, max_wait) == policy.linger_seconds


def test_linger_of_none_is_not_a_linger_of_zero():
    """0 means not to linger at all; None means the default."""
    assert 0 == BatchPolicy(linger=0).linger_seconds
    assert 0.002 == BatchPolicy(linger=None).linger_seconds


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


def test_max_wait_must_be_given_as_a_number():
    """None is the default of linger, and no value of max_wait."""
    with pytest.raises(ConfigurationError, match="max_wait: must be seconds"):
        BatchPolicy(max_wait=None)


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


def test_refusals_are_value_errors_too():
    """Code that knows only Python's own errors catches them as well."""
    with pytest.raises(ValueError, match="max_batch_size"):
        BatchPolicy(max_batch_size=0)


@pytest.mark.parametrize("name", ["max_batch_size", "max_wait", "linger"])
def test_policy_cannot_be_changed_afterwards(name: str):
    """A policy is immutable, so it stays as it was checked."""
    policy = BatchPolicy()
    with pytest.raises(AttributeError):
        setattr(policy, name, 1)

    assert BatchPolicy() == policy
