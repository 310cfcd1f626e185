"""Large bodies are decoded where their model runs, and hold up no other message."""

from __future__ import annotations

import pytest
from celery import chord
from kombu import Connection

from celery_batch import InvalidChunk, MessageRefused
from celery_batch.protocol import ROWS
from tests.services.hostile import encoded, post, valid
from tests.services.setup import Setup
from tests.services.shared_setup import SharedSetup, eventually

#: A list of it is a body of more than a megabyte.
LARGE = [0.25] * 200_000

#: The same as JSON, which takes much longer to make.
_LARGE = "[" + ", ".join(["0.25"] * len(LARGE)) + "]"

#: Bodies that are nothing to run, each of more than 100 kB.
MALFORMED = {
    "cut short": f"[[{_LARGE}], {{}}, ".encode(),
    "no text": b"[" + b"\xff" * 200_000 + b"]",
    "nested": b"[" * 200_000,
    "no arguments": f'[5, {{}}, {{"x": {_LARGE}}}]'.encode(),
    "a list of arguments by name": f"[[{_LARGE}], [1], {{}}]".encode(),
    "a callback that is no task": f'[[{_LARGE}], {{}}, {{"callbacks": [5]}}]'.encode(),
    "too many parts": f"[[{_LARGE}], {{}}, {{}}, {{}}]".encode(),
}


def send(setup: Setup, message: dict) -> None:
    """Put a message into the worker's queue."""
    if setup.url.startswith("amqp"):
        with Connection(setup.url) as connection:
            assert post(connection.default_channel, message)
    else:
        with setup.memory() as client:
            client.lpush("celery", encoded(message))


def test_a_large_body_is_decoded_in_the_pool_process_alone(each_setup: Setup):
    """The process that reads messages never calls a decoder on it, nor on what it lies in."""
    worker = each_setup.worker("-c", "1", TESTS_DECODED="1")
    alone = each_setup.double.delay(LARGE).get(timeout=60)
    pids = {fact["pid"] for fact in each_setup.recall("decoded")}
    answers = [each_setup.double.delay(LARGE) for _ in range(2)]
    small = each_setup.double.delay(1)

    assert [LARGE * 2] * 3 == [alone, *[each.get(timeout=60) for each in answers]]
    assert 2 == small.get(timeout=60)
    assert 1 == len(pids)
    assert pids == {fact["pid"] for fact in each_setup.recall("decoded")}
    assert worker.pid not in pids


def test_large_bodies_that_are_malformed_are_refused_from_the_pool_process(each_setup: Setup):
    """Their callers hear, neighbours run, the bytes are kept, and the broker lets go of them."""
    worker = each_setup.worker("-c", "1", conf={"batch_dead_letter_queue": "dead"})
    pid = worker.pid
    refused, answers = [], []
    for body in MALFORMED.values():
        refused.append({**valid(), "body": body})
        send(each_setup, refused[-1])
        answers.append(each_setup.double.delay(len(answers)))

    for message in refused:
        with pytest.raises(MessageRefused):
            each_setup.app.AsyncResult(message["headers"]["id"]).get(timeout=60)
    assert [2 * n for n in range(len(refused))] == [each.get(timeout=60) for each in answers]
    assert pid == worker.pid
    eventually(lambda: worker.log.count("Refused a message") == len(refused), "all refusals")
    with each_setup.app.connection_for_read() as connection:
        letters = connection.SimpleQueue("dead")
        kept = [letters.get(timeout=30) for _ in refused]
        for letter in kept:
            letter.ack()
        letters.close()
    assert {*MALFORMED.values()} == {letter.body for letter in kept}
    idle = each_setup.app.control.inspect([worker.name], timeout=60.0, limit=1)
    eventually(lambda: idle.active() == idle.reserved() == {worker.name: []}, "an idle worker")
    if not each_setup.url.startswith("amqp"):
        with each_setup.memory() as client:
            eventually(lambda: not client.hlen("unacked"), "nothing unacknowledged")


@pytest.mark.parametrize("pool", ["solo", "threads"])
def test_large_bodies_that_are_malformed_are_refused_on_any_pool(setup: Setup, pool: str):
    """Where there is no process, whoever runs the batch finds what is wrong with them."""
    worker = setup.worker("-c", "1", "-P", pool)
    refused = [{**valid(), "body": body} for body in MALFORMED.values()]
    for message in refused:
        send(setup, message)

    assert 42 == setup.double.delay(21).get(timeout=60)
    for message in refused:
        with pytest.raises(MessageRefused):
            setup.app.AsyncResult(message["headers"]["id"]).get(timeout=60)
    eventually(lambda: worker.log.count("Refused a message") == len(refused), "all refusals")
    with setup.memory() as client:
        eventually(lambda: not client.hlen("unacked"), "nothing unacknowledged")


def test_large_chunks_are_counted_by_their_header(each_shared: SharedSetup):
    """A chunk has the rows that its header says, and fails where its body has others."""
    rows = [f"{n:2000}" for n in range(200)]
    chunk = each_shared.double.delay_rows(rows)
    wrong = each_shared.double.apply_async((rows,), headers={ROWS: 5})

    assert [2 * row for row in rows] == chunk.get(timeout=60)
    with pytest.raises(InvalidChunk, match="must have 5 rows"):
        wrong.get(timeout=60)


def test_a_large_part_of_a_chord_that_is_revoked_fails_the_chord(redis_shared: SharedSetup):
    """What is embedded beside large arguments is known when its end comes without the model."""
    late = redis_shared.double.s(LARGE).set(expires=-1)
    result = chord([redis_shared.double.s(1), late])(redis_shared.total.s())

    with pytest.raises(Exception, match="expired"):
        result.get(timeout=60)


def test_large_messages_of_the_older_protocol_run(each_shared: SharedSetup):
    """There the body says what task it is for."""
    app, task_id = each_shared.app, each_shared.unique("older")
    message = app.amqp.as_task_v1(task_id, "shop.double", args=(LARGE,))
    with app.producer_or_acquire() as producer:
        app.amqp.send_task_message(producer, "shop.double", message)

    assert LARGE * 2 == app.AsyncResult(task_id).get(timeout=60)
