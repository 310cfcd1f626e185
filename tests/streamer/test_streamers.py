"""What both streamers of one machine do, in threads and in processes."""

from __future__ import annotations

import asyncio
import concurrent.futures
import gc
import threading
import time
import weakref

import pytest

from celery_batch.batching.policy import BatchPolicy
from celery_batch.errors import (
    ConfigurationError,
    LoadFailed,
    ModelError,
    QueueFull,
    StreamerClosed,
    WrongResultCount,
)
from celery_batch.processes.managed_process import wait_until
from celery_batch.streamer import Streamer, ThreadedStreamer, base
from celery_batch.testing import HungryModel
from tests.apps.models.streamer_models import Exiting, count, drop, play, refill


@pytest.fixture(scope="module", params=[ThreadedStreamer, Streamer], ids=["thread", "process"])
def streamer(request):
    """A streamer of batches of four, one for all tests of this module."""
    with request.param(play, 4) as made:
        yield made


def test_predict_answers_in_order(streamer):
    """As many outputs come back as went in, in their order, however many there are."""
    assert [*range(11)] == streamer.predict(range(11))
    assert [7] == streamer.predict([7])
    assert [] == streamer.predict([])


@pytest.mark.parametrize("batch", ["ab", b"ab", {"a": 1}])
def test_one_value_is_no_batch(streamer, batch):
    """The letters of a text, or the keys of a dict, are not taken for items."""
    words = rf"a streamer takes a list of items, got a {type(batch).__name__}; for one item write"
    for ask in (
        streamer.predict,
        streamer.submit,
        lambda batch: asyncio.run(streamer.apredict(batch)),
    ):
        with pytest.raises(TypeError, match=words):
            ask(batch)


@pytest.mark.parametrize("kind", [ThreadedStreamer, Streamer], ids=["thread", "process"])
def test_model_that_fills_its_outputs_again(kind):
    """What a request has got does not change with the next batch."""
    with kind(refill, 4) as streamer:
        futures = [streamer.submit([number]) for number in range(100)]
        found = [future.result(timeout=30.0)[0] for future in futures]

    rows = [each[1] if isinstance(each, tuple) else each for each in found]
    assert [[float(number)] * 1000 for number in range(100)] == [row.tolist() for row in rows]


def test_many_threads_share_batches(streamer):
    """Items of requests from many threads run together, and each has its own answer."""
    streamer.submit([("sleep", 0.3)])  # the first requests wait for it, and for each other
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda item: streamer.predict([item, "size"]), range(40)))

    assert [*range(40)] == [item for item, _ in answers]
    assert max(size for _, size in answers) == 4


def test_submit_gives_a_future(streamer):
    """A future is one of the standard library's; its result can be had twice, done() is a bool."""
    future = streamer.submit(["a", "b"])

    assert isinstance(future, concurrent.futures.Future)
    assert ["a", "b"] == future.result(timeout=20) == future.result()
    assert (True, None) == (future.done(), future.exception())


def test_futures_work_with_the_standard_library(streamer):
    """wait, as_completed and callbacks take our futures as they take any."""
    futures = [streamer.submit([each]) for each in range(10)]
    called = threading.Event()
    futures[-1].add_done_callback(lambda _: called.set())

    assert {*range(10)} == {each.result()[0] for each in concurrent.futures.as_completed(futures)}
    assert set(futures) == concurrent.futures.wait(futures).done
    assert called.wait(20)


def test_future_is_awaited(streamer):
    """Coroutines wait by a method of their own, or by asyncio's wrap_future."""

    async def ask():
        """Wait for the future as coroutines do."""
        wrapped = asyncio.wrap_future(streamer.submit([1]))
        return await asyncio.gather(wrapped, streamer.apredict([2]), streamer.apredict([3] * 9))

    assert [[1], [2], [3] * 9] == asyncio.run(ask())


def test_error_is_its_items_alone(streamer):
    """What makes the model raise fails alone; neighbours and followers are answered."""
    futures = [streamer.submit([item]) for item in ("a", "raise", "b", "c")]

    with pytest.raises(ValueError, match="cannot digest this"):
        futures[1].result()
    assert [["a"], ["b"], ["c"]] == [futures[each].result() for each in (0, 2, 3)]
    assert ["after"] == streamer.predict(["after"])


def test_error_in_a_part_fails_the_whole(streamer):
    """A request of more items than a batch has fails with the error of any of them."""
    with pytest.raises(ValueError, match="cannot digest this"):
        streamer.predict([*range(9), "raise"])


def test_model_that_exits_does_not_take_the_streamer_along(streamer):
    """Not even an exit from within the model keeps others from their answers."""
    futures = [streamer.submit([item]) for item in ("a", "leave", "b")]

    with pytest.raises(ModelError, match="broke off: SystemExit"):
        futures[1].result()
    assert [["a"], ["b"]] == [futures[0].result(), futures[2].result()]
    assert ["after"] == streamer.predict(["after"])


