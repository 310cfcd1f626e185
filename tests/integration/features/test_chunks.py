"""Many rows as one task: split and merged into batches by rows, and one task all the same."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from billiard.exceptions import SoftTimeLimitExceeded, TimeLimitExceeded
from celery import chain, chord, group, states
from celery.exceptions import Reject, TaskRevokedError

from celery_batch import ChunkFailed, InvalidChunk, MessageRefused, PoisonItem
from tests.integration.features.test_revoking import revoke
from tests.services.shared_setup import SOON, SharedSetup, eventually

EVERY_POOL = ("prefork", "solo", "threads")


def sizes(shared: SharedSetup) -> list[int]:
    """Return how many rows each call of the model had."""
    return [fact["size"] for fact in shared.recall("rows")]


def close_both_slots(shared: SharedSetup) -> str:
    """
    Have one batch run and one lie ready, so that what comes now waits; return the gate.

    An ordinary task waits for the process as well: else a batch of a task that has had less of
    the device would go before the one that is ready.
    """
    before = shared.worker.status().get("f.hold", {}).get("requests", 0)
    gate = shared.close_gate()
    shared.hold.delay(gate)
    eventually(
        lambda: shared.worker.status()["f.hold"]["requests"] == before + 2, "a batch in each slot"
    )
    shared.plain_add.delay(0)
    return gate


@pytest.mark.parametrize(
    ("rows", "calls"),
    [(1, [1]), (5, [5]), (64, [64]), (256, [64] * 4), (1000, [64] * 15 + [40])],
)
def test_a_chunk_is_one_task_with_a_list_for_its_result(
    shared: SharedSetup, rows: int, calls: list[int]
):
    """However many rows it has, it runs in slices of ``max_batch_size``, in order."""
    result = shared.rows.delay_rows(range(rows))

    assert [2 * n for n in range(rows)] == result.get(timeout=SOON)
    assert calls == sizes(shared)
    assert list(range(rows)) == shared.items("rows")


def test_chunks_and_single_requests_share_batches(shared: SharedSetup):
    """The last slice of a large chunk is filled up; no call has more rows than it may have."""
    gate = close_both_slots(shared)
    first = shared.rows.delay(1000)
    large = shared.rows.delay_rows(range(100))
    singles = [shared.rows.delay(n) for n in range(20)]
    small = shared.rows.delay_rows(range(30))
    shared.wait_for_buffered("f.rows", 23)
    shared.open_gate(gate)

    assert 2000 == first.get(timeout=SOON)
    assert [2 * n for n in range(100)] == large.get(timeout=SOON)
    assert [2 * n for n in range(20)] == shared.get(singles)
    assert [2 * n for n in range(30)] == small.get(timeout=SOON)
    assert [1, 64, 36 + 20, 30] == sizes(shared)


@pytest.mark.alike_on_brokers
def test_small_chunks_are_merged(shared: SharedSetup):
    """Chunks that do not fit into one call side by side share two, where that saves a third."""
    gate = close_both_slots(shared)
    results = [shared.rows.delay_rows(range(40)) for _ in range(3)]
    shared.wait_for_buffered("f.rows", 3)
    shared.open_gate(gate)

    assert [[2 * n for n in range(40)]] * 3 == shared.get(results)
    assert [64, 56] == sizes(shared)


@pytest.mark.alike_on_brokers
def test_status_counts_rows_and_calls(shared: SharedSetup):
    """An operator sees how many requests there were, and how many rows and model calls."""
    names = ("requests", "rows", "batches", "model_calls")
    counts = lambda: [shared.worker.status()["f.rows"][name] for name in names]  # noqa: E731
    shared.rows.delay(1).get(timeout=SOON)
    shared.wait_for_batches("f.rows")
    before = counts()
    shared.rows.delay_rows(range(100)).get(timeout=SOON)
    shared.wait_for_batches("f.rows")

    assert [1, 100, 1, 2] == [now - then for now, then in zip(counts(), before, strict=True)]


@pytest.mark.alike_on_brokers
def test_several_parameters_are_several_lists(shared: SharedSetup):
    """A chunk is called as the batch function is: a list for each parameter, by place or name."""
    results = [
        shared.add.delay_rows([1, 2, 3], [10, 20, 30]),
        shared.add.delay_rows([1, 2, 3], y=[10, 20, 30]),
        shared.add.apply_rows([1, 2, 3], kwargs={"y": [10, 20, 30]}, countdown=0.1),
        shared.add.delay_rows([1, 2, 3]),
        shared.add.delay(1, 10),
    ]

    assert [[11, 22, 33]] * 3 + [[2, 3, 4], 11] == shared.get(results)


@pytest.mark.alike_on_brokers
@pytest.mark.pools(*EVERY_POOL)
def test_a_failed_row_fails_its_chunk_and_nobody_else(shared: SharedSetup):
    """The error names the rows, has each one's own error, and keeps the other outputs."""
    gate = shared.close_gate() if shared.pool != "solo" else shared.unique("gate")
    chunk = shared.rows.delay_rows([1, -2, 3, -4, 5])
    neighbours = [shared.rows.delay(7), shared.rows.delay_rows([8, 9])]
    shared.open_gate(gate)
    error = chunk.get(timeout=SOON, propagate=False)

    assert ChunkFailed is type(error)
    assert states.FAILURE == chunk.state
    assert {1: "ValueError: no -2", 3: "ValueError: no -4"} == error.failures
    assert [2, None, 6, None, 10] == error.outputs
    assert "2 of 5 rows failed: row 1: ValueError: no -2; row 3: ValueError: no -4" == str(error)
    assert [14, [16, 18]] == shared.get(neighbours)


