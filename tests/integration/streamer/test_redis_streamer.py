"""RedisStreamer against a real worker: what service-streamer promises, and what it got wrong."""

from __future__ import annotations

import asyncio
import gc
import json
import weakref
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from celery.app.control import Control
from kombu.exceptions import OperationalError

from celery_batch import ConfigurationError, RedisStreamer
from celery_batch.client.results.pending import PendingResults
from celery_batch.errors import QueueFull
from celery_batch.processes.managed_process import wait_until
from tests.apps.memory import recall
from tests.services.shared_setup import eventually
from tests.services.streamer_workers import LONG, PROGRAMS, StreamerWorkers


def test_outputs_come_in_order(workers: StreamerWorkers):
    """A request of many items has one output for each, in the order of its items."""
    items = [f"item {number}" for number in range(40)]

    assert items == workers.streamer().predict(items)


def test_submit_returns_a_future(workers: StreamerWorkers):
    """It is a concurrent.futures.Future, whose answers can be read again and again."""
    future = workers.streamer().submit(["a", "b", "c"])

    assert isinstance(future, Future)
    assert ["a", "b", "c"] == future.result(timeout=LONG)
    assert ["a", "b", "c"] == future.result()
    assert future.done() is True
    assert future.exception() is None


def test_done_is_false_while_items_wait(workers: StreamerWorkers):
    """A future says False while it is not done, and wakes threads that wait for many."""
    streamer = workers.streamer()
    let_go = workers.hold(streamer)
    futures = [streamer.submit([number]) for number in range(3)]
    callbacks: list[object] = []
    futures[0].add_done_callback(callbacks.append)

    assert [False, False, False] == [future.done() for future in futures]

    let_go()
    done, _ = wait(futures, timeout=LONG)
    eventually(lambda: callbacks, "a callback, which comes after the waiters")

    assert set(futures) == done
    assert [futures[0]] == callbacks


def test_an_empty_request_is_answered_at_once(workers: StreamerWorkers):
    """No items, no outputs, as ever."""
    assert [] == workers.streamer().predict([])


def test_requests_of_threads_share_batches(workers: StreamerWorkers):
    """What many threads ask while the model is busy goes through it together."""
    streamer = workers.streamer()
    let_go = workers.hold(streamer)
    with ThreadPoolExecutor(7) as threads:
        asked = [threads.submit(streamer.predict, [f"t{number}"]) for number in range(7)]

        def missing() -> str:
            control = Control(streamer.app)  # a late reply goes to nobody
            if not (held := control.broadcast("batch_status", reply=True, timeout=5.0, limit=1)):
                return "no reply"
            (status,) = held[0].values()
            waiting = status[streamer.task.name]["waiting"]
            return "" if waiting == 7 else f"{waiting} wait"

        wait_until(missing, [workers.program], what="seven in line", timeout=LONG)
        let_go()
        answers = [future.result(timeout=LONG) for future in asked]

    assert [[f"t{number}"] for number in range(7)] == answers
    assert 7 == max(len(fact["items"]) for fact in recall("lab"))


def test_bytes_are_items_and_outputs(workers: StreamerWorkers):
    """An image goes there and its answer comes back as the bytes they are."""
    image = bytes(range(256)) * 100

    assert [image[::-1], b"txet"] == workers.streamer().predict([image, b"text"])


def test_an_error_fails_its_request_alone(workers: StreamerWorkers):
    """A predict that raises fails the request with that item, and no later call hangs."""
    streamer = workers.streamer()
    let_go = workers.hold(streamer)
    futures = [streamer.submit(items) for items in (["a", "b"], ["c", "bad", "bad"], ["d"])]
    let_go()

    with pytest.raises(ValueError, match="a bad item"):
        futures[1].result(timeout=LONG)
    assert isinstance(futures[1].exception(), ValueError)
    assert [["a", "b"], ["d"]] == [futures[0].result(LONG), futures[2].result(LONG)]
    assert ["later"] == streamer.predict(["later"])


def test_a_lone_request_does_not_wait_for_company(workers: StreamerWorkers):
    """The workers' max_latency is 30 s; a request that is alone is not kept for it."""
    streamer = workers.streamer(worker_timeout=15)

    assert ["alone"] == streamer.predict(["alone"])


def test_clients_of_a_slow_model_share_its_batches(workers: StreamerWorkers):
    """A Celery worker makes the batches that `ThreadedStreamer` and `Streamer` make."""
    streamer = workers.streamer("counting")
    with workers.run("counting_file.py", cwd=PROGRAMS) as worker:

        def wait_for(batches: int) -> None:
            def why() -> str:
                return "" if len(recall("counted")) >= batches else f"no batch {batches}"

            wait_until(why, [worker], what="a batch", timeout=LONG)

        first = streamer.submit(list(range(16)))
        wait_for(1)
        crowd = [streamer.submit([each]) for each in range(15)]
        assert [16] * 16 == first.result(LONG)
        wait_for(2)
        crowd.append(streamer.submit([15]))  # while the others' batch runs
        for _ in range(3):
            wait(crowd[:15])
            crowd[:15] = [streamer.submit([each]) for each in range(15)]
            wait(crowd[15:])
            crowd[15] = streamer.submit([15])
        wait(crowd)

    assert [16, 15, 16, 16, 16] == [fact["rows"] for fact in recall("counted")][:5]


