"""Large values travel beside their messages, and what is stored for them goes away again."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from celery import chain, chord, group
from kombu.exceptions import EncodeError, OperationalError

from celery_batch import as_completed
from celery_batch.errors import InvalidPayload
from celery_batch.payloads.app_payloads import AppPayloads
from celery_batch.payloads.store import StoreError
from tests.services.forked import run
from tests.services.shared_setup import SOON, SharedSetup, eventually

POOLS = pytest.mark.pools("prefork", "solo", "threads")
ALIKE = pytest.mark.alike_on_brokers

#: More than are sent within a message.
SHAPE = (3, 120, 120)


def large(seed: int, dtype: Any = "f4") -> np.ndarray:
    """Return an array that travels beside its message."""
    return np.random.default_rng(seed).random(SHAPE).astype(dtype)


@pytest.fixture(autouse=True)
def nothing_stored(shared: SharedSetup) -> None:
    """Begin each test without payloads."""
    client = shared.app.backend.client
    for key in stored(shared):
        client.delete(key)


def stored(shared: SharedSetup, task_id: str = "") -> list[bytes]:
    """Return the keys of payloads."""
    return list(shared.app.backend.client.scan_iter(f"celery-batch-payload-{task_id}*"))


def wait_until_deleted(shared: SharedSetup) -> None:
    """Return when no argument is stored any more."""
    eventually(lambda: not stored(shared), "the end of all payloads")


@POOLS
def test_large_arrays_come_and_go(shared: SharedSetup):
    """Arguments and results are beside their messages, and equal what was sent, bit by bit."""
    sent = [large(n, dtype) for n, dtype in enumerate(["f4", "f8", "i4", "f2", "f4"])]
    results = shared.arrays.delay_many(sent)
    found = shared.get(results)

    for array, result in zip(sent, found, strict=True):
        assert (2 * array).dtype == result.dtype
        assert np.array_equal(2 * array, result)
    for result in results:
        assert size_of_result(shared, result.id) < 2000
        result.forget()
    wait_until_deleted(shared)


@ALIKE
def test_tensors_of_any_layout(shared: SharedSetup):
    """Without a type of NumPy, and scattered in memory."""
    scattered = torch.rand(200, 300).t()
    found = shared.get(shared.echo_tensor.delay_many([torch.ones(40_000).bfloat16(), scattered]))

    assert [40_000, 300] == [len(each) for each in found]
    assert torch.equal(scattered, found[1])


@ALIKE
def test_several_values_in_lists_and_dicts(shared: SharedSetup):
    """Each is in its place."""
    value = {"a": [large(1), 1, large(2)], "b": {"c": (large(3, "f8"), "text")}, "d": np.ones(3)}
    found = shared.echo_value.delay(value).get(timeout=SOON)

    assert np.array_equal(value["a"][2], found["a"][2])
    assert np.array_equal(value["b"]["c"][0], found["b"]["c"][0])
    assert [1, "text", [1, 1, 1]] == [found["a"][1], found["b"]["c"][1], found["d"].tolist()]


@ALIKE
def test_canvas(shared: SharedSetup):
    """Each task of a chain, a group and a chord has payloads of its own."""
    array = large(1)
    chained = chain(shared.arrays.s(array), shared.ordinary_array.s(), shared.arrays.s()).delay()
    joined = chord(group(shared.arrays.s(n * array) for n in range(3)), shared.gathered.s()).delay()
    grouped = group(shared.arrays.s(n * array) for n in range(3)).delay()

    assert np.array_equal(2 * (2 * array + 1), chained.get(timeout=SOON))
    assert [(2 * n * array).sum() for n in range(3)] == [
        each.sum() for each in joined.get(timeout=SOON)
    ]
    assert [(2 * n * array).sum() for n in range(3)] == [
        each.sum() for each in grouped.get(timeout=SOON)
    ]


def size_of_result(shared: SharedSetup, task_id: str) -> int:
    """Return the bytes of what the result backend has of a result."""
    return len(shared.app.backend.get(shared.app.backend.get_key_for_task(task_id)))


@ALIKE
@POOLS
def test_results_of_later_tasks(shared: SharedSetup):
    """They lie beside what is stored of them, too, where the first caller reads it so."""
    step = shared.arrays.s
    array = large(1)
    chained = chain(step(array), step(), step()).delay()
    parts = chain(step(array), group(step(), step())).delay()
    joined = chord([step(array), step(2 * array)], shared.echo_value.s()).delay()
    linked = shared.arrays.apply_async((array,), link=step())
    child = eventually(lambda: linked.children, "the child")[0]

    assert np.array_equal(8 * array, chained.get(timeout=SOON))
    assert all(np.array_equal(4 * array, each) for each in parts.get(timeout=SOON))
    assert np.array_equal([2 * array, 4 * array], joined.get(timeout=SOON))
    assert np.array_equal(4 * array, child.get(timeout=SOON))
    ids = [chained.id, chained.parent.id, *(each.id for each in parts), joined.id, child.id]
    assert max(size_of_result(shared, each) for each in ids) < 2000


@ALIKE
def test_later_tasks_for_other_callers(shared: SharedSetup):
    """Their results are whole where the first call does not say that its caller reads others."""
    first = shared.app.send_task("f.arrays", (large(1),), link=shared.arrays.s())
    child = eventually(lambda: first.children, "the child")[0]

    assert np.array_equal(4 * large(1), child.get(timeout=SOON))
    assert size_of_result(shared, child.id) > large(1).nbytes


#: What a web process may be that only reads results: the app names its tasks' module, and does not
#: import it.
READER = """
import sys
from celery import Celery
app = Celery("reader", include=["tests.apps.features"])
group, *others = sys.argv[1:]
results = [app.AsyncResult(each) for each in others]
found = [each for result in results for each in result.get(timeout=30)["a"]]
found += app.GroupResult.restore(group).get(timeout=30)
for each in found:
    print(type(each).__name__, each.dtype, each.flags.writeable, each.sum())
