"""Answers that come together are dealt with together, while workers have enough to do."""

from __future__ import annotations

import pytest
from celery import Celery, states
from celery.backends.redis import RedisBackend
from kombu.exceptions import EncodeError, OperationalError

from celery_batch import BatchTask
from celery_batch.backfill import sender as senders
from celery_batch.backfill.engine import Backfill
from celery_batch.backfill.window import Chunk, Limits, Row
from celery_batch.client.publish.send_many import PartlySent
from celery_batch.client.results.pending import SentBy
from celery_batch.errors import QueueFull


class FakeResult:
    """A result whose task ends when the test says so."""

    state = states.SUCCESS
    batch = None

    def __init__(self, number, rows):
        self.id = f"task {number}"
        self.result = list(range(rows))
        self.finish = None

    def future(self):
        """Return the future of the task: itself."""
        return self

    def add_done_callback(self, callback):
        """Keep the callback."""
        self.finish = lambda: callback(self)

    def cancel(self):
        """Wait for the task no more."""


class Broker:
    """Stands for the way to a broker: writes down what is sent and forgotten together."""

    def __init__(self, task):
        self.writes, self.forgotten, self.results, self.errors = [], [], [], []
        task.apply_rows = lambda *columns, **_: self.send([columns])[0]
        task._apply_chunks = lambda chunks, _: self.send(chunks)
        task._forget_many = lambda results: self.forgotten.append(len(results))

    def send(self, chunks):
        """Take some chunks in one write, or refuse them as the test says."""
        self.writes.append(len(chunks))
        made = [FakeResult(len(self.results) + n, len(each[0])) for n, each in enumerate(chunks)]
        error = self.errors.pop(0) if self.errors else None
        if isinstance(error, PartlySent):
            error.places = {place: made[place] for place in error.places}
            error.sent = list(error.places.values())
        taken = made if error is None else getattr(error, "sent", [])
        self.results += taken
        if error is not None:
            raise error
        return made


@pytest.fixture
def task():
    """Return a batch task of an app whose broker is in memory."""
    app = Celery("crowds", set_as_current=False, broker="memory://", backend="cache+memory://")

    @app.task(base=BatchTask, max_batch_size=2)
    def double(number):
        return [2 * n for n in number]

    return double


@pytest.fixture
def broker(task):
    """Return the broker that stands for the task's."""
    return Broker(task)


@pytest.fixture
def clock(monkeypatch):
    """Return the waits that a sender has begun, which end at once."""
    waits = []

    class Queue(senders.SimpleQueue):
        def get(self, timeout):
            waits.append(timeout)
            return super().get(timeout=0)

    monkeypatch.setattr(senders, "SimpleQueue", Queue)
    return waits


def begun(task, rows, window):
    """Return a backfill that has sent what it may."""
    source = (Row(n, str(n), (n,)) for n in range(rows))
    backfill = Backfill(task, source, Limits(window=window, chunk_size=2))
    backfill.step(0.0)
    return backfill


def some_chunks(number):
    """Return some chunks of two rows each."""
    return [Chunk((Row(n, "", (n,)), Row(n + 1, "", (n,)))) for n in range(0, 2 * number, 2)]


def test_at_the_beginning_each_chunk_leaves_as_soon_as_it_is_read(task, broker):
    """Only the last eighth of the window is gathered: workers have the others by then."""
    begun(task, 1000, 32)

    assert [*[1] * 14, 2] == broker.writes


def test_answers_are_waited_for_while_there_is_plenty(task, broker, clock):
    """Several are taken, and what may leave for them does so in one write."""
    backfill = begun(task, 1000, 64)
    for result in broker.results[:6]:
        result.finish()
    del clock[:], broker.writes[:]

    backfill.step(0.5)
    waits = clock[1:]
    backfill.step(0.5)

    # Once less than seven eighths are left, nothing more is waited for.
    assert all(0 < wait <= 0.01 for wait in waits[:4])
    assert [0.0, 0.0] == waits[4:]
    assert [6] == broker.forgotten
    assert [1, 1, 4] == broker.writes  # the first leave at once: there was no plenty any more


