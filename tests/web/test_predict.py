"""One request's calls: sent together, answered in order, with one deadline."""

from __future__ import annotations

import asyncio
import re
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta, tzinfo
from functools import partial
from typing import Any, Self

import psutil
import pytest
from amqp.exceptions import AccessRefused, NotAllowed
from celery import Celery
from kombu.exceptions import EncodeError, OperationalError

from celery_batch import BatchTask, BrokerUnreachable, QueueFull, TaskFailed
from celery_batch.errors import ConfigurationError, DeadlineExceeded, InvalidRow
from celery_batch.processes.redis_server import RedisServer, find_redis_server
from celery_batch.web import predict as predict_module
from celery_batch.web.errors import http_error
from celery_batch.web.predict import apredict, predict
from celery_batch.web.prepare import prepare
from tests.conftest import need
from tests.services.servers.ports import quiet_port
from tests.services.servers.rabbitmq import RabbitMQServer
from tests.services.setup import Setup
from tests.services.shared_setup import SharedSetup, eventually

#: Seconds that a request has where time is not the matter.
AMPLE = 30.0


def _in_loop(*args: Any, **options: Any) -> Any:
    """Call `apredict` in an event loop of its own."""
    return asyncio.run(apredict(*args, **options))


@pytest.fixture(params=[predict, _in_loop], ids=["predict", "apredict"])
def ask(request: pytest.FixtureRequest) -> Callable[..., Any]:
    """Both of the two, called in the same way."""
    return request.param


def waiting(setup: Setup) -> int:
    """Return how many calls wait in the queue of the tests' app."""
    with setup.app.connection_for_read() as connection:
        return connection.default_channel._size("celery")


@pytest.mark.parametrize("count", [1, 5, 200])
def test_outputs_come_in_order(each_shared: SharedSetup, ask: Callable[..., Any], count: int):
    """One output for each item, on both brokers."""
    outputs = ask(each_shared.double, range(count), timeout=AMPLE)

    assert [2 * n for n in range(count)] == outputs


def test_nothing_is_asked_for_no_items(setup: Setup, ask: Callable[..., Any]):
    """An empty request has an empty answer, without a worker."""
    assert [] == ask(setup.double, [], timeout=AMPLE)


def test_the_first_error_raises(redis_shared: SharedSetup, ask: Callable[..., Any]):
    """An item's error is raised as its task has failed with it, and is the client's own."""
    with pytest.raises(ValueError, match="a bad item") as caught:
        ask(redis_shared.odd, ["a", "bad", "c"], timeout=AMPLE)
    (note,) = caught.value.__notes__

    assert re.fullmatch(r"shop\.odd\[[-0-9a-f]{36}\], item 1; its .* the worker's log", note), note
    assert 422 == http_error(caught.value).status
    assert 500 == http_error(ValueError("a bug of the view")).status


@pytest.mark.parametrize("items", ["abc", b"abc", {"a": 1}, 5, None])
def test_items_are_a_list(setup: Setup, ask: Callable[..., Any], items: Any):
    """A body's field that is one value is refused as the client's fault; nothing is sent."""
    with pytest.raises(InvalidRow, match="items must be a list") as caught:
        ask(setup.double, items, timeout=AMPLE)

    assert 400 == http_error(caught.value).status
    assert 0 == waiting(setup)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"retrun_exceptions": True}, "'retrun_exceptions'; did you mean return_exceptions\\?$"),
        ({"prioritty": 3}, "'prioritty'; did you mean priority\\?$"),
    ],
)
def test_a_misspelt_option_is_refused(
    setup: Setup, ask: Callable[..., Any], options: dict[str, Any], words: str
):
    """It would have no effect, and nobody would notice."""
    with pytest.raises(TypeError, match=f"^predict\\(\\) takes no option {words}"):
        ask(setup.double, ["a"], timeout=AMPLE, **options)

    assert 0 == waiting(setup)


def test_a_task_that_ignores_its_results_is_refused(ask: Callable[..., Any]):
    """Flask's own configuration of Celery has that as the default of all tasks."""
    with Celery("ignoring", broker="memory://", set_as_current=False) as app:
        app.conf.task_ignore_result = True
        task = app.task(base=BatchTask, name="double")(_same)
        with pytest.raises(ConfigurationError, match=r"ignore_result=False.*task_ignore_result"):
            ask(task, ["a"], timeout=AMPLE)


