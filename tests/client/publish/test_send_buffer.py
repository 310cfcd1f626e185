"""Who writes whose messages, and what comes of an interrupted write."""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from amqp.exceptions import NotFound
from kombu.exceptions import OperationalError

from celery_batch.client.publish.buffer import (
    MOST_CHARACTERS,
    MOST_MESSAGES,
    BulkWrite,
    PreparedMessage,
    SendBuffer,
)
from celery_batch.compat.deadline import waiting_until
from celery_batch.errors import copied


class Broker:
    """Takes messages; a plan says what comes of each write."""

    def __init__(self, *plan: Callable[[], None]) -> None:
        self.plan = [*plan]
        self.pieces: list[list[str]] = []

    def write(self, written: list[PreparedMessage]) -> None:
        """Take messages, if the plan has nothing else for this time."""
        self.pieces.append([prepared.text for prepared in written])
        if self.plan:
            self.plan.pop(0)()
        for prepared in written:
            prepared.sent = True


def messages(*texts: str) -> list[PreparedMessage]:
    """Make messages to one list."""
    return [PreparedMessage("list", text) for text in texts]


def test_letters_go_in_pieces() -> None:
    """More messages than go in one write are several, in order."""
    broker = Broker()
    SendBuffer(broker.write).send(messages(*map(str, range(MOST_MESSAGES + 2))))

    assert [MOST_MESSAGES, 2] == [len(piece) for piece in broker.pieces]
    assert [str(MOST_MESSAGES), str(MOST_MESSAGES + 1)] == broker.pieces[1]


def test_nobody_whose_letter_is_sent_waits_for_the_next_write() -> None:
    """All who waited for a write are called when it is over, whoever writes by then."""
    begun, first, last = threading.Event(), threading.Event(), threading.Event()
    second = threading.Event()

    def hold() -> None:
        begun.set()
        first.wait(10)

    def until_another_is_ready() -> None:
        second.set()
        while not send_buffer:
            last.wait(0.001)

    broker = Broker(hold, until_another_is_ready, lambda: last.wait(10))
    send_buffer = SendBuffer(broker.write)
    with ThreadPoolExecutor(8) as threads:
        leader = threads.submit(send_buffer.send, messages("a"))
        begun.wait(10)
        crowd = [threads.submit(send_buffer.send, messages(text)) for text in "bcdef"]
        while len(send_buffer) < len(crowd):
            last.wait(0.001)
        first.set()
        leader.result(10)
        second.wait(10)  # else the late one would go along
        late = threads.submit(send_buffer.send, messages("g"))
        for each in crowd:
            each.result(10)
        is_late_sent = late.done()
        last.set()
        late.result(10)

    assert not is_late_sent
    assert [1, 5, 1] == [len(piece) for piece in broker.pieces]


