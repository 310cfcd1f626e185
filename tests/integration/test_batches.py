"""Tasks written for celery-batches, with their import line changed."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from functools import wraps
from pathlib import Path
from typing import Any

import pytest
from billiard.exceptions import SoftTimeLimitExceeded
from celery import Celery, chord, states
from celery.exceptions import TaskRevokedError
from celery.exceptions import TimeoutError as CeleryTimeoutError

from celery_batch import ConfigurationError, QueueFull
from celery_batch.batches import Batches, SimpleRequest
from tests.services.setup import Setup, open_setup
from tests.services.shared_setup import SOON, SharedSetup, eventually

MODULE = "tests.apps.requests_app"
POOLS = [("-c", "1"), ("-c", "2"), ("-P", "solo"), ("-P", "threads", "-c", "2")]
_THOROUGH = pytest.mark.thorough("solo and threads over RabbitMQ")


@pytest.fixture(params=["redis", "rabbitmq"])
def setup(request: pytest.FixtureRequest, broker: str, tmp_path: Path) -> Iterator[Setup]:
    """The app on each of the brokers in turn; its results are in Redis."""
    url = broker
    if request.param == "rabbitmq":
        url = request.getfixturevalue("rabbitmq_server").url
    with open_setup(url, tmp_path, backend=broker, module=MODULE) as setup:
        yield setup


def get_all(results: list[Any]) -> list[Any]:
    """Return answers, or the errors in their place."""
    return [result.get(timeout=SOON, propagate=False) for result in results]


@pytest.mark.parametrize(
    ("setup", "pool"),
    [
        pytest.param(
            broker,
            pool,
            id=f"{broker}-{''.join(pool)}",
            marks=_THOROUGH if broker == "rabbitmq" and "-P" in pool else (),
        )
        for broker in ("redis", "rabbitmq")
        for pool in POOLS
    ],
    indirect=["setup"],
)
def test_requests_run_in_batches_and_none_is_left_waiting(setup: Setup, pool: tuple[str, ...]):
    """Of any arguments; a batch that raises fails those whose results it has not stored."""
    setup.worker(*pool)
    calls = [((1, 2), None), ((), {"n": 3}), ((), None), ((4,), None)]
    assert [10] * 4 == get_all(setup.total.apply_many(calls))
    lone = setup.total.delay(5)
    assert 5 == lone.get(timeout=SOON)
    answers = get_all(setup.total.delay_many([1, 13, 2, 3]))

    assert 19 == answers[0]
    assert ["no 13"] * 3 == [str(each) for each in answers[1:]]
    assert {ValueError} == {type(each) for each in answers[1:]}
    assert [4, 1, 4] == [len(batch["items"]) for batch in setup.recall("total")]


def test_signals_are_sent_once_a_batch(setup: Setup):
    """Received for each request; the others by the batch."""
    setup.worker("-c", "1")
    get_all(setup.total.delay_many(range(4)))
    get_all(setup.total.delay_many([13] * 4))
    found = Counter()
    for kind in ("received", "prerun", "postrun", "success", "failure"):
        found[kind] = len(setup.recall(kind))

    assert {"received": 8, "prerun": 2, "postrun": 2, "success": 1, "failure": 1} == found


def test_a_request_knows_its_message(each_shared: SharedSetup):
    """What celery-batches documents is there."""
    worker = each_shared.worker
    known = each_shared.facts.delay(1, two=[2]).get(timeout=SOON)

    assert {
        "name": "r.facts",
        "args": [1],
        "kwargs": {"two": [2]},
        "hostname": worker.name,
        "routing_key": each_shared.app.conf.task_default_queue,
        "task": "r.facts",
        "ignore_result": False,
        "current": "r.facts",
    } == known


def test_a_request_may_be_sent_again_under_its_id(each_shared: SharedSetup):
    """Then it has not failed, though the batch raised."""
    results = [each_shared.again.delay(n) for n in range(4)]

    assert [1, 1, 3, 3] == get_all(results)


@pytest.mark.parametrize("what", ["unread", "unpickled"])
def test_an_error_that_no_pickle_brings_back_harms_nobody(each_shared: SharedSetup, what: str):
    """Callers get an error with its text, and the worker goes on."""
    answers = get_all([each_shared.odd.delay(what) for _ in range(4)])

    assert all(isinstance(each, Exception) for each in answers)
    assert 3 == each_shared.total.delay(3).get(timeout=SOON)


def test_what_other_threads_store_counts(setup: Setup):
    """The error of the function is none of the calls that have ended before."""
    worker = setup.worker("-c", "1")
    answers = get_all([setup.marks.delay(n) for n in range(4)])

    assert [0, 2, 3] == [answers[0], *answers[2:]]
    assert KeyError("one").args == answers[1].args
    worker.counted("r.marks", succeeded=3, failed=1)


@pytest.mark.parametrize("what", ["reject", "ignore"])
def test_messages_may_be_rejected_or_ignored(each_shared: SharedSetup, what: str):
    """No message comes again; since Celery 5.7 a rejected one has a failure."""
    worker = each_shared.worker
    results = each_shared.rejects.delay_many([what] * 4)
    eventually(lambda: each_shared.recall("rejects"), "a batch")
    eventually(lambda: not worker.status()["r.rejects"]["running"], "its end")

    assert 3 == each_shared.total.delay(3).get(timeout=SOON)
    assert 1 == len(each_shared.recall("rejects"))
    if what == "ignore":
        assert [states.PENDING] * 4 == [each.state for each in results]


def test_calls_that_want_no_result_store_none(each_shared: SharedSetup):
    """No failure either."""
    worker = each_shared.worker
    results = [each_shared.ignored.delay(n) for n in range(4)]
    eventually(lambda: each_shared.recall("ignored"), "a batch")
    eventually(lambda: not worker.status()["r.ignored"]["running"], "its end")

    assert [states.PENDING] * 4 == [each_shared.app.AsyncResult(each.id).state for each in results]


@pytest.mark.parametrize("name", ["total", "marks"])
def test_tasks_that_follow_a_failure_are_called(each_shared: SharedSetup, name: str):
    """Once for each call that failed, whoever marked it."""
    task, failing = getattr(each_shared, name), 13 if name == "total" else 1
    calls = [task.s(failing).on_error(each_shared.note_error.s()) for _ in range(4)]
    results = [each.apply_async() for each in calls]
    assert all(isinstance(each, Exception) for each in get_all(results))
    eventually(lambda: len(each_shared.recall("errback")) >= 4, "errbacks")

    assert sorted(each.id for each in results) == sorted(
        each["id"] for each in each_shared.recall("errback")
    )


def test_callers_are_notified(each_shared: SharedSetup):
    """They need not ask the result backend."""
    with each_shared.app.backend.client.pubsub() as listener:
        listener.psubscribe("*")
        assert "psubscribe" == listener.get_message(timeout=SOON)["type"]
        result = each_shared.total.delay(1)

        def is_told() -> bool:
            message = listener.get_message(timeout=1)
            return bool(message) and result.id.encode() in bytes(message["data"])

        eventually(is_told, "a message about the result")
        assert 1 == result.get(timeout=SOON)


def test_a_time_limit_fails_what_is_not_stored(each_shared: SharedSetup):
    """It interrupts the function, and what that has stored stays."""
    answers = get_all(each_shared.slow.delay_many(range(3)))

    assert "first" == answers[0]
    assert [SoftTimeLimitExceeded] * 2 == [type(each) for each in answers[1:]]
    assert 3 == each_shared.total.delay(3).get(timeout=SOON)


def test_a_lost_process_costs_no_request_that_is_acknowledged_late(setup: Setup):
    """They run again in another process."""
    setup.worker("-c", "1")

    assert [1, 9, 2, 3] == get_all([setup.late.delay(n) for n in (1, 9, 2, 3)])


def test_revoked_and_expired_requests_are_not_in_a_batch(each_shared: SharedSetup):
    """Their callers are told; the others run."""
    worker = each_shared.worker
    each_shared.app.control.revoke("unwanted")
    eventually(lambda: "unwanted" in worker.ask("revoked"), "a revoked id")
    unwanted = [each_shared.total.apply_async((100,), task_id="unwanted")]
    if not each_shared.url.startswith("amqp"):  # RabbitMQ drops them itself, and nobody is told
        unwanted.append(each_shared.total.apply_async((200,), expires=0.0001))
    kept = each_shared.total.delay(1)

    assert 1 == kept.get(timeout=SOON)
    assert {TaskRevokedError} == {type(each) for each in get_all(unwanted)}


def test_nothing_runs_before_its_eta(each_shared: SharedSetup):
    """It joins a batch then."""
    began = time.monotonic()
    result = each_shared.total.apply_async((1,), countdown=1.0)

    assert 1 == result.get(timeout=SOON)
    assert time.monotonic() - began >= 1.0


def test_a_success_that_stores_nothing_has_no_result(each_shared: SharedSetup):
    """As in celery-batches; the message is acknowledged."""
    worker = each_shared.worker
    results = [each_shared.silent.delay(n) for n in range(4)]
    eventually(lambda: each_shared.recall("silent"), "a batch")
    with pytest.raises(CeleryTimeoutError):
        results[0].get(timeout=0.2)
    eventually(lambda: not worker.status()["r.silent"]["running"], "the end of the batch")

    assert states.PENDING == results[0].state


def test_the_prefetch_is_enough_for_a_batch(setup: Setup):
    """Whatever Celery's settings say."""
    setup.worker("-c", "1", "--prefetch-multiplier", "1")

    assert [500] * 500 == get_all(setup.many.delay_many(range(500)))


