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
from tests.services.place import SOON, Place, eventually

POOLS = pytest.mark.pools("prefork", "solo", "threads")
ALIKE = pytest.mark.alike_on_brokers

#: More than are sent within a message.
SHAPE = (3, 120, 120)


def large(seed: int, dtype: Any = "f4") -> np.ndarray:
    """Return an array that travels beside its message."""
    return np.random.default_rng(seed).random(SHAPE).astype(dtype)


@pytest.fixture(autouse=True)
def nothing_stored(place: Place) -> None:
    """Begin each test without payloads."""
    client = place.app.backend.client
    for key in stored(place):
        client.delete(key)


def stored(place: Place, task_id: str = "") -> list[bytes]:
    """Return the keys of payloads."""
    return list(place.app.backend.client.scan_iter(f"celery-batch-payload-{task_id}*"))


def wait_until_deleted(place: Place) -> None:
    """Return when no argument is stored any more."""
    eventually(lambda: not stored(place), "the end of all payloads")


@POOLS
def test_large_arrays_come_and_go(place: Place):
    """Arguments and results are beside their messages, and equal what was sent, bit by bit."""
    sent = [large(n, dtype) for n, dtype in enumerate(["f4", "f8", "i4", "f2", "f4"])]
    results = place.arrays.delay_many(sent)
    found = place.get(results)

    for array, result in zip(sent, found, strict=True):
        assert (2 * array).dtype == result.dtype
        assert np.array_equal(2 * array, result)
    for result in results:
        assert size_of_result(place, result.id) < 2000
        result.forget()
    wait_until_deleted(place)


@ALIKE
def test_tensors_of_any_layout(place: Place):
    """Without a type of NumPy, and scattered in memory."""
    scattered = torch.rand(200, 300).t()
    found = place.get(place.echo_tensor.delay_many([torch.ones(40_000).bfloat16(), scattered]))

    assert [40_000, 300] == [len(each) for each in found]
    assert torch.equal(scattered, found[1])


@ALIKE
def test_several_values_in_lists_and_dicts(place: Place):
    """Each is in its place."""
    value = {"a": [large(1), 1, large(2)], "b": {"c": (large(3, "f8"), "text")}, "d": np.ones(3)}
    found = place.echo_value.delay(value).get(timeout=SOON)

    assert np.array_equal(value["a"][2], found["a"][2])
    assert np.array_equal(value["b"]["c"][0], found["b"]["c"][0])
    assert [1, "text", [1, 1, 1]] == [found["a"][1], found["b"]["c"][1], found["d"].tolist()]


@ALIKE
def test_canvas(place: Place):
    """Each task of a chain, a group and a chord has payloads of its own."""
    array = large(1)
    chained = chain(place.arrays.s(array), place.ordinary_array.s(), place.arrays.s()).delay()
    joined = chord(group(place.arrays.s(n * array) for n in range(3)), place.gathered.s()).delay()
    grouped = group(place.arrays.s(n * array) for n in range(3)).delay()

    assert np.array_equal(2 * (2 * array + 1), chained.get(timeout=SOON))
    assert [(2 * n * array).sum() for n in range(3)] == [
        each.sum() for each in joined.get(timeout=SOON)
    ]
    assert [(2 * n * array).sum() for n in range(3)] == [
        each.sum() for each in grouped.get(timeout=SOON)
    ]


def size_of_result(place: Place, task_id: str) -> int:
    """Return the bytes of what the result backend has of a result."""
    return len(place.app.backend.get(place.app.backend.get_key_for_task(task_id)))


@ALIKE
@POOLS
def test_results_of_later_tasks(place: Place):
    """They lie beside what is stored of them, too, where the first caller reads it so."""
    step = place.arrays.s
    array = large(1)
    chained = chain(step(array), step(), step()).delay()
    parts = chain(step(array), group(step(), step())).delay()
    joined = chord([step(array), step(2 * array)], place.echo_value.s()).delay()
    linked = place.arrays.apply_async((array,), link=step())
    child = eventually(lambda: linked.children, "the child")[0]

    assert np.array_equal(8 * array, chained.get(timeout=SOON))
    assert all(np.array_equal(4 * array, each) for each in parts.get(timeout=SOON))
    assert np.array_equal([2 * array, 4 * array], joined.get(timeout=SOON))
    assert np.array_equal(4 * array, child.get(timeout=SOON))
    ids = [chained.id, chained.parent.id, *(each.id for each in parts), joined.id, child.id]
    assert max(size_of_result(place, each) for each in ids) < 2000