for result in results:
    result.forget()
assert not {"torch", "tests.apps.features"} & {*sys.modules}, "imported"
"""


@ALIKE
@pytest.mark.parametrize("imports", ["", "import celery_batch"], ids=["app", "celery_batch"])
def test_a_process_that_imports_no_task(shared: SharedSetup, imports: str):
    """It reads arrays by the ids of their results, and of a group, and forgets them."""
    single = shared.echo_value.delay({"a": [large(1), large(2, "f8")]})
    grouped = group(shared.arrays.s(large(n)) for n in range(3)).delay()
    grouped.save()
    shared.get([single, *grouped])
    argv = ["", grouped.id, single.id]
    code = f"import sys; sys.argv = {argv}; {imports}{READER}"
    done = run([sys.executable, "-c", code], env={**os.environ, **shared.environment})

    sums = [large(1).sum(), large(2, "f8").sum(), *((2 * large(n)).sum() for n in range(3))]
    types = ["float32", "float64", *["float32"] * 3]
    wanted = [f"ndarray {kind} True {value!s}" for kind, value in zip(types, sums, strict=True)]
    assert wanted == done.stdout.splitlines(), done.stderr
    eventually(lambda: not stored(shared, single.id), "the end of its payloads")
    assert stored(shared, grouped[0].id)


@ALIKE
def test_a_retry_has_a_payload_of_its_own(shared: SharedSetup):
    """That of the try before is deleted, and at the end both are."""
    words = [shared.unique("retry") for _ in range(3)]
    results = [shared.weigh.delay(large(1), word) for word in words]

    assert [float(large(1).sum())] * 3 == shared.get(results)
    wait_until_deleted(shared)


def test_a_killed_process(shared: SharedSetup):
    """The message is run again, with its values."""
    results = [
        shared.weigh.delay(large(1), shared.unique(word)) for word in ("die", "stay", "stay")
    ]

    assert [float(large(1).sum())] * 3 == shared.get(results)
    wait_until_deleted(shared)


def test_a_revoked_call(shared: SharedSetup):
    """Its values are deleted, though no process has run it."""
    gate = shared.close_gate()
    result = shared.weigh.delay(large(1), "x")
    assert stored(shared, result.id)
    shared.app.control.revoke(result.id)
    shared.open_gate(gate)

    wait_until_deleted(shared)
    assert shared.get([shared.weigh.delay(large(2), "x")]) == [float(large(2).sum())]


def test_an_early_acknowledged_call(shared: SharedSetup):
    """Its values are kept until it has run."""
    gate = shared.unique("gate")
    result = shared.echo_early.delay(gate, large(1))
    shared.wait_at(gate)
    assert len(stored(shared, result.id)) == 1
    shared.open_gate(gate)

    assert np.array_equal(large(1), result.get(timeout=SOON))
    result.forget()
    wait_until_deleted(shared)


def test_a_call_that_fails(shared: SharedSetup):
    """Its values are deleted when its error is stored."""
    result = shared.weigh.delay(large(1), 1)

    with pytest.raises(AttributeError):  # a number is no word
        result.get(timeout=SOON)
    wait_until_deleted(shared)


@ALIKE
def test_a_message_that_comes_again(shared: SharedSetup):
    """One whose end is stored fails nobody, though its values are gone."""
    queue, word = shared.unique("again"), shared.unique("word")
    result = shared.weigh.apply_async((large(1), word), queue=queue)
    (key,) = stored(shared, result.id)
    shared.app.backend.store_result(result.id, 1.5, "SUCCESS")
    shared.app.backend.client.delete(key)
    with shared.another(queue=queue):
        later = shared.weigh.apply_async((large(2), shared.unique("word")), queue=queue)
        assert later.get(timeout=SOON) == float(large(2).sum())

    assert shared.app.AsyncResult(result.id).get(timeout=SOON) == 1.5
    assert word not in shared.items("weigh")


@ALIKE
@pytest.mark.parametrize("scheme", ["file", "local"])
def test_a_directory_as_store(shared: SharedSetup, tmp_path: Path, scheme: str):
    """Arguments and results lie in its files, also bytes; the brokers see none of it."""
    conf = {"batch_payload_store": f"{scheme}://{tmp_path}/payloads"}
    queue, before = shared.unique("files"), dict(shared.app.conf)
    with shared.another(queue=queue, conf=conf):
        shared.app.conf.update(conf)
        try:
            results = [
                shared.echo_value.apply_async((each,), queue=queue)
                for each in (large(1), b"\xff" * 100_000)
            ]
            found = shared.get(results)
            for each in results:
                each.forget()
        finally:
            shared.app.conf.batch_payload_store = before.get("batch_payload_store")
        assert np.array_equal(large(1), found[0])
        assert b"\xff" * 100_000 == found[1]
        assert stored(shared) == []
        eventually(lambda: not any((tmp_path / "payloads").iterdir()), "the end of all files")


@ALIKE
def test_sixty_four_megabytes(shared: SharedSetup):
    """They go there and back, and the worker's main process never has them."""
    array = np.random.default_rng(1).random(8 << 20)
    shared.echo_value.delay(1).get(timeout=SOON)
    main = psutil.Process(shared.worker.pid)
    before = main.memory_info().rss
    result = shared.echo_value.delay(array)

    assert np.array_equal(array, result.get(timeout=SOON))
    assert main.memory_info().rss - before < 8 << 20
    result.forget()