def test_a_task_without_a_result_backend_is_refused(
    setup: Setup, ask: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
):
    """Its results could never be had, so nothing is sent."""
    broker = setup.app.conf.broker_url
    with (
        monkeypatch.context() as patch,
        Celery("silent", broker=broker, set_as_current=False) as app,
    ):
        patch.delenv("CELERY_RESULT_BACKEND")  # undone before the setup's own is
        task = app.task(base=BatchTask, name="shop.double")(_same)
        with pytest.raises(ConfigurationError, match="has no result backend"):
            ask(task, ["a"], timeout=AMPLE)

    assert 0 == waiting(setup)


def test_an_error_names_its_item(redis_shared: SharedSetup, ask: Callable[..., Any]):
    """Where there are several items, the error and its HTTP body have its index."""
    with pytest.raises(TaskFailed) as caught:
        ask(redis_shared.odd, ["a", "bad", "c"], timeout=AMPLE)

    assert 1 == caught.value.index
    assert 1 == http_error(caught.value).body["error"]["index"]


def test_errors_may_take_the_place_of_outputs(redis_shared: SharedSetup, ask: Callable[..., Any]):
    """With `return_exceptions` the other items' outputs are not lost."""
    items = ["a", "bad", "c"]
    first, error, last = ask(redis_shared.odd, items, timeout=AMPLE, return_exceptions=True)

    assert ("A", "C") == (first, last)
    assert isinstance(error, ValueError)


@pytest.mark.parametrize(
    ("ask", "count"), [(predict, 1), (_in_loop, 3)], ids=["predict", "apredict"]
)
def test_nothing_is_left_at_the_deadline(setup: Setup, ask: Callable[..., Any], count: int):
    """Without a worker it ends in time, and a worker that comes later runs none of it."""
    began = time.monotonic()
    with pytest.raises(DeadlineExceeded, match=f"{count} of {count} items") as caught:
        ask(setup.double, range(count), timeout=3.0)
    took = time.monotonic() - began
    setup.worker("-c", "1")
    after = predict(setup.double, [21], timeout=AMPLE)

    assert 3.0 <= took < 20.0
    assert count == len(caught.value.results)
    assert 504 == http_error(caught.value).status
    assert [42] == after
    assert [[21]] == [each["items"] for each in setup.recall("double")]


def test_what_is_late_is_revoked(redis_shared: SharedSetup, ask: Callable[..., Any]):
    """A worker hears at the deadline that what still waits is not wanted."""
    worker = redis_shared.worker
    worker.ask("batch_pause", task="shop.double")
    try:
        with pytest.raises(DeadlineExceeded) as caught:
            ask(redis_shared.double, [1, 2], timeout=2.0)
        ids = {each.id for each in caught.value.results}
        eventually(lambda: ids <= set(_revoked_ids(worker)), "a revoke")
    finally:
        worker.ask("batch_resume", task="shop.double")

    assert 2 == len(ids)


class _Behind(datetime):
    """The time of a clock that is 20 seconds behind."""

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> Self:
        """Return that time."""
        return super().now(tz) - timedelta(seconds=20)


def test_a_clock_that_is_behind_is_told(
    redis_shared: SharedSetup, ask: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
):
    """The calls have expired by the worker's clock: nobody looks for a worker that is too slow."""
    monkeypatch.setattr(predict_module, "datetime", _Behind)
    with pytest.raises(DeadlineExceeded, match="clocks of that host and of this one differ"):
        ask(redis_shared.double, [1, 2], timeout=10.0)


def test_what_is_left_finishes(setup: Setup, ask: Callable[..., Any]):
    """With `on_timeout="leave"` the calls run after the deadline, and can be asked for."""
    with pytest.raises(DeadlineExceeded) as caught:
        ask(setup.double, [1, 2], timeout=1.5, on_timeout="leave", expires=60)
    setup.worker("-c", "1")

    assert [2, 4] == [each.get(timeout=AMPLE) for each in caught.value.results]