@ALIKE
def test_later_tasks_for_other_callers(place: Place):
    """Their results are whole where the first call does not say that its caller reads others."""
    first = place.app.send_task("f.arrays", (large(1),), link=place.arrays.s())
    child = eventually(lambda: first.children, "the child")[0]

    assert np.array_equal(4 * large(1), child.get(timeout=SOON))
    assert size_of_result(place, child.id) > large(1).nbytes


#: What a web process may be that only reads results: the app names its tasks' module, and does not
#: import it.
READER = """
import sys
from celery import Celery
app = Celery("reader", include=["tests.services.features"])
group, *others = sys.argv[1:]
results = [app.AsyncResult(each) for each in others]
found = [each for result in results for each in result.get(timeout=30)["a"]]
found += app.GroupResult.restore(group).get(timeout=30)
for each in found:
    print(type(each).__name__, each.dtype, each.flags.writeable, each.sum())
for result in results:
    result.forget()
assert not {"torch", "tests.services.features"} & {*sys.modules}, "imported"
"""


@ALIKE
@pytest.mark.parametrize("imports", ["", "import celery_batch"], ids=["app", "celery_batch"])
def test_a_process_that_imports_no_task(place: Place, imports: str):
    """It reads arrays by the ids of their results, and of a group, and forgets them."""
    single = place.echo_value.delay({"a": [large(1), large(2, "f8")]})
    grouped = group(place.arrays.s(large(n)) for n in range(3)).delay()
    grouped.save()
    place.get([single, *grouped])
    argv = ["", grouped.id, single.id]
    code = f"import sys; sys.argv = {argv}; {imports}{READER}"
    done = run([sys.executable, "-c", code], env={**os.environ, **place.environment})

    sums = [large(1).sum(), large(2, "f8").sum(), *((2 * large(n)).sum() for n in range(3))]
    types = ["float32", "float64", *["float32"] * 3]
    wanted = [f"ndarray {kind} True {value!s}" for kind, value in zip(types, sums, strict=True)]
    assert wanted == done.stdout.splitlines(), done.stderr
    eventually(lambda: not stored(place, single.id), "the end of its payloads")
    assert stored(place, grouped[0].id)


@ALIKE
def test_a_retry_has_a_payload_of_its_own(place: Place):
    """That of the try before is deleted, and at the end both are."""
    words = [place.unique("retry") for _ in range(3)]
    results = [place.weigh.delay(large(1), word) for word in words]

    assert [float(large(1).sum())] * 3 == place.get(results)
    wait_until_deleted(place)


def test_a_killed_process(place: Place):
    """The message is run again, with its values."""
    results = [place.weigh.delay(large(1), place.unique(word)) for word in ("die", "stay", "stay")]

    assert [float(large(1).sum())] * 3 == place.get(results)
    wait_until_deleted(place)


def test_a_revoked_call(place: Place):
    """Its values are deleted, though no process has run it."""
    gate = place.close_gate()
    result = place.weigh.delay(large(1), "x")
    assert stored(place, result.id)
    place.app.control.revoke(result.id)
    place.open_gate(gate)

    wait_until_deleted(place)
    assert place.get([place.weigh.delay(large(2), "x")]) == [float(large(2).sum())]


def test_an_early_acknowledged_call(place: Place):
    """Its values are kept until it has run."""
    gate = place.unique("gate")
    result = place.echo_early.delay(gate, large(1))
    place.wait_at(gate)
    assert len(stored(place, result.id)) == 1
    place.open_gate(gate)

    assert np.array_equal(large(1), result.get(timeout=SOON))
    result.forget()
    wait_until_deleted(place)


