"""A model loaded anew beside the one that answers, and taken up between two batches."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import count
from typing import Any

import pytest

from celery_batch import LoadFailed, Model
from celery_batch.runtime import devices, registry
from celery_batch.runtime.registry import (
    BatchInstances,
    discard,
    instance_of,
    load_again,
    swap_in,
    unload,
    unload_all,
)
from celery_batch.testing import EchoModel


@pytest.fixture(autouse=True)
def empty_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A process without models, on the CPU; it is restored after the test."""
    monkeypatch.setattr(registry, "_instances", {})
    monkeypatch.setattr(registry, "_standby", {})
    monkeypatch.setattr(registry, "_device", None)
    monkeypatch.setattr(devices, "discover", lambda: ["cpu"])
    yield
    unload_all()


@contextmanager
def one_batch() -> Iterator[None]:
    """Run a batch on this thread, from its beginning to its end."""
    instances = BatchInstances()
    with instances.in_use():
        yield
    instances.release()


@pytest.fixture
def diary() -> list[Any]:
    """What the models of a test did, in order."""
    return []


@pytest.fixture
def numbered(diary: list[Any]) -> type[Model]:
    """A model whose instances have numbers; the third cannot be loaded."""
    numbers = count(1)

    class Numbered(EchoModel):
        def load(self, device: str) -> None:  # noqa: ARG002 (the model's signature)
            self.number = next(numbers)
            diary.append(("load", self.number))
            if self.number == 3:
                raise ValueError("no weights")

        def unload(self) -> None:
            diary.append(("unload", self.number))

    return Numbered


def number_of(model: Any) -> int:
    """Return the number of the instance that answers."""
    return instance_of(model).number  # type: ignore[attr-defined, no-any-return]


def test_old_one_answers_until_the_new_one_is_taken_up(numbered: type[Model], diary: list[Any]):
    """Loading beside changes nothing; taking up unloads the old one."""
    numbers = [number_of(numbered)]
    load_again(numbered)
    numbers.append(number_of(numbered))
    swap_in(numbered)
    numbers.append(number_of(numbered))

    assert [1, 1, 2] == numbers
    assert [("load", 1), ("load", 2), ("unload", 1)] == diary


def test_failed_load_and_change_of_mind_leave_the_old_one(numbered: type[Model], diary: list[Any]):
    """What cannot be loaded, or is let go of, is never taken up."""
    instance_of(numbered)
    load_again(numbered)
    discard(numbered)
    with pytest.raises(LoadFailed, match="no weights"):
        load_again(numbered)
    swap_in(numbered)

    assert 1 == number_of(numbered)
    assert [("load", 1), ("load", 2), ("unload", 2), ("load", 3)] == diary


def test_batch_has_one_instance_to_its_end(numbered: type[Model], diary: list[Any]):
    """Slices of a batch meet one instance, which is unloaded when the batch has ended."""
    instance_of(numbered)
    load_again(numbered)
    with ThreadPoolExecutor() as threads, one_batch():
        numbers = [number_of(numbered)]
        taking = threads.submit(swap_in, numbered)
        while threads.submit(number_of, numbered).result(10) == 1:
            pass  # it has begun to take it up when others meet the new one
        numbers.append(number_of(numbered))
        before = list(diary)
    taking.result(10)

    assert [1, 1] == numbers
    assert ("unload", 1) not in before
    assert ("unload", 1) == diary[-1]
    assert 2 == number_of(numbered)


def test_batch_keeps_its_instance_from_thread_to_thread(numbered: type[Model], diary: list[Any]):
    """A batch that was prepared before the new instance came ends with the old one."""
    instance_of(numbered)
    load_again(numbered)
    instances = BatchInstances()
    with ThreadPoolExecutor() as threads:
        with instances.in_use():
            numbers = [number_of(numbered)]
        taking = threads.submit(swap_in, numbered)
        while number_of(numbered) == 1:
            pass  # it has begun to take it up when others meet the new one
        with instances.in_use():
            numbers.append(number_of(numbered))
        before = list(diary)
        instances.release()
        taking.result(10)

    assert [1, 1] == numbers
    assert ("unload", 1) not in before
    assert ("unload", 1) == diary[-1]


def test_one_that_is_left_is_loaded_by_who_comes_next(numbered: type[Model], diary: list[Any]):
    """In place the old one is gone before the new one is there."""
    instance_of(numbered)
    unload(numbered)

    assert 2 == number_of(numbered)
    assert [("load", 1), ("unload", 1), ("load", 2)] == diary


def test_what_does_not_live_here_is_not_loaded(numbered: type[Model], diary: list[Any]):
    """A model that has not been used is loaded by the first batch that needs it."""
    load_again(numbered)
    swap_in(numbered)
    unload(numbered)

    assert [] == diary


def test_batches_on_threads_are_all_awaited(numbered: type[Model], diary: list[Any]):
    """The old one is unloaded when the last of several batches has ended."""
    instance_of(numbered)
    load_again(numbered)
    gates = [threading.Event(), threading.Event()]
    inside = threading.Barrier(3)

    def batch(validator: threading.Event) -> None:
        with one_batch():
            instance_of(numbered)
            inside.wait(10)
            validator.wait(10)

    with ThreadPoolExecutor() as threads:
        batches = [threads.submit(batch, validator) for validator in gates]
        inside.wait(10)
        taking = threads.submit(swap_in, numbered)
        gates[0].set()
        batches[0].result(10)
        before = list(diary)
        gates[1].set()
        taking.result(10)

    assert ("unload", 1) not in before
    assert ("unload", 1) == diary[-1]