def test_events_are_sent_for_each_request(setup: Setup):
    """As its batch ends."""
    worker, seen, shown = setup.worker("-c", "1"), Counter[str](), set[str]()

    def note(event: dict[str, Any]) -> None:
        seen.update([event["type"]])
        if event["type"] == "task-succeeded":
            shown.add(event["result"])

    with setup.app.connection_for_read() as connection:
        receiver = setup.app.events.Receiver(connection, handlers={"*": note})
        with receiver.consumer_context() as (heard, *_):
            while not seen:  # until the broker passes events on
                setup.app.control.heartbeat(destination=[worker.name])
                with suppress(TimeoutError):
                    heard.drain_events(timeout=0.5)
            totals = set(map(repr, get_all([setup.total.delay(n) for n in range(4)])))
            get_all([setup.total.delay(13) for _ in range(4)])
            get_all([setup.again.delay(n) for n in range(0, 8, 2)])  # each is sent again once
            while seen["task-failed"] < 4 or seen["task-succeeded"] < 8:
                heard.drain_events(timeout=SOON)

    kinds = ("received", "started", "succeeded", "failed", "retried")
    found = {kind: seen[f"task-{kind}"] for kind in kinds}
    assert {"received": 16, "started": 16, "succeeded": 8, "failed": 4, "retried": 4} == found
    assert totals | {"1", "3", "5", "7"} == shown