def test_cancelled_calls_are_revoked(setup: Setup):
    """A request that is cancelled, as its client has gone, leaves nothing that would run."""
    worker = setup.worker("-c", "1")
    worker.ask("batch_pause", task="shop.double")

    async def ask_and_go() -> None:
        """Cancel when the worker has the calls."""
        asking = asyncio.ensure_future(apredict(setup.double, [1, 2, 3], timeout=AMPLE))
        await asyncio.to_thread(eventually, lambda: _waiting(worker, "shop.double") == 3, "calls")
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking

    asyncio.run(ask_and_go())
    eventually(lambda: len(_revoked_ids(worker)) == 3, "a revoke")
    worker.ask("batch_resume", task="shop.double")
    after = predict(setup.double, [21], timeout=AMPLE)

    assert [42] == after
    assert [[21]] == [each["items"] for each in setup.recall("double")]


def _waiting(worker: Any, task: str) -> int:
    """Return how many calls of a task wait in a worker."""
    return int(worker.status()[task].get("waiting", 0))


def _revoked_ids(worker: Any) -> list[str]:
    """Return the ids that a worker knows as revoked."""
    found: list[str] = worker.ask("revoked")
    return found


def test_all_items_have_room_or_none(setup: Setup, ask: Callable[..., Any]):
    """Under `max_queue` a request with more items than the queue may hold is refused whole."""
    setup.app.conf.batch_max_queue = 4
    with pytest.raises(QueueFull) as caught:
        ask(setup.double, range(5), timeout=AMPLE)
    error = http_error(caught.value)

    assert 0 == waiting(setup)
    assert 413 == error.status  # five never fit, however long the client waits
    assert {} == error.headers


@pytest.mark.parametrize("is_prepared", [True, False])
def test_a_broker_that_is_away_is_told_at_once(
    ask: Callable[..., Any], caplog: pytest.LogCaptureFixture, *, is_prepared: bool
):
    """
    A call does not wait for Celery's retries, and one a moment later is refused in milliseconds.

    Without `prepare`, and on Celery's own path, they keep their deadlines.
    The log has the addresses, once.
    """
    timeout = 10.0 if is_prepared else 2.0
    url = f"redis://127.0.0.1:{quiet_port()}/0"
    with Celery("adrift", broker=url, backend=url, set_as_current=False) as app:
        if is_prepared:
            prepare(app)
        else:
            app.conf.batch_disable_fast_paths = "all"
        task = app.task(base=BatchTask, name="shout")(_same)
        began = time.monotonic()
        with pytest.raises(BrokerUnreachable) as caught:
            ask(task, ["a"], timeout=timeout)
        middle = time.monotonic()
        seconds = []
        for _ in range(3 if is_prepared else 1):  # a busy machine may be slow once
            again = time.monotonic()
            with pytest.raises(BrokerUnreachable):
                ask(task, ["a", "b"], timeout=timeout)
            seconds.append(time.monotonic() - again)

    said = [each.getMessage() for each in caplog.records if each.name.endswith("web.predict")]
    assert 503 == http_error(caught.value).status
    assert len(said) == (is_prepared or ask is predict)
    assert [2] * len(said) == [each.count(url.removeprefix("redis://")) for each in said]
    assert middle - began < 5.0
    assert min(seconds) < (0.5 if is_prepared else 5.0)


def test_a_payload_store_that_is_away_is_no_lost_broker(setup: Setup, ask: Callable[..., Any]):
    """Calls without large arguments are sent meanwhile."""
    store = f"redis://127.0.0.1:{quiet_port()}/0"
    with Celery("unstored", broker=setup.url, backend=setup.url, set_as_current=False) as app:
        app.conf.update(batch_payload_store=store, task_default_queue="unstored")
        prepare(app)
        task = app.task(base=BatchTask, name="same")(_same)
        with pytest.raises(BrokerUnreachable, match="payload store cannot be reached"):
            ask(task, [b"x" * 1_000_000], timeout=10.0)
        with pytest.raises(DeadlineExceeded, match="had no answer"):  # as nobody serves it
            ask(task, [2], timeout=2.0, on_timeout="leave", expires=60)

        with setup.memory() as client:
            assert client.llen("unstored") == 1


