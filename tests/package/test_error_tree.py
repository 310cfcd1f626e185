"""One tree of errors that survives every way home."""

from __future__ import annotations

import pickle

import pytest
from celery import Celery, states

from celery_batch import errors
from celery_batch.errors import (
    BatchError,
    ConfigurationError,
    LoadFailed,
    MessageRefused,
    MessageTooLarge,
    ModelError,
    QueueFull,
    WrongResultCount,
)

ALL = [getattr(errors, name) for name in errors.__all__]


@pytest.fixture
def app() -> Celery:
    """An app whose results are kept in memory, as JSON."""
    return Celery("shop", backend="cache+memory://", set_as_current=False)


@pytest.mark.parametrize("kind", ALL)
def test_every_error_belongs_to_the_tree(kind: type[BatchError]):
    """One except clause catches all of ours."""
    assert issubclass(kind, BatchError)


def test_branches_tell_whose_fault_it_was():
    """The model's errors differ from those of settings, which are value errors, too."""
    assert issubclass(LoadFailed, ModelError)
    assert issubclass(WrongResultCount, ModelError)
    assert issubclass(ConfigurationError, ValueError)
    assert not issubclass(ConfigurationError, ModelError)


@pytest.mark.parametrize("kind", ALL)
def test_silent_error_says_what_its_class_means(kind: type[BatchError]):
    """Without a message the docstring is the message."""
    assert kind.__doc__ == str(kind())
    assert str(kind()).endswith(".")


@pytest.mark.parametrize("kind", ALL)
def test_given_message_is_the_message(kind: type[BatchError]):
    """What was said wins over the class's own words."""
    assert "size: too large" == str(kind("size: too large"))


def test_error_of_your_own_without_words_stays_silent():
    """A subclass without a docstring borrows no other class's."""

    class Wordless(BatchError):
        pass

    assert "" == str(Wordless())


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        (BatchError, 500),
        (ConfigurationError, 500),
        (ModelError, 500),
        (LoadFailed, 503),
        (MessageRefused, 400),
        (MessageTooLarge, 413),
        (WrongResultCount, 500),
    ],
)
def test_web_servers_know_what_to_answer(kind: type[BatchError], status: int):
    """The status belongs to the class, and every error has it."""
    assert status == kind.status_code == kind("message").status_code


@pytest.mark.parametrize("arguments", [(), ("message",)], ids=len)
@pytest.mark.parametrize("kind", ALL)
def test_errors_can_be_pickled(kind: type[BatchError], arguments: tuple[str, ...]):
    """Class, arguments and words come back."""
    error = pickle.loads(pickle.dumps(kind(*arguments)))  # noqa: S301 (our own)

    assert (kind, arguments) == (type(error), error.args)
    assert str(kind(*arguments)) == str(error)


@pytest.mark.parametrize("arguments", [(), ("message",)], ids=len)
@pytest.mark.parametrize("kind", ALL)
def test_errors_come_home_through_json_results(
    app: Celery, kind: type[BatchError], arguments: tuple[str, ...]
):
    """What a worker stores as JSON, a caller raises as the same class with the same words."""
    app.backend.store_result("some-id", kind(*arguments), states.FAILURE)
    with pytest.raises(kind) as caught:
        app.AsyncResult("some-id").get(timeout=1)

    assert kind is type(caught.value)
    assert str(kind(*arguments)) == str(caught.value)
    assert kind.status_code == caught.value.status_code


@pytest.mark.parametrize("words", [(), ("too many",)], ids=len)
@pytest.mark.parametrize("seconds", [None, 1.0, 2.5])
def test_seconds_to_try_again_come_home(app: Celery, words: tuple[str, ...], seconds: float | None):
    """They are in the arguments, which any serializer carries."""
    error = QueueFull(*words, retry_after=seconds)
    app.backend.store_result("some-id", error, states.FAILURE)
    stored = app.AsyncResult("some-id").result
    pickled = pickle.loads(pickle.dumps(error))  # noqa: S301 (our own)

    assert [seconds] * 3 == [each.retry_after for each in (error, stored, pickled)]
    assert [str(error)] * 2 == [str(stored), str(pickled)]
    assert str(error) == (words[0] if words else QueueFull.__doc__)