def test_a_chord_ends_with_marked_results(each_shared: SharedSetup):
    """`mark_as_done` counts for the chord of a request."""
    result = chord([each_shared.total.s(n) for n in (1, 2, 3, 4)])(each_shared.collect.s())

    assert 40 == result.get(timeout=SOON)


@pytest.mark.parametrize("is_late", [False, True])
def test_messages_are_acknowledged_when_the_task_says(each_shared: SharedSetup, is_late: bool):  # noqa: FBT001
    """Before the batch runs unless `acks_late` is set; by the methods of a class of its own."""
    task = each_shared.watched_late if is_late else each_shared.watched
    results = task.delay_many(range(4))
    acknowledged = get_all(results)

    assert [[] if is_late else sorted(each.id for each in results)] * 4 == acknowledged
    eventually(lambda: len(each_shared.recall("ack")) == 4, "acknowledgements")


def test_eager_calls_are_batches_of_one():
    """The function's value is the result's."""
    with Celery("eager", set_as_current=False) as app:
        app.conf.task_always_eager = True

        @app.task(base=Batches)
        def names(requests):
            assert [SimpleRequest] == [type(each) for each in requests]
            return [each.kwargs | {"id": each.id} for each in requests]

        result = names.delay(a=1)

        assert [{"a": 1, "id": result.id}] == result.get()