@pytest.mark.alike_on_brokers
def test_the_culprit_of_a_chunk_is_found(shared: SharedSetup):
    """A row that makes every call fail it is in is looked for by halves, slice by slice."""
    rows = list(range(200))
    rows[100] = -99
    error = shared.rows.delay_rows(rows).get(timeout=SOON, propagate=False)

    assert {100: "KeyError: -99"} == error.failures
    assert [None if n == 100 else 2 * n for n in range(200)] == error.outputs
    assert 4 + 2 * 6 == len(sizes(shared))


@pytest.mark.alike_on_brokers
def test_a_chunk_keeps_to_the_memory_there_is(shared: SharedSetup):
    """What does not fit is halved, and slices are not larger from there on."""
    queue = shared.unique("hungry")
    with shared.another("-c", "1", queue=queue) as worker:
        result = shared.hungry.apply_rows(range(20), queue=queue)

        assert list(range(20)) == result.get(timeout=SOON)
        assert [16, 8, 4, 4, 4, 4, 4] == [len(items) for items in shared.batches("hungry")]
        assert "batches of up to 4 from now on" in worker.log


@pytest.mark.parametrize(
    ("args", "said", "error"),
    [
        (([1, 2, 3],), 4, InvalidChunk),
        (([1, 2, 3],), 1, InvalidChunk),
        (([1, 2, 3],), 900_000, InvalidChunk),
        ((3,), 3, InvalidChunk),
        (("abc",), 3, InvalidChunk),
        (([1], [2]), 1, TypeError),
        (([1, 2, 3],), 0, MessageRefused),
        (([1, 2, 3],), -3, MessageRefused),
        (([1, 2, 3],), 2**40, MessageRefused),
        (([1, 2, 3],), True, MessageRefused),
        (([1, 2, 3],), "3", MessageRefused),
        (([1, 2, 3],), 3.0, MessageRefused),
    ],
    ids=str,
)
def test_a_header_that_does_not_fit_fails_its_own_task(
    shared: SharedSetup, args: tuple[Any, ...], said: Any, error: type[Exception]
):
    """Whatever a message says of its rows, its caller hears what is wrong, and others nothing."""
    wrong = shared.app.send_task("f.rows", args, headers={"batch_rows": said})
    right = shared.rows.delay_rows([1, 2])

    with pytest.raises(error):
        wrong.get(timeout=SOON)
    assert [2, 4] == right.get(timeout=SOON)
    assert [1, 2] == shared.items("rows")