@contextmanager
def suspended(request: pytest.FixtureRequest, name: str) -> Iterator[None]:
    """Have a broker hang, which must do so until the end."""
    keeper = psutil.Process(request.getfixturevalue(f"{name}_server").child.pid)
    servers = keeper.children()
    for each in servers:
        each.suspend()
    try:
        yield
        assert {psutil.STATUS_STOPPED} == {each.status() for each in servers}
    finally:
        for each in servers:
            each.resume()


def _connect_no_more(_app: Celery) -> None:
    """Leave the connections as they are."""


def _connect_anew(app: Celery) -> None:
    """Have the next call make a connection."""
    app.pool.resize(app.pool.limit, reset=True)


def _open_no_channel(app: Celery) -> None:
    """Have the next call open a channel on its connection."""
    _connect_anew(app)
    with app.pool.acquire() as connection:
        connection.connect()


def _declare_nothing(app: Celery) -> None:
    """Have the next call declare its queue on its connection."""
    _connect_anew(app)
    with app.pool.acquire() as connection:
        assert connection.default_channel


#: How many calls are sent, and what they have to do first.
_BEFORE = {
    "one": (1, _connect_no_more),
    "two": (2, _connect_no_more),
    "over a new connection": (1, _connect_anew),
    "over a new channel": (1, _open_no_channel),
    "to a new queue": (1, _declare_nothing),
}

#: Redis has neither channels nor queues to declare, and confirms are awaited alike in every case.
_ALIKE = {
    *(("redis", before) for before in ("over a new channel", "to a new queue")),
    *(
        ("rabbitmq confirms", before)
        for before in ("two", "over a new connection", "to a new queue")
    ),
    *(("no fast path", before) for before in _BEFORE if before != "one"),
}
_THOROUGH = pytest.mark.thorough("a broker that hangs, where that makes no difference")


@pytest.mark.parametrize(
    ("name", "count", "connect"),
    [
        pytest.param(
            name,
            *_BEFORE[each],
            id=f"{name}-{each}",
            marks=_THOROUGH if (name, each) in _ALIKE else (),
        )
        for name in ("redis", "rabbitmq", "rabbitmq confirms", "no fast path")
        for each in _BEFORE
    ],
)
def test_a_broker_that_hangs_is_told_in_time(
    request: pytest.FixtureRequest,
    ask: Callable[..., Any],
    name: str,
    count: int,
    connect: Callable[[Celery], None],
):
    """A broker that is stopped, not gone, costs a request no more than its time."""
    is_redis = name in ("redis", "no fast path")
    setup = request.getfixturevalue("setup" if is_redis else "rabbit_setup")
    # What the broker reads late, when it goes on, must not lie in the queue of the next test.
    setup.app.conf.task_default_queue = "hangs"
    if name == "no fast path":
        setup.app.conf.batch_disable_fast_paths = "all"
    if name == "rabbitmq confirms":
        setup.app.conf.broker_transport_options = {"confirm_publish": True}

    def is_sent(number: int) -> bool:
        """Whether the broker was fast enough: on a busy machine it may not be at first."""
        try:
            ask(setup.double, range(number), timeout=0.3)
        except DeadlineExceeded:
            return True
        except BrokerUnreachable:
            return False

    for number in (1, 2):  # so that the process is connected, and listens
        eventually(partial(is_sent, number), "calls that wait for a worker")
    connect(setup.app)
    with suspended(request, "redis" if is_redis else "rabbitmq"):
        began = time.monotonic()
        with pytest.raises((BrokerUnreachable, DeadlineExceeded)):
            ask(setup.double, range(count), timeout=1.0)
        took = time.monotonic() - began

    assert took < 4.0


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize(
    ("user", "error"), [("guest:wrong", AccessRefused), ("guest:guest", NotAllowed)]
)
def test_a_broker_that_refuses_the_login(
    ask: Callable[..., Any],
    rabbitmq_server: RabbitMQServer,
    broker: str,
    caplog: pytest.LogCaptureFixture,
    count: int,
    user: str,
    error: type[Exception],
):
    """A wrong user or virtual host is an error of the service; the log names the broker."""
    url = f"amqp://{user}@127.0.0.1:{rabbitmq_server.port}/elsewhere"
    with Celery("refused", broker=url, backend=broker) as app:
        prepare(app)

        @app.task(base=BatchTask)
        def double(numbers: list[int]) -> list[int]:
            return numbers

        with pytest.raises(BrokerUnreachable, match=r"The broker has not accepted the calls: "):
            ask(double, range(count), timeout=AMPLE)
        with pytest.raises(error) as plain:
            double.delay(1)

    assert 503 == http_error(plain.value).status
    assert "/elsewhere, result backend" in caplog.text


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"timeout": 0}, "timeout must be a number of seconds above 0, at most 1e.09, got 0"),
        ({"timeout": float("inf")}, "timeout must be"),
        ({"timeout": 1, "on_timeout": "forget"}, 'must be "revoke" or "leave"'),
        ({"timeout": 1, "on_timeout": "leave"}, "needs expires"),
        ({"timeout": 1, "expires": -1}, "expires must be"),
        ({"timeout": 1e12}, "at most 1e.09"),
        ({"timeout": 2, "on_timeout": "leave", "expires": 1}, "expires must be at least timeout"),
    ],
)
def test_bad_options_are_refused(setup: Setup, ask: Callable[..., Any], options: Any, words: str):
    """What makes no sense is said before anything is sent."""
    with pytest.raises(ConfigurationError, match=words):
        ask(setup.double, [1], **options)

    assert 0 == waiting(setup)