@ALIKE
def test_a_batch_whose_values_are_too_large_together(shared: SharedSetup):
    """It runs in parts, each with no more than one message may have."""
    queue = shared.unique("parts")
    with shared.another(queue=queue, conf={"batch_max_payload_size": 500_000}):
        results = [shared.weigh.apply_async((large(n), "x"), queue=queue) for n in range(9)]

        assert [float(large(n).sum()) for n in range(9)] == shared.get(results)
    wait_until_deleted(shared)


@ALIKE
@POOLS
def test_an_output_that_is_too_large(shared: SharedSetup):
    """It fails its own item, with both sizes and the setting; the others have their results."""
    queue, sizes = shared.unique("large"), [100_000, 600_000, 200_000]
    with shared.another(queue=queue, conf={"batch_max_payload_size": 500_000}):
        results = shared.ones.apply_many([((size,), None) for size in sizes], queue=queue)
        words = r"has 600000 bytes .* batch_max_payload_size allows 5000"
        with pytest.raises(EncodeError, match=rf"^f\.ones: the output {words}"):
            results[1].get(timeout=SOON)
        both = shared.echo_value.apply_async((np.ones(300_000, "u1"),), queue=queue)
        words = r"^f\.echo_value: the output and arguments have 600000 bytes "
        with pytest.raises(EncodeError, match=words):  # its arguments are in the result, too
            both.get(timeout=SOON)

        assert [100_000, 200_000] == [each.size for each in shared.get(results[::2])]
        assert ["SUCCESS", "FAILURE", "SUCCESS"] == [each.state for each in results]
    for result in results:
        result.forget()
    wait_until_deleted(shared)