def test_a_worker_that_knows_no_batches_runs_a_chunk(shared: SharedSetup):
    """With Celery's own strategy, the message is an ordinary one: its list is the answer."""
    queue = shared.unique("stock")
    with shared.another("-c", "1", queue=queue, TESTS_STOCK="1"):
        well = shared.rows.apply_rows(range(100), queue=queue)
        badly = shared.rows.apply_rows([1, -2], queue=queue)

        assert [2 * n for n in range(100)] == well.get(timeout=SOON)
        assert [2, None] == badly.get(timeout=SOON, propagate=False).outputs
    assert [64, 36, 2] == sizes(shared)


@pytest.mark.alike_on_brokers
def test_chunks_in_canvases(shared: SharedSetup):
    """A chunk's list goes on as one argument; in a group it is one member."""
    rows = shared.rows.rows_signature
    results = [
        chain(rows([1, 2, 3]), shared.plain_total.s()).delay(),
        chain(shared.plain_add.s(1, 1), rows([4, 5]), shared.total.s()).delay(),
        group(rows([1, 2]), shared.rows.s(3), rows([4])).delay(),
        chord([rows([1, 2]), rows([3])])(shared.echo.s()),
    ]

    assert [12, 18, [[2, 4], 6, [8]], [[2, 4], [6]]] == shared.get(results)


@pytest.mark.alike_on_brokers
def test_a_chunk_is_made_of_an_earlier_result(shared: SharedSetup):
    """A task in the middle of a chain is replaced by a chunk, whose list goes on."""
    numbers = shared.rows.rows_signature([1, 2, 3])
    result = chain(numbers, shared.replaced_by_chunk.s(), shared.plain_total.s()).delay()

    assert 24 == result.get(timeout=SOON)
    assert [3, 3] == sizes(shared)


@pytest.mark.alike_on_brokers
def test_link_and_link_error_of_a_chunk(shared: SharedSetup):
    """A chunk calls back once, with its list or with its error."""
    shared.rows.apply_rows([1, 2], link=shared.note.s())
    failed = shared.rows.apply_rows([-1, 2], link_error=shared.note_error.s())

    assert [2, 4] == eventually(lambda: shared.recall("note"), "the callback")[0]["x"]
    (heard,) = eventually(lambda: shared.recall("note_error"), "the errback")
    assert failed.id == heard["id"]
    assert "1 of 2 rows failed: row 0: ValueError: no -1" in heard["error"]


@pytest.mark.pools(*EVERY_POOL)
def test_a_row_that_is_to_be_retried_retries_its_chunk(shared: SharedSetup):
    """``autoretry_for`` is kept for a chunk as a whole, as soon as one row's error is named."""
    words = [shared.unique("word") for _ in range(3)]
    result = shared.stubborn.delay_rows(words, [0, 2, 1])

    assert [[word, 3] for word in words] == result.get(timeout=SOON)
    assert words * 3 == shared.items("stubborn")


@pytest.mark.alike_on_brokers
def test_a_chunk_that_has_no_tries_left_tells_of_all_its_rows(shared: SharedSetup):
    """After the last try its error names the rows that still failed."""
    words = [shared.unique("word") for _ in range(3)]
    error = shared.stubborn.delay_rows(words, [0, 9, 0]).get(timeout=SOON, propagate=False)

    assert {1: f"ConnectionError: {words[1]}: try 3"} == error.failures
    assert [[words[0], 3], None, [words[2], 3]] == error.outputs


@pytest.mark.alike_on_brokers
def test_a_retry_for_one_row_is_its_chunks(shared: SharedSetup):
    """``Retry`` as an output sends the whole chunk again; so does ``self.retry``."""
    again, word = shared.unique("retry"), shared.unique("word")
    results = [
        shared.act.delay_rows(["left", again, "right"]),
        shared.patient.delay_rows([word], [2]),
    ]

    assert [["LEFT", again.upper(), "RIGHT"], [word]] == shared.get(results)
    assert ["left", again, "right"] * 2 == shared.items("act")


def test_ignored_and_rejected_rows(shared: SharedSetup):
    """One among others has failed; where every row says so, it is said of the chunk."""
    mixed = shared.act.delay_rows(["ignore", "left", "reject"]).get(SOON, propagate=False)
    rejected = shared.act.delay_rows(["reject", "reject"])
    ignored = shared.act.delay_rows(["ignore", "ignore"])
    shared.act.delay("last").get(timeout=SOON)

    assert [0, 2] == list(mixed.failures)
    assert [None, "LEFT", None] == mixed.outputs
    assert isinstance(rejected.get(timeout=SOON, propagate=False), Reject)
    shared.wait_for_nobody()
    assert states.PENDING == ignored.state