def test_callback_that_exits_ends_no_thread(streamer):
    """Whatever a callback does, others are answered."""
    called = threading.Event()

    def leave(_):
        called.set()
        raise SystemExit

    streamer.submit([("sleep", 0.1)]).add_done_callback(leave)

    assert called.wait(20)
    assert ["after"] == streamer.predict(["after"])


def test_answers_can_be_locked_in_any_order(streamer):
    """The lock of one answer does not block another answer, or waits could block each other."""
    held, other = (streamer.submit([("sleep", 0.1)]) for _ in range(2))

    def can_be_had():
        with other._condition:
            return True

    with concurrent.futures.ThreadPoolExecutor(1) as pool, held._condition:
        assert pool.submit(can_be_had).result(20)
    assert {held, other} == concurrent.futures.wait([held, other], 20).done


def test_failed_request_cannot_be_given_up(streamer):
    """A request that failed in its first part stays failed, though its other parts never ran."""
    whole = streamer.submit(["raise", *range(40)])

    assert isinstance(whole.exception(), ValueError)
    assert (False, False) == (whole.cancel(), whole.cancelled())


@pytest.fixture
def gate(tmp_path):
    """What an item names that waits until this file is there."""
    return tmp_path / "gate"


def test_timed_out_request_leaves_nothing(streamer, gate):
    """Who waits in vain is forgotten: its items never run, and later ones do."""
    blocked = [streamer.submit([("gate", str(gate))] * 4) for _ in range(3)]
    late = streamer.submit(["late"])
    with pytest.raises(TimeoutError, match=r"no answer within 0\.01 s; the request is pending"):
        late.result(0.01)

    assert late.cancel()
    assert late.cancelled()
    assert late.done()
    gate.touch()
    assert ["next"] == streamer.predict(["next"])
    assert [4, 4, 4] == [len(each.result()) for each in blocked]
    assert streamer._request_queue.answer_lock.given_up == 0


def test_apredict_gives_up_in_time(streamer, gate, monkeypatch):
    """A coroutine waits no longer than worker_timeout, and then gives its request up."""
    blocked = [streamer.submit([("gate", str(gate))] * 4) for _ in range(3)]
    monkeypatch.setattr(streamer, "worker_timeout", 0.05)
    with pytest.raises(TimeoutError):
        asyncio.run(streamer.apredict(["late"]))
    gate.touch()

    assert [4, 4, 4] == [len(each.result()) for each in blocked]


def test_lone_request_does_not_wait(streamer):
    """One request alone waits for linger, and by far not for max_latency."""
    streamer.predict([0])
    times = []
    for _ in range(10):
        started = time.monotonic()
        streamer.predict([0])
        times.append(time.monotonic() - started)

    assert min(times) < 0.05