def test_batches_are_limited_by_cost(workers: StreamerWorkers):
    """The options are those of the worker's task; items of similar length share a batch."""
    streamer = workers.streamer("cost")
    lengths = [2, 10] * 16
    futures = [streamer.submit(["x" * length]) for length in lengths]  # they wait for the worker
    with workers.run("cost_file.py", cwd=PROGRAMS):
        outputs = [future.result(LONG)[0] for future in futures]

    assert lengths == [own for own, _, _ in outputs]
    assert max(longest * rows for _, longest, rows in outputs) <= 40
    assert sum(longest for _, longest, _ in outputs) < 1.2 * sum(lengths)


def test_coroutines(workers: StreamerWorkers):
    """A coroutine awaits apredict, or wraps a future of submit; the loop goes on."""
    streamer = workers.streamer()

    async def ask() -> list[list[object]]:
        """Ask for many at once."""
        many = asyncio.gather(*(streamer.apredict([n, n + 1]) for n in range(10)))
        wrapped = asyncio.wrap_future(streamer.submit(["x"]))
        return [*await many, await wrapped]

    assert [*([n, n + 1] for n in range(10)), ["x"]] == asyncio.run(ask())
    with pytest.raises(ValueError, match="a bad item"):
        asyncio.run(streamer.apredict(["bad"]))


def test_a_timed_out_request_leaves_nothing(workers: StreamerWorkers):
    """Who gives up gets TimeoutError, and what was kept for the request is gone."""
    streamer = workers.streamer("nowhere", worker_timeout=0.05)
    with pytest.raises(TimeoutError, match=r"streamer\.nowhere.*worker_timeout"):
        streamer.predict(["a", "b"])
    with pytest.raises(TimeoutError, match=r"streamer\.nowhere"):
        asyncio.run(streamer.apredict(["c"]))
    future = streamer.submit(["d"])
    no_answer = r"no answer from the workers of queue 'streamer\.nowhere' within 0\.0\d s: is one"
    for wait_for in (future.result, future.exception):
        for given in ((), (0.01,)):
            with pytest.raises(TimeoutError, match=no_answer):
                wait_for(*given)
    del wait_for
    gone = weakref.ref(future)
    del future
    PendingResults.of(streamer.app).take_due(
        100
    )  # it drops those that have left when it is next used
    gc.collect()

    assert None is gone()
    assert 0 == len(PendingResults.of(streamer.app))


def test_a_future_with_a_callback_lives_until_it_is_called(workers: StreamerWorkers):
    """Nobody has to hold a future whose callback is to be called."""
    streamer = workers.streamer()
    let_go = workers.hold(streamer)
    outputs: list[object] = []
    streamer.submit(["a"]).add_done_callback(lambda future: outputs.append(future.result()))
    gc.collect()
    let_go()
    wait_until(
        lambda: "" if outputs else "not called", [workers.program], what="callback", timeout=LONG
    )

    assert [["a"]] == outputs


def test_a_cancelled_future_leaves_its_items_alone(workers: StreamerWorkers):
    """To cancel gives up waiting; the items run, and the next request is answered."""
    streamer = workers.streamer()
    let_go = workers.hold(streamer)
    future = streamer.submit(["given up"])

    assert future.cancel()

    let_go()

    assert ["next"] == streamer.predict(["next"])
    assert "given up" in workers.items()


def test_oldest_first_and_no_more_than_needed(workers: StreamerWorkers):
    """A busy worker leaves the line in Redis, and takes the oldest first."""
    streamer = workers.streamer()
    let_go = workers.hold(streamer)
    items = [f"{number:02}" for number in range(60)]
    futures = [streamer.submit([item]) for item in items]

    def taken() -> str:
        with workers.client() as client:
            left = client.llen(streamer.queue)
        return "" if left < 60 else "the worker has taken nothing"

    wait_until(taken, [workers.program], what="a full worker", timeout=LONG)
    with workers.client() as client:
        left = client.llen(streamer.queue)
    let_go()
    answers = [future.result(timeout=LONG) for future in futures]

    assert 60 - 3 * 8 <= left
    assert [[item] for item in items] == answers
    assert items == [item for item in workers.items() if item in items]


def test_each_prefix_is_a_queue_of_its_own(workers: StreamerWorkers):
    """Requests of one prefix are not taken by another's workers."""
    streamer = workers.streamer("other-model")
    future = streamer.submit(["for the other"])

    assert ["mine"] == workers.streamer().predict(["mine"])
    assert not future.done()
    with workers.client() as client:
        assert 1 == client.llen("streamer.other-model")
        client.delete("streamer.other-model")