@ALIKE
def test_a_store_that_is_away(shared: SharedSetup):
    """Calls wait for it, and keep no others waiting."""
    queue = shared.unique("away")
    with shared.another(
        queue=queue, conf={"batch_payload_store": "redis://127.0.0.1:1/0"}
    ) as worker:
        waiting = shared.weigh.apply_async((large(1), "x"), queue=queue)
        eventually(lambda: "Could not read the stored values" in worker.log, "a try to read")

        found = [shared.echo_value.apply_async((n,), queue=queue) for n in range(3)]
        assert [0, 1, 2] == shared.get(found)
        assert not waiting.ready()
    with shared.another(queue=queue):
        assert float(large(1).sum()) == waiting.get(timeout=SOON)


@ALIKE
def test_values_that_are_gone(shared: SharedSetup):
    """The call fails with an error that says so; the others of its batch do not."""
    gate = shared.close_gate()
    error_noted = shared.note_error.s()
    results = [shared.weigh.apply_async((large(n), "x"), link_error=error_noted) for n in range(3)]
    for key in stored(shared, results[1].id):
        shared.app.backend.client.delete(key)
    shared.open_gate(gate)

    found = shared.get(results)
    assert [float(large(n).sum()) for n in (0, 2)] == [found[0], found[2]]
    assert isinstance(found[1], InvalidPayload)
    assert "batch_payload_expires" in str(found[1])
    noted = lambda: [each for each in shared.recall("note_error") if results[1].id in str(each)]  # noqa: E731
    eventually(noted, "the callback of the error")


@ALIKE
def test_a_retry_whose_values_are_gone(shared: SharedSetup):
    """It fails, though the end of the try before is stored as every retry finds it."""
    gate = shared.close_gate()
    result = shared.weigh.apply_async((large(1), "x"), retries=1)
    shared.app.backend.store_result(result.id, ConnectionError("busy"), "RETRY")
    for key in stored(shared, result.id):
        shared.app.backend.client.delete(key)
    shared.open_gate(gate)

    with pytest.raises(InvalidPayload, match="gone"):
        result.get(timeout=SOON)


@ALIKE
def test_a_chord_whose_values_are_gone(shared: SharedSetup):
    """Its body fails, and the error's callback is called: nobody waits for ever."""
    gate = shared.close_gate()
    parts = [shared.weigh.s(large(n), "x") for n in range(3)]
    joined = chord(parts)(shared.gathered.s())
    alone = shared.weigh.apply_async((large(4), "x"), link_error=shared.note_error.s())
    ids = [each.id for each in joined.parent.children]
    for task_id in (ids[1], alone.id):
        (key,) = stored(shared, task_id)
        shared.app.backend.client.delete(key)
    shared.open_gate(gate)

    with pytest.raises(InvalidPayload, match="gone"):
        joined.get(timeout=SOON)
    (heard,) = eventually(lambda: shared.recall("note_error"), "the callback")
    assert heard["id"] == alone.id


@ALIKE
def test_values_that_were_changed(shared: SharedSetup):
    """They are not used."""
    gate = shared.close_gate()
    result = shared.weigh.delay(large(1), "x")
    (key,) = stored(shared, result.id)
    shared.app.backend.client.setrange(key, 5, b"changed")
    shared.open_gate(gate)

    with pytest.raises(InvalidPayload, match="were changed"):
        result.get(timeout=SOON)


def test_nobody_reads_the_values_of_another_call(shared: SharedSetup):
    """A message that names another's reads none: the key is made of its own id."""
    gate = shared.close_gate()
    secret = shared.weigh.delay(large(1), "x")
    (key,) = stored(shared, secret.id)
    nonce = key.decode().rpartition("-")[2]
    size = large(1).nbytes
    forged = shared.echo_value.apply_async(
        ({"__type__": "batch-payload", "__value__": [0, "ndarray", "<f4", [*SHAPE]]},),
        headers={"batch_other": 1},
    )
    direct = shared.app.send_task(
        "f.echo_value", (1,), headers={"batch_payloads": [nonce, [size], 0]}
    )
    shared.open_gate(gate)

    assert {"__type__": "batch-payload", "__value__": [0, "ndarray", "<f4", [*SHAPE]]} == (
        forged.get(timeout=SOON)
    )
    with pytest.raises(InvalidPayload, match="gone"):
        direct.get(timeout=SOON)
    assert float(large(1).sum()) == secret.get(timeout=SOON)


@ALIKE
def test_coroutines(shared: SharedSetup):
    """Calls and results of coroutines are the same, beside the event loop."""

    async def _run() -> list[Any]:
        results = await asyncio.gather(*(shared.arrays.adelay(large(n)) for n in range(6)))
        return await asyncio.gather(*results)

    found = asyncio.run(_run())
    assert all(np.array_equal(2 * large(n), each) for n, each in enumerate(found))