@pytest.mark.parametrize("name", ["flush", "Strategy"])
def test_steps_that_there_are_none_of_cannot_be_overridden(name: str):
    """The error names them."""
    with pytest.raises(ConfigurationError, match=rf"Own\.{name}: celery_batch\.batches has no"):
        type("Own", (Batches,), {name: lambda *_: None})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_batch_size": 5}, "max_batch_size: is an option of BatchTask"),
        ({"model": object}, "model: is an option of BatchTask"),
        ({"autoretry_for": (OSError,)}, "autoretry_for: a batch has no message to retry"),
        ({"flush_every": 0}, "flush_every: must be"),
        ({"time_limit": "10"}, "take.time_limit: must be seconds"),
        ({"flush_interval": None}, "flush_interval: must be a number"),
        ({"bind": True}, "take: its function must take one argument"),
    ],
)
def test_options_without_a_meaning_are_refused(options: dict[str, Any], message: str):
    """They would be ignored."""
    with Celery("odd", set_as_current=False) as app:

        def take(requests):
            return requests

        with pytest.raises(ConfigurationError, match=message):
            app.task(base=Batches, lazy=False, **options)(take)


def test_internals_are_no_part_of_it():
    """The error says what to use instead."""
    with pytest.raises(ImportError, match=r"has no trace: .* task_prerun"):
        from celery_batch.batches import trace  # noqa: F401, PLC0415 (what a user may have)


def test_rows_are_refused():
    """The function takes requests: there is a way out."""
    with Celery("rows", set_as_current=False) as app:

        @app.task(base=Batches, bind=True)
        def take(self, requests):
            self.retry(exc=ValueError(len(requests)))

        for call in (take.delay_rows, take.run_batch, take.backfill):
            with pytest.raises(ConfigurationError, match="make it a BatchTask"):
                call([1, 2])
        with pytest.raises(ConfigurationError, match=r"send a call again with apply_async"):
            take.apply((1,)).get()


def test_annotations_count():
    """Celery applies them when it binds a task."""
    with Celery("annotated", set_as_current=False) as app:
        app.conf.task_annotations = {"wide": {"flush_every": 77}}

        @app.task(base=Batches, name="wide", lazy=False)
        def wide(requests):
            return {len(requests)}  # no JSON, and no worker would store it

        assert 77 == wide.max_batch_size
        assert {1} == wide.apply().get()


@pytest.mark.parametrize(
    ("option", "hint"),
    [
        ("flush_evry", "; did you mean flush_every? (declare attributes of your own on a base"),
        ("channel", " (declare"),
        ("max_batch", " (declare"),
    ],
)
def test_a_misspelt_option_is_refused(option, hint):
    """With the nearest one, which is none that has no meaning here."""
    with (
        Celery("wrong", set_as_current=False) as app,
        pytest.raises(ConfigurationError, match=re.escape(f"{option}: no such task option{hint}")),
    ):

        @app.task(base=Batches, lazy=False, **{option: 3})
        def wrong(requests):
            return requests


def test_a_full_queue_refuses_calls(broker):
    """As for batch tasks, by calls: nobody takes any here."""
    with Celery("full", broker=broker, backend=broker, set_as_current=False) as app:

        @app.task(base=Batches, max_queue=2, lazy=False)
        def never(requests):
            return requests

        results = [never.apply_async((number,), queue="full") for number in range(2)]
        with pytest.raises(QueueFull, match=r"2 items wait in queue 'full'.* max_queue=2"):
            never.apply_async((2,), queue="full")

        assert 2 == len(results)


def test_a_batch_may_be_larger_than_those_of_traced_items():
    """Nothing is nested for each request."""
    with Celery("large", set_as_current=False) as app:

        @app.task(base=Batches, flush_every=5000, flush_interval=60, lazy=False)
        def large(requests):
            return requests

        assert 5000 == large.max_batch_size


def test_a_function_may_be_wrapped():
    """The wrapper is what is called."""

    def with_factor(function):
        @wraps(function)
        def wrapper(requests):
            return function(requests, 2)

        return wrapper

    with Celery("wrapped", set_as_current=False) as app:
        app.conf.task_always_eager = True

        @app.task(base=Batches)
        @with_factor
        def times(requests, factor):
            return [factor * request.args[0] for request in requests]

        assert [6] == times.delay(3).get()