def test_few_rows_are_not_waited_for(task, broker, clock):
    """Where the window is small, or few rows are left, each answer is dealt with at once."""
    backfill = begun(task, 8, 64)
    broker.results[0].finish()
    del clock[:]

    assert [0, 1] == [each.row.position for each in backfill.step(0.5)]
    assert [0.5, 0.0] == clock


def test_what_was_surely_taken_is_expected(task, broker):
    """Of chunks in a write that broke off, the others are returned to leave again."""
    sender = senders.Sender(task, {})
    chunks = some_chunks(4)
    broker.errors = [PartlySent("it is gone", places=dict.fromkeys([0, 2]))]

    assert [chunks[1], chunks[3]] == sender.send(chunks)
    for result in broker.results:
        result.finish()
    assert [chunks[0], chunks[2]] == [chunk for chunk, _ in sender.completed(0.0)]


def test_what_the_broker_refused_is_returned(task, broker):
    """Nothing of a write that failed is expected."""
    sender = senders.Sender(task, {})
    chunks = some_chunks(3)
    broker.errors = [OperationalError("it is away")]

    assert chunks == sender.send(chunks)
    assert [] == sender.revoke()


def test_a_chunk_that_cannot_be_written_does_not_keep_others(task, broker):
    """They leave each by itself, and it alone falls apart into its rows."""
    sender = senders.Sender(task, {})
    chunks = some_chunks(3)
    broker.errors = [EncodeError("no"), None, EncodeError("no"), None]

    assert [] == sender.send(chunks)
    assert [(chunks[1], None)] == list(sender.completed(0.0))
    assert [chunks[0], chunks[2]] == sender.revoke()


@pytest.mark.parametrize("rows", [1, 2])
def test_what_cannot_be_written_is_not_taken_for_a_lost_broker(task, rows):
    """Where messages are written one by one, those before it are sent once, and those behind."""
    queue = f"crowds {rows}"
    sender = senders.Sender(task, {"queue": queue})
    values = [1, 2, object(), 4]
    chunks = [Chunk((Row(0, "", (each,)),) * rows) for each in values]

    assert [] == sender.send(chunks)
    assert [chunks[2]] == [chunk for chunk, _ in sender.completed(0.0)]
    assert [chunks[0], chunks[1], chunks[3]] == sender.revoke()
    with task.app.connection_for_read() as connection:
        assert 3 == connection.default_channel.queue_declare(queue, passive=True).message_count


def test_chunks_are_let_in_one_by_one_where_few_may_wait(task, broker):
    """By the option ``max_queue`` a full queue refuses what comes, not what was let in."""
    task.max_queue = 100
    sender = senders.Sender(task, {})
    chunks = some_chunks(3)
    broker.errors = [None, QueueFull("full")]

    assert chunks[1:] == sender.send(chunks)
    assert [1, 1] == broker.writes


def test_results_are_deleted_with_one_command(monkeypatch):
    """Many at once where Celery keeps them in Redis, each in Celery's way elsewhere."""
    app = Celery("many", set_as_current=False, backend="redis://127.0.0.1:1")

    @app.task(base=BatchTask)
    def double(number):
        return number

    deleted, forgotten = [], []
    commands = {"delete": lambda *keys: deleted.append(keys), "getrange": lambda *_: b""}
    monkeypatch.setattr(RedisBackend, "client", type("", (), commands))
    monkeypatch.setattr(RedisBackend, "forget", lambda _backend, task_id: forgotten.append(task_id))
    monkeypatch.setattr(RedisBackend, "remove_pending_result", lambda *_: None)
    results = [double.AsyncResult(task_id) for task_id in "abc"]
    for result in results[:2]:
        result.pending_result.sent_by, result.pending_result.value = SentBy.THIS, b"{}"

    double._forget_many(results)

    assert [(b"celery-task-meta-a", b"celery-task-meta-b")] == deleted
    assert ["c"] == forgotten
    assert results[0].pending_result.value is None