@pytest.mark.parametrize(
    ("task_options", "options", "words"),
    [
        ({"base": BatchTask, "ignore_result": True}, {}, "ignores its results"),
        ({}, {}, "is no batch task"),
        ({"base": BatchTask}, {"task_id": "same"}, "2 calls cannot have one task_id"),
    ],
)
def test_calls_that_cannot_be_waited_for_are_refused(
    ask: Callable[..., Any], task_options: Any, options: Any, words: str
):
    """Nothing is sent whose results would never be known, or be another's."""
    with Celery("refused", broker="memory://", set_as_current=False) as app:
        task = app.task(name="shout", **task_options)(_same)
        with pytest.raises(ConfigurationError, match=words):
            ask(task, ["a", "b"], timeout=1.0, **options)


def test_a_coroutine_that_calls_predict_is_warned(
    redis_shared: SharedSetup, monkeypatch: pytest.MonkeyPatch
):
    """It blocks its event loop; the warning names `apredict`."""
    monkeypatch.setattr("celery_batch.client.results.waiting._has_warned", False)

    async def view() -> list[int]:
        """Block the loop."""
        with pytest.warns(RuntimeWarning, match=r"use `await apredict\(...\)`"):
            return predict(redis_shared.double, [21], timeout=AMPLE)

    assert [42] == asyncio.run(view())


def test_an_item_that_cannot_be_sent_is_no_lost_broker(
    redis_shared: SharedSetup, ask: Callable[..., Any]
):
    """It fails its own request, and is named, and the next one is served."""
    with pytest.raises(
        EncodeError, match=r"double: .* has an object at \[1\], which the serializer"
    ):
        ask(redis_shared.double, [1, object()], timeout=AMPLE)
    with pytest.raises(
        EncodeError, match=r"has a set at \[0\]\['a'\], .* send a list of its values"
    ):
        ask(redis_shared.double, [{"a": {1, 2}}], timeout=AMPLE)

    assert [42] == ask(redis_shared.double, [21], timeout=AMPLE)


def test_a_short_request_closes_the_door_to_nobody(
    redis_shared: SharedSetup, ask: Callable[..., Any]
):
    """A first request that has no time to connect does not make the next one fail."""
    with pytest.raises(DeadlineExceeded):
        ask(redis_shared.double, [1], timeout=1e-4)

    assert [42] == ask(redis_shared.double, [21], timeout=AMPLE)