@pytest.mark.parametrize("kind", [ThreadedStreamer, Streamer], ids=["thread", "process"])
class TestOnce:
    """What takes a streamer of its own."""

    def test_clients_of_a_slow_model_share_its_batches(self, kind):
        """A client that came before 15 others and asks again with them is in their next batch."""
        with kind(count, 16) as streamer:
            streamer._begin()._batcher.policy = BatchPolicy(16, 20.0, linger=2.0)
            first = streamer.submit([0])
            _wait_until_running(first)
            crowd = [streamer.submit([each]) for each in range(15)]
            assert [1] == first.result()
            _wait_until_running(crowd[0])
            crowd.append(streamer.submit([15]))  # while the others' batch runs
            sizes = []
            for _ in range(4):
                sizes.append([future.result()[0] for future in crowd[:15]])
                crowd[:15] = [streamer.submit([each]) for each in range(15)]
                sizes[-1].append(crowd[15].result()[0])
                crowd[15] = streamer.submit([15])

        assert [[15] * 15 + [16]] + [[16] * 16] * 3 == sizes

    def test_full_queue_raises_at_once(self, kind, gate):
        """With max_queue, what would wait behind too many is refused at once."""
        with kind(play, 1, max_queue=3) as streamer:
            _wait_until_running(streamer.submit([("gate", str(gate))]))
            with pytest.raises(QueueFull, match="items wait and 4 more are too many for 3"):
                streamer.submit([1, 2, 3, 4])
            waiting = [streamer.submit([each]) for each in range(3)]
            if kind is Streamer:  # one may lie ready behind the one that runs
                _wait_until_running(waiting[0])
                waiting.append(streamer.submit([3]))
            with pytest.raises(QueueFull):
                streamer.submit([4])

            assert waiting.pop().cancel()
            waiting.append(streamer.submit([9]))
            gate.touch()
            assert [9] == [each.result() for each in waiting][-1]

    def test_destroyed_streamer_says_so(self, kind, gate):
        """When workers end, what runs is finished, what waits fails, and no more is taken."""
        streamer = kind(play, 1)
        running = streamer.submit([("gate", str(gate))])
        _wait_until_running(running)
        waiting = [streamer.submit([each]) for each in range(3)]
        _destroy(streamer, gate)

        assert [("gate", str(gate))] == running.result()
        with pytest.raises(StreamerClosed, match="make a new one"):
            waiting[-1].result()
        with pytest.raises(StreamerClosed):
            streamer.submit([1])

    def test_cancelled_futures_are_done_when_the_streamer_ends(self, kind, gate):
        """A future that was cancelled in the queue is done for threads that wait for it."""
        streamer = kind(play, 1)
        running = streamer.submit([("gate", str(gate))])
        _wait_until_running(running)
        ready = streamer.submit([0])  # in a worker process it lies ready behind the first
        waiting = [streamer.submit([each]) for each in range(3)]
        assert waiting[0].cancel()
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            waiter = pool.submit(concurrent.futures.wait, waiting, 60)
            _destroy(streamer, gate)

            assert (set(waiting), set()) == waiter.result()
        assert waiting[0].cancelled()
        assert isinstance(waiting[1].exception(), StreamerClosed)
        assert ready.done()

    def test_model_that_loses_count_is_found_out(self, kind):
        """One output too few is an error of all, and never a wrong answer."""
        with kind(drop, 2) as streamer, pytest.raises(WrongResultCount, match="1 outputs for a"):
            streamer.predict([1, 2])

    def test_model_that_runs_out_of_memory(self, kind):
        """A batch that does not fit is run again in parts, and the size that fits is kept to."""
        with kind(HungryModel, 64) as streamer:
            assert [*range(64)] == streamer.predict(range(64))

    def test_model_whose_loading_exits(self, kind):
        """A program that leaves where weights are missing fails its requests, at once."""
        with kind(Exiting, 4) as streamer, pytest.raises(LoadFailed, match="SystemExit: no weig"):
            streamer.predict([1])

    def test_first_come_first_served(self, kind):
        """Requests are answered in the order in which they came."""
        ended = []
        with kind(play, 1) as streamer:
            futures = [streamer.submit([("sleep", 0.2)])]
            for number in range(8):
                futures.append(streamer.submit([number]))
                futures[-1].add_done_callback(lambda future: ended.extend(future.result()))
            concurrent.futures.wait(futures)

        assert [*range(8)] == ended

    def test_forgotten_streamer_ends(self, kind):
        """A streamer that is garbage collected ends its workers."""
        streamer = kind(play, 1)
        streamer.predict([1])
        request_queue = weakref.ref(streamer._request_queue)
        del streamer

        wait_until(lambda: _held(request_queue), [], what="the end", timeout=60)

        assert "" == _held(request_queue)

    def test_forgotten_streamer_answers_first(self, kind):
        """Futures of a streamer that is garbage collected are answered, then its workers end."""
        streamer = kind(play, 1)
        request_queue = weakref.ref(streamer._begin())
        futures = [streamer.submit([each]) for each in (("sleep", 0.2), 1, 2, 3)]
        futures[3].cancel()
        del streamer
        gc.collect()

        assert [[("sleep", 0.2)], [1], [2]] == [each.result(20) for each in futures[:3]]
        wait_until(lambda: _held(request_queue), [], what="the end", timeout=60)


def _destroy(streamer, gate):
    """Destroy its workers, and have what runs go on when it takes no more requests."""
    ending = threading.Thread(target=streamer.destroy_workers)
    ending.start()
    is_open = lambda: "open" if streamer._request_queue.is_open else ""  # noqa: E731
    wait_until(is_open, [], what="the end", timeout=60)
    gate.touch()
    ending.join()


def _wait_until_running(future):
    wait_until(lambda: "" if future.running() else "pending", [], what="the batch", timeout=60)


def _held(request_queue):
    gc.collect()
    return "" if request_queue() is None else f"{request_queue()} is held"


def test_destroyed_in_the_midst_of_a_submit(monkeypatch):
    """A signal's handler that destroys workers while its own thread submits blocks nothing."""
    monkeypatch.setattr(base, "GRACE", 0.1)
    streamer = ThreadedStreamer(play, 4)
    streamer.predict([0])
    batcher = streamer._request_queue._batcher
    add = batcher.add

    def interrupted(request):
        streamer.destroy_workers()
        add(request)

    monkeypatch.setattr(batcher, "add", interrupted)

    with pytest.raises(StreamerClosed):
        streamer.submit([1]).result(5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "^batch_size: must be"),
        ({"batch_size": 4, "max_latency": -1}, "^max_latency: must be"),
        ({"batch_size": 4, "max_queue": 0}, "max_queue: must be"),
        ({"batch_size": 4, "worker_timeout": "x"}, "worker_timeout: must be"),
        ({"batch_size": 4, "worker_num": 0}, "worker_num: must be"),
        ({"batch_size": 4, "worker_num": 1, "mp_start_method": "thread"}, "mp_start_method: must"),
    ],
    ids=["size", "latency", "queue", "timeout", "workers", "method"],
)
def test_wrong_options_are_refused(options, message):
    """What cannot be is refused when the streamer is made, by a message that names it."""
    kind = Streamer if "worker_num" in options else ThreadedStreamer
    with pytest.raises(ConfigurationError, match=message):
        kind(play, **options)