def test_a_call_that_fails(place: Place):
    """Its values are deleted when its error is stored."""
    result = place.weigh.delay(large(1), 1)

    with pytest.raises(AttributeError):  # a number is no word
        result.get(timeout=SOON)
    wait_until_deleted(place)


@ALIKE
def test_a_message_that_comes_again(place: Place):
    """One whose end is stored fails nobody, though its values are gone."""
    queue, word = place.unique("again"), place.unique("word")
    result = place.weigh.apply_async((large(1), word), queue=queue)
    (key,) = stored(place, result.id)
    place.app.backend.store_result(result.id, 1.5, "SUCCESS")
    place.app.backend.client.delete(key)
    with place.another(queue=queue):
        later = place.weigh.apply_async((large(2), place.unique("word")), queue=queue)
        assert later.get(timeout=SOON) == float(large(2).sum())

    assert place.app.AsyncResult(result.id).get(timeout=SOON) == 1.5
    assert word not in place.items("weigh")


@ALIKE
@pytest.mark.parametrize("scheme", ["file", "local"])
def test_a_directory_as_store(place: Place, tmp_path: Path, scheme: str):
    """Arguments and results lie in its files, also bytes; the brokers see none of it."""
    conf = {"batch_payload_store": f"{scheme}://{tmp_path}/payloads"}
    queue, before = place.unique("files"), dict(place.app.conf)
    with place.another(queue=queue, conf=conf):
        place.app.conf.update(conf)
        try:
            results = [
                place.echo_value.apply_async((each,), queue=queue)
                for each in (large(1), b"\xff" * 100_000)
            ]
            found = place.get(results)
            for each in results:
                each.forget()
        finally:
            place.app.conf.batch_payload_store = before.get("batch_payload_store")
        assert np.array_equal(large(1), found[0])
        assert b"\xff" * 100_000 == found[1]
        assert stored(place) == []
        eventually(lambda: not any((tmp_path / "payloads").iterdir()), "the end of all files")


@ALIKE
def test_sixty_four_megabytes(place: Place):
    """They go there and back, and the worker's main process never has them."""
    array = np.random.default_rng(1).random(8 << 20)
    place.echo_value.delay(1).get(timeout=SOON)
    main = psutil.Process(place.worker.pid)
    before = main.memory_info().rss
    result = place.echo_value.delay(array)

    assert np.array_equal(array, result.get(timeout=SOON))
    assert main.memory_info().rss - before < 8 << 20
    result.forget()


@ALIKE
def test_a_batch_whose_values_are_too_large_together(place: Place):
    """It runs in parts, each with no more than one message may have."""
    queue = place.unique("parts")
    with place.another(queue=queue, conf={"batch_max_payload_size": 500_000}):
        results = [place.weigh.apply_async((large(n), "x"), queue=queue) for n in range(9)]

        assert [float(large(n).sum()) for n in range(9)] == place.get(results)
    wait_until_deleted(place)


@ALIKE
@POOLS
def test_an_output_that_is_too_large(place: Place):
    """It fails its own item, with both sizes and the setting; the others have their results."""
    queue, sizes = place.unique("large"), [100_000, 600_000, 200_000]
    with place.another(queue=queue, conf={"batch_max_payload_size": 500_000}):
        results = place.ones.apply_many([((size,), None) for size in sizes], queue=queue)
        words = r"has 600000 bytes .* batch_max_payload_size allows 5000"
        with pytest.raises(EncodeError, match=rf"^f\.ones: the output {words}"):
            results[1].get(timeout=SOON)
        both = place.echo_value.apply_async((np.ones(300_000, "u1"),), queue=queue)
        words = r"^f\.echo_value: the output and arguments have 600000 bytes "
        with pytest.raises(EncodeError, match=words):  # its arguments are in the result, too
            both.get(timeout=SOON)

        assert [100_000, 200_000] == [each.size for each in place.get(results[::2])]
        assert ["SUCCESS", "FAILURE", "SUCCESS"] == [each.state for each in results]
    for result in results:
        result.forget()
    wait_until_deleted(place)