@ALIKE
def test_no_event_loop_reads_values(shared: SharedSetup, monkeypatch: pytest.MonkeyPatch):
    """Nor does the thread that receives all results."""
    store: Any = AppPayloads.of(shared.app).store
    own, readers = store.get, []

    def get(*args: Any) -> Any:
        readers.append(threading.current_thread())
        return own(*args)

    monkeypatch.setattr(store, "get", get)

    async def _run() -> list[Any]:
        results = [await shared.arrays.adelay(large(n)) for n in range(4)]
        found = [await results[0]]
        there = lambda: all(each.pending_result.value for each in results)  # noqa: E731
        await asyncio.to_thread(eventually, there, "all results")
        states = [state async for state in results[1].iter_states(SOON)]
        assert states[-1] == "SUCCESS"
        found += [await results[1], await asyncio.wrap_future(results[2].future())]
        async for each in as_completed(results[3:], SOON):
            found.append(await each)
        return found

    found = asyncio.run(_run())
    assert all(np.array_equal(2 * large(n), each) for n, each in enumerate(found))
    assert len(readers) == 4
    assert threading.main_thread() not in readers
    assert not [each for each in readers if "result" in each.name]


@ALIKE
def test_a_store_that_is_away_for_a_moment(shared: SharedSetup, monkeypatch: pytest.MonkeyPatch):
    """A result is read again; if that fails, too, it is not the task that has failed."""
    store: Any = AppPayloads.of(shared.app).store
    own, errors = store.get, [StoreError("away"), StoreError("away")]

    def get(*args: Any) -> Any:
        if errors:
            raise errors.pop()
        return own(*args)

    result = shared.arrays.delay(large(1))
    monkeypatch.setattr(store, "get", get)
    assert np.array_equal(2 * large(1), result.get(timeout=SOON))

    errors += [StoreError("away")] * 100
    policy = {"max_retries": 1, "interval_start": 0, "interval_step": 0, "interval_max": 0}
    # Celery keeps it at the backend, where an earlier test may have asked for it.
    monkeypatch.setattr(shared.app.backend, "retry_policy", policy)
    theirs = shared.app.AsyncResult(result.id)
    with pytest.raises(OperationalError, match="payload store"):
        theirs.get(timeout=SOON)
    errors.clear()
    assert np.array_equal(2 * large(1), theirs.get(timeout=SOON))


@ALIKE
def test_other_readers(shared: SharedSetup):
    """Celery's result object has the values, too; other callers' results are stored whole."""
    result = shared.arrays.delay(large(1))
    result.get(timeout=SOON)
    theirs = shared.app.AsyncResult(result.id)
    assert np.array_equal(2 * large(1), theirs.get(timeout=SOON))
    assert np.array_equal(large(1), theirs.args[0])
    theirs.forget()
    wait_until_deleted(shared)

    plain = shared.app.send_task("f.arrays", (large(1),))
    assert np.array_equal(2 * large(1), plain.get(timeout=SOON))
    assert size_of_result(shared, plain.id) > large(1).nbytes


@ALIKE
def test_a_chunk(shared: SharedSetup):
    """One array is one payload; rows of the output that are large are stored."""
    array = np.stack([large(n) for n in range(4)])
    found = shared.arrays.delay_rows(array).get(timeout=SOON)

    assert np.array_equal(2 * array, np.stack(found))


@ALIKE
def test_what_a_message_cannot_hold(shared: SharedSetup):
    """A text and a list that are larger than any message arrive whole."""
    text, numbers = "é" * (12 << 20), list(range(2_500_000))
    results = [shared.lengths.delay(each) for each in (text, numbers)]

    assert [["str", len(text)], ["list", len(numbers)]] == shared.get(results)


@ALIKE
def test_the_binary_serializer(shared: SharedSetup):
    """Stored values are in its messages, and in results that it encodes."""
    conf = {
        "accept_content": ["json", "batch-msgpack"],
        "result_accept_content": ["json", "batch-msgpack"],
    }
    queue = shared.unique("binary")
    with shared.another(queue=queue, conf=conf):
        result = shared.arrays.apply_async((large(1),), serializer="batch-msgpack", queue=queue)
        assert np.array_equal(2 * large(1), result.get(timeout=SOON))