def test_large_letters_go_in_small_pieces() -> None:
    """A write, of a send buffer or in bulk, has at most one message beyond 8 MiB."""
    broker = Broker()
    quarter = "x" * (MOST_CHARACTERS // 4)
    SendBuffer(broker.write).send(messages(*[quarter] * 9))
    once = [len(piece) for piece in broker.pieces]
    broker.pieces.clear()
    bulk, send_buffer = BulkWrite(), SendBuffer(broker.write)
    for prepared in messages(*[quarter] * 6):
        bulk.add(prepared, prepared.text, send_buffer)
    kept = [len(piece) for piece in broker.pieces]
    bulk.flush()

    assert [4, 4, 1] == once
    assert ([4], [4, 2]) == (kept, [len(piece) for piece in broker.pieces])


def test_signal_handler_sends_while_its_thread_writes(in_python: Callable[..., str]) -> None:
    """A handler that strikes in the midst of a write sends at once, and both messages arrive."""
    code = """
import faulthandler, os, signal
from celery_batch.client.publish.buffer import PreparedMessage, SendBuffer
faulthandler.dump_traceback_later(20, exit=True)
order = []
def write(letters):
    order.append([letter.text for letter in letters])
    if len(order) == 1:
        signal.raise_signal(signal.SIGUSR1)
    for letter in letters:
        letter.sent = True
        order.append(letter.text)
outbox = SendBuffer(write)
signal.signal(signal.SIGUSR1, lambda *_: outbox.send([PreparedMessage("list", "farewell")]))
outbox.send([PreparedMessage("list", "a"), PreparedMessage("list", "b")])
print(order, len(outbox))
"""
    expected = [["a", "b"], ["farewell"], "farewell", "a", "b"]

    assert f"{expected} 0" == in_python(code)


def test_letters_that_wait_for_a_write_share_the_next() -> None:
    """What comes while a write is on its way leaves in one write after it."""
    writing, waiting = threading.Event(), threading.Event()

    def hold() -> None:
        """Keep the first write until the others wait."""
        writing.set()
        waiting.wait(10)

    broker = Broker(hold)
    send_buffer = SendBuffer(broker.write)
    with ThreadPoolExecutor(4) as threads:
        first = threads.submit(send_buffer.send, messages("first"))
        writing.wait(10)
        others = [threads.submit(send_buffer.send, messages(text)) for text in "abc"]
        while len(send_buffer) < 3:
            assert not first.done()
        waiting.set()
        for each in (first, *others):
            each.result(10)

    assert [["first"], ["a", "b", "c"]] == [sorted(piece) for piece in broker.pieces]


def test_a_failed_piece_spares_the_next() -> None:
    """Letters of another piece are sent, and the error is that of the failed one."""

    def fail() -> None:
        """Refuse the write."""
        raise OSError("refused")

    broker = Broker(fail)
    send_buffer = SendBuffer(broker.write)
    own = messages(*map(str, range(MOST_MESSAGES + 1)))
    with pytest.raises(OSError, match="refused"):
        send_buffer.send(own)

    assert [False, True] == [own[0].sent, own[-1].sent]
    assert 0 == len(send_buffer)


def test_an_interrupted_writer_leaves_others_letters_to_them() -> None:
    """Who is told to end while it writes takes its own messages back, and no others."""
    writing, waiting = threading.Event(), threading.Event()

    def hold() -> None:
        """Keep the first write until another message waits."""
        writing.set()
        waiting.wait(10)

    def interrupt() -> None:
        """Have the writer told to end."""
        raise KeyboardInterrupt

    broker = Broker(hold, interrupt)
    send_buffer = SendBuffer(broker.write)
    outcomes = []

    def send(text: str) -> None:
        """Send, and note how it went."""
        try:
            send_buffer.send(messages(text))
        except KeyboardInterrupt:
            outcomes.append("interrupted")
        else:
            outcomes.append("sent")

    with ThreadPoolExecutor(4) as threads:
        jobs = [threads.submit(send, "first")]
        writing.wait(10)
        jobs += [threads.submit(send, text) for text in "ab"]
        while len(send_buffer) < 2:
            assert not jobs[0].done()
        waiting.set()
        for job in jobs:
            job.result(10)

    assert ["interrupted", "sent", "sent"] == sorted(outcomes)
    assert 3 == len(broker.pieces)
    assert ["a", "b"] == sorted(broker.pieces[1])
    assert 1 == len(broker.pieces[2])
    assert 0 == len(send_buffer)


def test_each_caller_of_a_failed_write_has_a_traceback_of_its_own() -> None:
    """The error that one caller handles does not grow by those of the others."""
    ready = threading.Barrier(8)

    def fail() -> None:
        raise OperationalError("no broker")

    def share() -> None:
        """Wait until all messages are in this write, or fail."""
        while len(send_buffer) < 7:
            threading.Event().wait(0.001)

    broker = Broker(share, fail)
    send_buffer = SendBuffer(broker.write)

    def send(name: int) -> BaseException | None:
        ready.wait()
        try:
            send_buffer.send(messages(str(name)))
        except OperationalError as error:
            return error
        return None

    with ThreadPoolExecutor(8) as threads:
        errors = [error for error in threads.map(send, range(8)) if error is not None]
    depths = [len(traceback.extract_tb(error.__traceback__)) for error in errors]

    assert [1, 7] == [len(piece) for piece in broker.pieces]
    assert ["no broker"] * 7 == [str(error) for error in errors]
    assert 7 == len({id(error) for error in errors})
    assert max(depths) - min(depths) <= 2


class Odd(Exception):
    """An error that cannot be made of its own arguments."""

    def __init__(self, one: str, two: str) -> None:
        super().__init__(f"{one} {two}")


def test_an_error_that_cannot_be_copied_is_raised_as_it_is() -> None:
    """Whatever an error is made of, its caller has it, with its cause and its attributes."""
    plain, odd = OperationalError("away"), Odd("a", "b")
    plain.__cause__, plain.queue = OSError("gone"), "slow"
    amqp = NotFound(404, "no queue", (50, 10), "Queue.declare")
    twin = copied(plain)

    assert (True, OperationalError, "away") == (twin is not plain, type(twin), str(twin))
    assert (plain.__cause__, "slow") == (twin.__cause__, twin.queue)
    assert odd is copied(odd)
    assert str(amqp) == str(copied(amqp))


@pytest.mark.parametrize("failures", [0, 1])
def test_a_write_that_has_to_connect_holds_no_sender_beyond_its_deadline(failures: int) -> None:
    """The first write, and one after a failure, are given up in time, however long they take."""
    is_over = threading.Event()
    broker = Broker(*[_succeed, _fail] * failures, lambda: _hang(is_over))
    send_buffer = SendBuffer(broker.write)
    if failures:
        send_buffer.send(messages("well"))
        with pytest.raises(OperationalError), waiting_until(time.monotonic() + 10):
            send_buffer.send(messages("lost"))
    began = time.monotonic()
    with pytest.raises(TimeoutError), waiting_until(began + 1.0):
        send_buffer.send(messages("late"))
    took = time.monotonic() - began
    is_over.set()
    with waiting_until(time.monotonic() + 10):
        send_buffer.send(messages("next"))

    assert 1.0 <= took < 50.0
    assert ["late", "next"] == [text for piece in broker.pieces[-2:] for text in piece]


def _succeed() -> None:
    pass


def _hang(until: threading.Event) -> None:
    until.wait(60)


def _fail() -> None:
    raise OperationalError("away")
