"""Streamers whose batches have one key."""

from __future__ import annotations

import threading
import time

import pytest

from celery_batch import Model
from celery_batch.errors import ConfigurationError, InvalidKey
from celery_batch.streamer import Streamer, ThreadedStreamer


def describe(batch):
    """Answer each item with the whole batch that it is in."""
    return [(item, sorted(set(map(len, batch)))) for item in batch]


@pytest.fixture(scope="module", params=[ThreadedStreamer, Streamer], ids=["thread", "process"])
def streamer(request):
    """A streamer of batches of texts of one length."""
    with request.param(describe, 4, max_latency=30.0, batch_by=len) as made:
        yield made


def test_only_items_of_one_key_share_a_batch(streamer):
    """However many items a request has, and in whatever order."""
    texts = ["a", "bb", "c", "ddd", "ee", "f", *"ghijklmn"]

    assert [(text, [len(text)]) for text in texts] == streamer.predict(texts)
    assert [] == streamer.predict([])


def test_items_of_many_threads_share_batches(streamer):
    """Each gets its own output, from a call with items of its key."""
    found = {}

    def ask(text):
        found[text] = streamer.predict([text])

    threads = [threading.Thread(target=ask, args=("x" * (n % 3 + 1) + str(n),)) for n in range(30)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert {text: [(text, [len(text)])] for text in found} == found
    assert 30 == len(found)


def test_a_key_does_not_wait_for_another():
    """A slot that watches for more of one key serves the next one at once if that need not wait."""

    def slow(batch):
        time.sleep(0.05)
        return batch

    with ThreadedStreamer(slow, 2, max_latency=20.0, batch_by=len) as streamer:
        streamer.predict(["a", "b"])  # after which one of this key waits for another
        waiting = streamer.submit(["a"])
        assert ["aaa", "bbb"] == streamer.predict(["aaa", "bbb"])
        assert ["a"] == waiting.result(timeout=10)


@pytest.mark.parametrize(
    ("batch_by", "message"), [(lambda item: [item], "TypeError: unhashable"), (len, "TypeError")]
)
def test_an_item_without_a_key_is_refused(batch_by, message):
    """When it is submitted; others are not affected."""
    with ThreadedStreamer(describe, 2, batch_by=batch_by) as streamer:
        with pytest.raises(
            InvalidKey, match=f"must return a hashable key for each item: {message}"
        ):
            streamer.submit([1])

        assert 0 == streamer._request_queue._rows


def test_a_model_may_say_by_what():
    """As for tasks; together with a cost as well."""

    class Described(Model):
        batch_by = staticmethod(len)
        cost = staticmethod(len)

        def predict(self, batch):
            return describe(batch)

    texts = ["a", "bb", "c", "dd", "e", "f"]
    with ThreadedStreamer(Described, 8, max_batch_cost=4) as streamer:
        assert [(text, [len(text)]) for text in texts] == streamer.predict(texts)


@pytest.mark.parametrize("kind", [ThreadedStreamer, Streamer])
def test_a_name_is_no_key(kind):
    """A streamer's function has one parameter."""
    with pytest.raises(ConfigurationError, match="batch_by: must be a function of an item"):
        kind(describe, 2, batch_by="language")