@pytest.mark.parametrize("scheme", ["redis", "amqp"])
@pytest.mark.parametrize("is_prepared", [True, False])
def test_a_broker_that_is_slower_than_a_short_request_is_not_away(
    redis_shared: SharedSetup,
    ask: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    scheme: str,
    *,
    is_prepared: bool,
):
    """The connection that it does not make in time says nothing to the next request."""
    with (
        monkeypatch.context() as patch,
        socket.create_server(("127.0.0.1", 0)) as silent,
        Celery(set_as_current=False) as app,
    ):
        patch.delenv("CELERY_BROKER_URL")  # undone before the place's own is
        url = f"{scheme}://127.0.0.1:{silent.getsockname()[1]}/0"
        app.conf.update(broker_url=url, result_backend=redis_shared.app.conf.result_backend)
        if is_prepared:
            prepare(app)

        @app.task(base=BatchTask, name="unanswered")
        def task(item):
            return item

        seconds = []
        for _ in range(3):
            began = time.monotonic()
            with pytest.raises(DeadlineExceeded):
                ask(task, [1], timeout=0.5)
            seconds.append(time.monotonic() - began)

    # Of the first and a later one: kombu sleeps for 1 s or 2, and a busy machine is slow at times.
    assert sorted(seconds)[1] < 1.2


@pytest.mark.parametrize("namespace", ["", "CELERY"])
def test_prepare_keeps_what_the_app_has(namespace: str):
    """Settings of the app's own stay, as they are spelled in Django, too."""
    own = {"broker_transport_options": {"global_keyprefix": "shop:"}, "redis_socket_timeout": 7.0}
    prefix = f"{namespace}_" if namespace else ""
    given = {f"{prefix}{name}".upper() if prefix else name: own[name] for name in own}
    with Celery("named", set_as_current=False) as app:
        app.config_from_object(given, namespace=namespace or None)
        prepare(app)
        conf = app.conf

        assert "shop:" == conf.broker_transport_options["global_keyprefix"]
        assert 1.0 == conf.broker_transport_options["socket_connect_timeout"]
        assert 7.0 == conf.redis_socket_timeout
        assert 1.0 == conf.redis_socket_connect_timeout


def test_a_prepared_app_gives_up_on_a_revoke():
    """A control command is not tried until the broker is back, once the app was connected."""
    need(find_redis_server)
    with Celery("revoking", set_as_current=False) as app, RedisServer() as server:
        app.conf.update(broker_url=server.url, result_backend=server.url)
        prepare(app)
        app.control.revoke("one")
        server.stop()
        with pytest.raises(OperationalError):
            app.control.revoke("another")


def test_a_refused_item_says_when_to_come_back(ask: Callable[..., Any]):
    """Whatever an item before it has failed with: the client is told to try again."""

    def pick(items: list[int]) -> list[Any]:
        """Refuse 2 and fail with 1."""
        errors = {1: ValueError("bad"), 2: QueueFull("late", retry_after=2.5)}
        return [errors.get(each, each) for each in items]

    with Celery("refusing", broker="memory://", set_as_current=False) as app:
        app.conf.task_always_eager = True
        task = app.task(base=BatchTask, name="pick")(pick)
        with pytest.raises(QueueFull) as caught:
            ask(task, [0, 1, 2, 3], timeout=AMPLE)
        answers = ask(task, [0, 1, 2, 3], timeout=AMPLE, return_exceptions=True)
    error = http_error(caught.value)

    assert (429, 2, {"Retry-After": "3"}) == (error.status, error.item_index, error.headers)
    assert [int, ValueError, QueueFull, int] == [
        next(kind for kind in (int, ValueError, QueueFull) if isinstance(each, kind))
        for each in answers
    ]


def test_eager_tasks_are_answered_here(ask: Callable[..., Any]):
    """A view can be tested without servers."""
    with Celery("eager", broker="memory://", set_as_current=False) as app:
        app.conf.task_always_eager = True
        task = app.task(base=BatchTask, name="shout")(_same)

        assert ["a", "b"] == ask(task, ["a", "b"], timeout=1.0)


def test_eager_errors_are_items_errors(ask: Callable[..., Any]):
    """They are raised, or stand in their places, as those of workers do."""
    with Celery("eager", broker="memory://", set_as_current=False) as app:
        app.conf.update(task_always_eager=True, task_eager_propagates=True)
        task = app.task(base=BatchTask, name="fail")(_fail)
        with pytest.raises(FileNotFoundError):
            ask(task, ["a", "b"], timeout=1.0)
        outputs = ask(task, ["a", "b"], timeout=1.0, return_exceptions=True)

    assert all(isinstance(each, FileNotFoundError) for each in outputs)


def _same(text: list[Any]) -> list[Any]:
    return text


def _fail(text: list[Any]) -> list[Any]:
    raise FileNotFoundError(str(text))