def test_messages_are_json_and_pickle_is_refused(workers: StreamerWorkers):
    """What goes over a shared Redis is JSON, and a pickle is refused alone."""
    streamer = workers.streamer("other-model")
    streamer.submit(["as JSON"])
    with workers.client() as client:
        message = json.loads(client.rpop("streamer.other-model"))

    assert "application/json" == message["content-type"]

    with Celery(broker=workers.url, backend=workers.url, set_as_current=False) as stranger:
        stranger.conf.update(task_serializer="pickle", accept_content=["json"])
        stranger.send_task("streamer.lab.predict", ({"a": "pickle"},), queue="streamer.lab")

    assert ["still there"] == workers.streamer().predict(["still there"])
    assert not any("pickle" in item for item in workers.items())


def test_a_stock_celery_client_feeds_the_worker(workers: StreamerWorkers):
    """Queue, task and one argument are all that a Celery client has to know."""
    with Celery(broker=workers.url, backend=workers.url, set_as_current=False) as client:
        result = client.send_task("streamer.lab.predict", ("from Celery",), queue="streamer.lab")

        assert "from Celery" == result.get(timeout=LONG)
        client.backend.result_consumer.stop()


def test_inspect_and_retries_work(workers: StreamerWorkers):
    """The workers answer Celery's remote control, and an item may ask to be tried again."""
    streamer = workers.streamer()

    assert ["retry"] == streamer.predict(["retry"])
    inspect = streamer.app.control.inspect(timeout=60.0, limit=1)
    (names,) = [
        names
        for worker, names in inspect.registered().items()
        if worker.startswith("streamer.lab-")
    ]
    assert ["streamer.lab.predict"] == names


def test_the_model_is_given_its_arguments_and_gpu(workers: StreamerWorkers):
    """init_model's arguments arrive, and the first worker is on the first of the GPUs."""
    about = workers.streamer().predict(["about"])

    assert [["hello you", "0", "0"]] == [row[:3] for row in about]


def test_a_full_queue_raises_at_once(workers: StreamerWorkers):
    """With max_queue, what would wait behind too many is refused, and the others are answered."""
    streamer = workers.streamer("idle", max_queue=3)
    streamer.submit(["a", "b"])

    with pytest.raises(QueueFull, match=r"2 items wait in queue 'streamer\.idle'"):
        streamer.submit(["c", "d"])
    with pytest.raises(QueueFull, match="too many for max_queue=3"):
        asyncio.run(streamer.apredict(["c", "d"]))
    streamer.submit(["c"])
    with workers.client() as client:
        assert 3 == client.llen(streamer.queue)
        client.delete(streamer.queue)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_queue": 0}, "^max_queue: must be a whole number"),
        ({"max_queue": "x"}, "^max_queue: must be a whole number"),
        ({"worker_timeout": "x"}, "^worker_timeout: must be seconds"),
    ],
)
def test_wrong_options_of_a_redis_streamer(options: dict[str, Any], message: str):
    """They are refused when it is made, by a message that names them."""
    with pytest.raises(ConfigurationError, match=message):
        RedisStreamer(**options)


def test_a_full_queue_is_one_of_all_priorities(workers: StreamerWorkers):
    """What waits with another priority, as other clients may send it, counts as well."""
    streamer = workers.streamer("idle", max_queue=3)
    for priority in (3, 6, 9):
        streamer.task.apply_async(("a",), queue=streamer.queue, priority=priority)
    try:
        with pytest.raises(QueueFull, match=r"3 items wait in queue 'streamer\.idle'"):
            streamer.submit(["b"])
        with pytest.raises(QueueFull, match="too many for max_queue=3"):
            asyncio.run(streamer.apredict(["b"]))
    finally:
        with workers.client() as client:
            client.delete(*client.keys(f"{streamer.queue}*"))


def test_a_future_is_answered_on_both_sides_of_a_fork(workers: StreamerWorkers, in_python):
    """What was asked before a fork can be waited for by parent and child."""
    said = in_python(
        "import os\n"
        "from celery_batch import RedisStreamer\n"
        f"future = RedisStreamer({workers.url!r}, 'lab').submit(['a', {{'sleep': 0.5}}])\n"
        "child = os.fork()\n"
        "outputs = future.result(30)\n"
        "_, status = os.waitpid(child, 0) if child else (0, 0)\n"
        "os.write(1, f'{outputs[0]} {future.done()} {status}\\n'.encode())\n"
        "os._exit(0)"
    )

    assert ["a True 0", "a True 0"] == said.splitlines()


def test_a_client_owns_no_workers(workers: StreamerWorkers):
    """destroy_workers says so."""
    with pytest.raises(NotImplementedError, match="owns no workers"):
        workers.streamer().destroy_workers()


def test_streamers_of_a_process_share_one_listener(workers: StreamerWorkers):
    """Streamers of one Redis receive all their replies on one connection."""
    one, other = workers.streamer(), workers.streamer("other-model")

    assert ["a"] == one.predict(["a"])
    assert one.app is other.app


def test_a_redis_that_is_away_is_named(tmp_path: Path):
    """The first call, too, says which Redis cannot be reached, by the error that sending raises."""
    streamer = RedisStreamer(f"redis+socket://{tmp_path}/absent.sock")
    for _ in range(2):
        with pytest.raises(OperationalError, match=r"absent\.sock"):
            streamer.predict(["a"])
