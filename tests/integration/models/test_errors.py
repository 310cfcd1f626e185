"""Whatever goes wrong, the right task hears of it and the worker goes on."""

from __future__ import annotations

from pathlib import Path

import pytest
from kombu.exceptions import EncodeError

from celery_batch import WrongResultCount
from tests.services.setup import Setup, open_setup
from tests.services.shared_setup import SharedSetup


def together(setup: SharedSetup, *words: str) -> list:
    """Send words that share a batch, the first of them in front; return their results."""
    return list(setup.odd.delay_many(words))


def test_exception_instance_fails_its_own_item(redis_shared: SharedSetup):
    """An exception in the model's list is that item's error; its neighbours succeed."""
    good, bad, fine = together(redis_shared, "good", "bad", "fine")

    assert "GOOD" == good.get(timeout=30)
    with pytest.raises(ValueError, match="a bad item"):
        bad.get(timeout=30)
    assert "FINE" == fine.get(timeout=30)


def test_exception_is_its_own_item_s(redis_shared: SharedSetup):
    """What the model raises is what the bad item's caller gets; the others get their answers."""
    bad, *good = together(redis_shared, "raise", "a", "b")

    assert ["A", "B"] == [result.get(timeout=30) for result in good]
    with pytest.raises(RuntimeError, match="the model broke"):
        bad.get(timeout=30)


def test_traceback_points_into_the_model(redis_shared: SharedSetup):
    """A bad item's traceback shows where the model raised, once."""
    bad, *_ = together(redis_shared, "raise", "a", "b", "c")
    bad.get(timeout=30, propagate=False)

    assert "the model broke" in bad.traceback
    assert 1 == bad.traceback.count("in odd")


def test_wrong_number_of_outputs_is_an_error_for_all(redis_shared: SharedSetup):
    """A list of another length is never cut to fit."""
    results = together(redis_shared, "short", "a", "b")
    for result in results:
        with pytest.raises(WrongResultCount, match=r"shop\.odd returned \d outputs for a batch"):
            result.get(timeout=30)


def test_returning_nothing_is_explained(redis_shared: SharedSetup):
    """A forgotten return statement gets a message that says so."""
    with pytest.raises(WrongResultCount, match=r"shop\.odd returned None for a batch of 1"):
        redis_shared.odd.delay("none").get(timeout=30)


def test_unserialisable_output_fails_its_own_item(redis_shared: SharedSetup):
    """An output that cannot be stored fails its item, not its neighbours."""
    good, odd = together(redis_shared, "good", "unserialisable")

    assert "GOOD" == good.get(timeout=30)
    with pytest.raises(EncodeError):
        odd.get(timeout=30)


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        ("set", r"^shop\.odd: the output has a set at \['of'\]\[0\].*return a list of its values"),
        ("ndarray", r"numpy\.ndarray at \['of'\]\[0\].*\.tolist\(\)"),
        ("masked", r"numpy\.MaskedArray at \['of'\]\[0\].*\.filled\(\)"),
    ],
)
def test_an_output_that_json_has_not_says_what_to_return(
    redis_shared: SharedSetup, kind: str, error: str
):
    """The error says which value it is, where it stands, and what can be stored."""
    results = together(redis_shared, "good", kind, kind)

    assert "GOOD" == results[0].get(timeout=30)
    for result in results[1:]:
        with pytest.raises(EncodeError, match=error):
            result.get(timeout=30)


def test_a_tensor_says_so_on_a_backend_of_files(broker: str, tmp_path: Path):
    """What is stored one by one, and not in Redis, is explained as well."""
    results = tmp_path / "results"
    results.mkdir()
    with open_setup(broker, tmp_path, backend=results.as_uri(), memory=broker) as setup:
        setup.worker("-c", "1")
        result = setup.odd.delay("tensor")

        with pytest.raises(EncodeError, match=r"torch\.Tensor at \['of'\]\[0\].*\.to_dense\(\)"):
            result.get(timeout=60)


@pytest.mark.parametrize(
    ("options", "texts"),
    [(("-l", "WARNING"), 0), (("-l", "INFO"), 8), (("-l", "WARNING", "-E"), 8)],
    ids=["nobody", "log", "events"],
)
def test_the_text_of_an_output_is_made_where_somebody_reads_it(
    setup: Setup, options: tuple[str, ...], texts: int
):
    """It is made for the worker's log and for events, and not where there is neither."""
    setup.worker("-c", "1", *options)
    for result in setup.shown.delay_many(range(8)):
        result.get(timeout=30)

    assert texts == setup.shown.delay(8).get(timeout=30)


def test_wrong_arguments_fail_their_own_item(redis_shared: SharedSetup):
    """A call that does not fit the signature fails alone, also from a client without checks."""
    fine = redis_shared.join.delay("a", "b")
    wrong = redis_shared.app.send_task("shop.join", ("a", "b", "c", "d"))

    assert "a-b" == fine.get(timeout=30)
    with pytest.raises(TypeError, match=r"^shop\.join: too many positional arguments; it takes \("):
        wrong.get(timeout=30)