@ALIKE
def test_a_store_that_is_away(place: Place):
    """Calls wait for it, and keep no others waiting."""
    queue = place.unique("away")
    with place.another(
        queue=queue, conf={"batch_payload_store": "redis://127.0.0.1:1/0"}
    ) as worker:
        waiting = place.weigh.apply_async((large(1), "x"), queue=queue)
        eventually(lambda: "Could not read the stored values" in worker.log, "a try to read")

        found = [place.echo_value.apply_async((n,), queue=queue) for n in range(3)]
        assert [0, 1, 2] == place.get(found)
        assert not waiting.ready()
    with place.another(queue=queue):
        assert float(large(1).sum()) == waiting.get(timeout=SOON)


@ALIKE
def test_values_that_are_gone(place: Place):
    """The call fails with an error that says so; the others of its batch do not."""
    gate = place.close_gate()
    error_noted = place.note_error.s()
    results = [place.weigh.apply_async((large(n), "x"), link_error=error_noted) for n in range(3)]
    for key in stored(place, results[1].id):
        place.app.backend.client.delete(key)
    place.open_gate(gate)

    found = place.get(results)
    assert [float(large(n).sum()) for n in (0, 2)] == [found[0], found[2]]
    assert isinstance(found[1], InvalidPayload)
    assert "batch_payload_expires" in str(found[1])
    noted = lambda: [each for each in place.recall("note_error") if results[1].id in str(each)]  # noqa: E731
    eventually(noted, "the callback of the error")


@ALIKE
def test_a_retry_whose_values_are_gone(place: Place):
    """It fails, though the end of the try before is stored as every retry finds it."""
    gate = place.close_gate()
    result = place.weigh.apply_async((large(1), "x"), retries=1)
    place.app.backend.store_result(result.id, ConnectionError("busy"), "RETRY")
    for key in stored(place, result.id):
        place.app.backend.client.delete(key)
    place.open_gate(gate)

    with pytest.raises(InvalidPayload, match="gone"):
        result.get(timeout=SOON)


@ALIKE
def test_a_chord_whose_values_are_gone(place: Place):
    """Its body fails, and the error's callback is called: nobody waits for ever."""
    gate = place.close_gate()
    parts = [place.weigh.s(large(n), "x") for n in range(3)]
    joined = chord(parts)(place.gathered.s())
    alone = place.weigh.apply_async((large(4), "x"), link_error=place.note_error.s())
    ids = [each.id for each in joined.parent.children]
    for task_id in (ids[1], alone.id):
        (key,) = stored(place, task_id)
        place.app.backend.client.delete(key)
    place.open_gate(gate)

    with pytest.raises(InvalidPayload, match="gone"):
        joined.get(timeout=SOON)
    (heard,) = eventually(lambda: place.recall("note_error"), "the callback")
    assert heard["id"] == alone.id


@ALIKE
def test_values_that_were_changed(place: Place):
    """They are not used."""
    gate = place.close_gate()
    result = place.weigh.delay(large(1), "x")
    (key,) = stored(place, result.id)
    place.app.backend.client.setrange(key, 5, b"changed")
    place.open_gate(gate)

    with pytest.raises(InvalidPayload, match="were changed"):
        result.get(timeout=SOON)


def test_nobody_reads_the_values_of_another_call(place: Place):
    """A message that names another's reads none: the key is made of its own id."""
    gate = place.close_gate()
    secret = place.weigh.delay(large(1), "x")
    (key,) = stored(place, secret.id)
    nonce = key.decode().rpartition("-")[2]
    size = large(1).nbytes
    forged = place.echo_value.apply_async(
        ({"__type__": "batch-payload", "__value__": [0, "ndarray", "<f4", [*SHAPE]]},),
        headers={"batch_other": 1},
    )
    direct = place.app.send_task(
        "f.echo_value", (1,), headers={"batch_payloads": [nonce, [size], 0]}
    )
    place.open_gate(gate)

    assert {"__type__": "batch-payload", "__value__": [0, "ndarray", "<f4", [*SHAPE]]} == (
        forged.get(timeout=SOON)
    )
    with pytest.raises(InvalidPayload, match="gone"):
        direct.get(timeout=SOON)
    assert float(large(1).sum()) == secret.get(timeout=SOON)