@pytest.mark.alike_on_brokers
def test_a_chunk_that_kills_its_process_is_poison(shared: SharedSetup):
    """It is one request: it runs again alone, and is named as a whole; neighbours are answered."""
    gate = shared.close_gate()
    deadly = shared.kills.delay_rows(["a", "die", "b"])
    neighbours = [shared.kills.delay("x"), shared.kills.delay_rows(["y", "z"])]
    shared.wait_for_buffered("f.kills", 3)
    shared.open_gate(gate)
    error = deadly.get(timeout=60, propagate=False)

    assert PoisonItem is type(error)
    assert f"{deadly.id}]: took down the process that ran it" in str(error)
    assert ["X", ["Y", "Z"]] == shared.get(neighbours)


@pytest.mark.alike_on_brokers
@pytest.mark.parametrize(
    ("task", "error"),
    [("nap_soft", SoftTimeLimitExceeded), ("nap_hard", TimeLimitExceeded)],
    ids=["soft", "hard"],
)
def test_a_chunk_over_its_time_limit_fails_alone(
    shared: SharedSetup, task: str, error: type[Exception]
):
    """A limit is for the whole chunk; who shared a batch with it is answered."""
    nap = getattr(shared, task)
    gate = shared.close_gate()
    slow = nap.delay_rows([0, 20, 0])
    neighbours = [nap.delay(0), nap.delay_rows([0, 0])]
    shared.wait_for_buffered(f"f.{task}", 3)
    shared.open_gate(gate)

    with pytest.raises(error):
        slow.get(timeout=60)
    assert [0, [0, 0]] == shared.get(neighbours)


def test_a_chunk_is_revoked_and_expires_as_one_request(shared: SharedSetup):
    """What nobody wants any more is left out with all its rows."""
    gate = shared.close_gate()
    unwanted = shared.echo.delay_rows([1, 2])
    wanted = shared.echo.delay_rows([5, 6])
    send = lambda end: shared.echo.apply_rows([3, 4], expires=end)  # noqa: E731
    late, expires = shared.send_to_expire(send, "f.echo", 3)
    revoke(shared, unwanted)
    eventually(lambda: datetime.now(UTC) > expires, "the time to pass")
    shared.open_gate(gate)

    assert [5, 6] == wanted.get(timeout=SOON)
    for each in (unwanted, late):
        with pytest.raises(TaskRevokedError):
            each.get(timeout=SOON)
    assert [5, 6] == shared.items("echo")


@pytest.mark.alike_on_brokers
def test_a_chunk_is_started_once(shared: SharedSetup):
    """``track_started`` and ``inspect active`` show one task."""
    gate = shared.unique("gate")
    result = shared.hold_many.delay_rows([gate] * 3, [1, 2, 3])
    shared.wait_at(gate)
    active = shared.app.control.inspect([shared.worker.name], timeout=60.0, limit=1).active()
    ids = [each["id"] for each in active[shared.worker.name]]
    started = eventually(lambda: result.state == states.STARTED, "the state")
    shared.open_gate(gate)

    assert started
    assert [result.id] == ids
    assert [1, 2, 3] == result.get(timeout=SOON)


@pytest.mark.alike_on_brokers
def test_hooks_are_called_once_for_a_chunk(shared: SharedSetup):
    """Signals and hooks are those of one task, with the chunk's own arguments and list."""
    result = shared.hooked.delay_rows(["a", "b"])
    answer = result.get(timeout=SOON)
    eventually(lambda: "after_return" in _names(shared), "the last hook")
    facts = {fact["name"]: fact for fact in shared.recall("signal")}

    assert ["A", "B"] == answer == facts["on_success"]["result"]
    assert [["a", "b"]] == facts["before_start"]["args"]
    assert len(_names(shared)) == len(set(_names(shared)))


def _names(shared: SharedSetup) -> list[str]:
    return [fact["name"] for fact in shared.recall("signal")]
