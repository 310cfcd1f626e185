"""Large messages of ordinary tasks, in a worker that serves batch tasks."""

from __future__ import annotations

import pytest
from celery import chord
from celery.exceptions import NotRegistered

from celery_batch import MessageTooLarge
from tests.services.setup import Setup

#: A limit that these tests' large messages exceed.
LIMITED = {"batch_max_message_size": 20_000}

#: Below the limit as an argument of a batch task, above it as its result, which is twice as long.
TEXT = "x" * 9_000


def test_ordinary_task_beyond_the_default_limit(each_setup: Setup):
    """It is answered as in a stock worker, also after a batch task in a chain."""
    worker = each_setup.worker("-c", "1")

    assert 2 == each_setup.double.delay(1).get(timeout=60)
    assert 20_000_000 == each_setup.size.delay("x" * 20_000_000).get(timeout=60)
    array = each_setup.halved.s(5_000_000) | each_setup.size.s()  # of 20 MB
    assert 5_000_000 == array.delay().get(timeout=60)
    assert "Refused a message" not in worker.log


def test_large_results_of_batch_tasks_in_ordinary_ones(each_setup: Setup):
    """An ordinary task may follow in a chain or end a chord, whatever it is given."""
    each_setup.worker("-c", "1", conf=LIMITED)
    chain = each_setup.double.s(TEXT) | each_setup.size.s()
    body = chord([each_setup.double.s(TEXT)] * 3)(each_setup.size.s())

    assert 18_000 == chain.delay().get(timeout=60)
    assert 3 == body.get(timeout=60)


def test_unknown_task_of_any_size_fails_as_in_celery(each_setup: Setup):
    """Its caller learns that nobody knows it."""
    each_setup.worker("-c", "1", conf=LIMITED)
    result = each_setup.app.send_task("shop.unknown", ("x" * 30_000,))

    with pytest.raises(NotRegistered, match=r"shop\.unknown"):
        result.get(timeout=60)


def test_compressed_body_that_expands_beyond_the_limit(each_setup: Setup):
    """An ordinary task's is refused, too, and its caller and the log say which and why."""
    worker = each_setup.worker("-c", "1", conf=LIMITED)
    small = each_setup.size.apply_async(("x" * 10_000,), compression="zlib")
    large = each_setup.size.apply_async(("x" * 30_000,), compression="zlib")

    assert 10_000 == small.get(timeout=60)
    with pytest.raises(MessageTooLarge, match=r"^shop\.size: .* 20000 bytes when decompressed"):
        large.get(timeout=60)
    assert f"its task is 'shop.size'; its id is '{large.id}'" in worker.log