@ALIKE
def test_coroutines(place: Place):
    """Calls and results of coroutines are the same, beside the event loop."""

    async def _run() -> list[Any]:
        results = await asyncio.gather(*(place.arrays.adelay(large(n)) for n in range(6)))
        return await asyncio.gather(*results)

    found = asyncio.run(_run())
    assert all(np.array_equal(2 * large(n), each) for n, each in enumerate(found))


@ALIKE
def test_no_event_loop_reads_values(place: Place, monkeypatch: pytest.MonkeyPatch):
    """Nor does the thread that receives all results."""
    store: Any = AppPayloads.of(place.app).store
    own, readers = store.get, []

    def get(*args: Any) -> Any:
        readers.append(threading.current_thread())
        return own(*args)

    monkeypatch.setattr(store, "get", get)

    async def _run() -> list[Any]:
        results = [await place.arrays.adelay(large(n)) for n in range(4)]
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
def test_a_store_that_is_away_for_a_moment(place: Place, monkeypatch: pytest.MonkeyPatch):
    """A result is read again; if that fails, too, it is not the task that has failed."""
    store: Any = AppPayloads.of(place.app).store
    own, errors = store.get, [StoreError("away"), StoreError("away")]

    def get(*args: Any) -> Any:
        if errors:
            raise errors.pop()
        return own(*args)

    result = place.arrays.delay(large(1))
    monkeypatch.setattr(store, "get", get)
    assert np.array_equal(2 * large(1), result.get(timeout=SOON))

    errors += [StoreError("away")] * 100
    policy = {"max_retries": 1, "interval_start": 0, "interval_step": 0, "interval_max": 0}
    # Celery keeps it at the backend, where an earlier test may have asked for it.
    monkeypatch.setattr(place.app.backend, "retry_policy", policy)
    theirs = place.app.AsyncResult(result.id)
    with pytest.raises(OperationalError, match="payload store"):
        theirs.get(timeout=SOON)
    errors.clear()
    assert np.array_equal(2 * large(1), theirs.get(timeout=SOON))


@ALIKE
def test_other_readers(place: Place):
    """Celery's result object has the values, too; other callers' results are stored whole."""
    result = place.arrays.delay(large(1))
    result.get(timeout=SOON)
    theirs = place.app.AsyncResult(result.id)
    assert np.array_equal(2 * large(1), theirs.get(timeout=SOON))
    assert np.array_equal(large(1), theirs.args[0])
    theirs.forget()
    wait_until_deleted(place)

    plain = place.app.send_task("f.arrays", (large(1),))
    assert np.array_equal(2 * large(1), plain.get(timeout=SOON))
    assert size_of_result(place, plain.id) > large(1).nbytes


@ALIKE
def test_a_chunk(place: Place):
    """One array is one payload; rows of the output that are large are stored."""
    array = np.stack([large(n) for n in range(4)])
    found = place.arrays.delay_rows(array).get(timeout=SOON)

    assert np.array_equal(2 * array, np.stack(found))


@ALIKE
def test_what_a_message_cannot_hold(place: Place):
    """A text and a list that are larger than any message arrive whole."""
    text, numbers = "é" * (12 << 20), list(range(2_500_000))
    results = [place.lengths.delay(each) for each in (text, numbers)]

    assert [["str", len(text)], ["list", len(numbers)]] == place.get(results)


@ALIKE
def test_the_binary_serializer(place: Place):
    """Stored values are in its messages, and in results that it encodes."""
    conf = {
        "accept_content": ["json", "batch-msgpack"],
        "result_accept_content": ["json", "batch-msgpack"],
    }
    queue = place.unique("binary")
    with place.another(queue=queue, conf=conf):
        result = place.arrays.apply_async((large(1),), serializer="batch-msgpack", queue=queue)
        assert np.array_equal(2 * large(1), result.get(timeout=SOON))
