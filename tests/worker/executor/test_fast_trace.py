"""Items on the fast path past the tracer: both paths have the same observable outcome."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial, wraps
from typing import Any

import pytest
import redis
from celery import Celery, signals
from celery.app.trace import build_tracer
from celery.exceptions import Ignore, Reject
from celery.loaders.app import AppLoader

from celery_batch import BatchTask
from celery_batch.processes.redis_server import RedisServer
from celery_batch.protocol import REPLY_CHANNEL, REPLY_HEADER
from celery_batch.worker.dispatch.payload import BatchPayload, Delivery
from celery_batch.worker.executor import fast_trace
from celery_batch.worker.executor.executor import run_batch
from celery_batch.worker.executor.fast_trace import FastTrace, can_trace_fast
from tests.services.setup import emptied

HERE = f"{REPLY_CHANNEL}here"

NOTHING = {"callbacks": None, "errbacks": None, "chain": None, "chord": None}

#: Fields of a message that make a difference to what is stored, published or logged.
FIELDS: dict[str, dict[str, Any]] = {
    "as sent": {},
    "in a group": {"group": "g", "group_index": 1},
    "of a parent": {"parent_id": "p", "root_id": "r"},
    "with a shadow": {"shadow": "another.name"},
    "tried before": {"retries": 2},
    "with its arguments written out": {"argsrepr": "(...)", "kwargsrepr": "{...}"},
    "without its arguments": {"argsrepr": None, "kwargsrepr": None},
    "not to be stored": {"ignore_result": True},
    "to be stored": {"ignore_result": False},
    "with stamps": {"stamps": {"customer": ["x"]}, "stamped_headers": ["customer"]},
    "delivered again": {"delivery_info": {"routing_key": "celery", "redelivered": True}},
    "without a place": {"delivery_info": None},
}

VALUES: dict[str, Any] = {
    "number": 7,
    "text": "Grüße 'quoted' \\ \n",
    "long": "word " * 1000,
    "nothing": None,
    "nested": {"a": [1, {"b": [None, True, 2.5]}]},
    "date": datetime(2026, 1, 1, tzinfo=UTC),
    "bytes": b"\xff\x00",
    "floats": [0.1] * 500,
    "error": ValueError("bad"),
    "not encodable": object(),
    "ignored": Ignore(),
    "rejected": Reject("no"),
}


@pytest.fixture
def client(redis_server: RedisServer) -> Iterator[redis.Redis]:
    """A connection to the Redis of this test, which begins empty."""
    emptied(redis_server)
    with redis.Redis(unix_socket_path=str(redis_server.directory / "redis.sock")) as client:
        yield client


@pytest.fixture
def make_app(broker: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Celery]]:
    """Make an app with these settings, which is the current one, and whose time stands still."""
    for signal in fast_trace._RECEIVERS:
        monkeypatch.setattr(signal, "receivers", [])  # other tests' apps have some
    apps: list[Celery] = []

    def make(**conf: Any) -> Celery:
        app = Celery("plain", broker="memory://", backend=broker, set_as_current=True)
        app.conf.update({"accept_content": ["json", "pickle", "yaml"], **conf})
        app.now = lambda: datetime(2026, 1, 2, 3, 4, 5, 678, tzinfo=UTC)
        apps.append(app)
        return app

    yield make
    for app in apps:
        app.close()


def ready(task: Any) -> Any:
    """Give a task the tracer that a pool process makes for it when it starts."""
    task = task._get_current_object() if hasattr(task, "_get_current_object") else task
    level = fast_trace.trace.logger.level
    fast_trace.trace.logger.setLevel(logging.INFO)  # a tracer asks but once whether it is to log
    task.__trace__ = build_tracer(task.name, task, task.app.loader, "w@here", app=task.app)
    fast_trace.trace.logger.setLevel(level)
    return task


def deliver(task: Any, *calls: tuple[str, dict[str, Any], Any]) -> BatchPayload:
    """Return the payload of calls, given as id, fields of the message and body."""
    sent = []
    for task_id, fields, body in calls:
        info = {"routing_key": "celery", "redelivered": False}
        about = {"hostname": "w@here", "delivery_info": info, "argsrepr": "(1,)"}
        request = {"id": task_id, "task": task.name, **about, **fields}
        sent.append(Delivery(task_id, request, json.dumps(body), "application/json", "utf-8"))
    return BatchPayload(sent)


@contextmanager
def every_item_traced(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Have no item take the fast path."""
    with monkeypatch.context() as patch:
        patch.setattr("celery_batch.worker.executor.executor.can_trace_fast", lambda _: False)
        yield


@contextmanager
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Collect the ids of the items that the fast path has stored."""
    fast: list[str] = []
    store = FastTrace.store

    def noting(trace: FastTrace, item: Any, *args: Any) -> Any:
        settled = store(trace, item, *args)
        if settled is not None:
            fast.append(item.request["id"])
        return settled

    with monkeypatch.context() as patch:
        patch.setattr(FastTrace, "store", noting)
        yield fast


@pytest.fixture
def outcome(client: redis.Redis, caplog: pytest.LogCaptureFixture) -> Callable[..., Any]:
    """Run a batch; return all that can be seen of it but the seconds it took."""
    return partial(_outcome, client, caplog)


def _outcome(
    client: redis.Redis, caplog: pytest.LogCaptureFixture, task: Any, payload: BatchPayload
) -> dict[str, Any]:
    client.flushall()
    caplog.clear()
    with client.pubsub() as subscription, caplog.at_level(logging.INFO):
        subscription.psubscribe("*")
        subscription.get_message(timeout=60)
        settled = run_batch(task.name, payload).results
        published = []
        subscription.ping()  # whose answer follows what was published before
        while (message := subscription.get_message(timeout=60))["type"] != "pong":
            published.append((message["channel"], message["data"]))
    return {
        "settled": [each and (each[0], str(each[1])) for each in settled],
        "timed": [each is not None and each[2] is not None for each in settled],
        "stored": {
            key: (client.get(key), round(client.ttl(key), -2)) for key in client.scan_iter()
        },
        "published": sorted(pair for pair in published if pair[0] != HERE.encode()),
        "replies": sorted(pair[1] for pair in published if pair[0] == HERE.encode()),
        "logged": sorted(
            (record.levelname, record.name, record.msg, without_runtime(record.data))
            for record in caplog.records
            if record.name == "celery.app.trace"
        ),
    }


def without_runtime(data: dict[str, Any]) -> str:
    """Return a log record's fields without those that differ from run to run."""
    return str({key: data[key] for key in sorted(data) if key not in ("runtime", "traceback")})


@pytest.mark.parametrize("extended", [True, False], ids=["extended", "brief"])
@pytest.mark.parametrize("fields", FIELDS.values(), ids=FIELDS)
def test_message_leaves_the_same_traces(
    make_app: Callable[..., Celery],
    outcome: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    fields: dict[str, Any],
    extended: bool,  # noqa: FBT001
):
    """For all fields of messages the fast path stores, publishes, logs and reports the same."""
    app = make_app(result_extended=extended)

    @app.task(base=BatchTask, name="plain.add")
    def add(x, y=1):
        return [a + b for a, b in zip(x, y, strict=True)]

    task = ready(add)
    bodies = [[[1], {}, NOTHING], [[1], {"y": 5}, NOTHING], [[1, 2], {}, NOTHING]]
    calls = [(f"id{n}", {**fields, REPLY_HEADER: HERE}, body) for n, body in enumerate(bodies)]
    with every_item_traced(monkeypatch):
        expected = outcome(task, deliver(task, *calls))
    with counted(monkeypatch) as short:
        actual = outcome(task, deliver(task, *calls))

    assert expected == {**actual, "replies": expected["replies"]}
    assert sorted(b"".join(expected["replies"])) == sorted(b"".join(actual["replies"]))
    assert ([] if "stamps" in fields else ["id0", "id1"]) == short


@pytest.mark.parametrize("serializer", ["json", "yaml", "pickle"])
@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES)
def test_value_leaves_the_same_traces(
    make_app: Callable[..., Celery],
    outcome: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    value: Any,
    serializer: str,
):
    """The same for all outputs of the model: values, errors, and what cannot be stored."""
    app = make_app(result_serializer=serializer)

    @app.task(base=BatchTask, name="plain.value")
    def say(x):
        return [value] * len(x)

    task = ready(say)
    calls = [(f"id{n}", {}, [[n], {}, NOTHING]) for n in range(2)]
    with every_item_traced(monkeypatch):
        expected = outcome(task, deliver(task, *calls))
    actual = outcome(task, deliver(task, *calls))
    traces = [each.pop("stored") for each in (expected, actual)]
    failed = any(failed for failed, _ in expected["settled"])

    assert expected["logged"] == actual["logged"]
    assert [each[0] for each in expected["settled"]] == [each[0] for each in actual["settled"]]
    assert failed or expected["settled"] == actual["settled"]
    assert failed or traces[0] == traces[1]
    assert traces[0].keys() == traces[1].keys()


def test_result_of_another_task_is_stored_as_its_reference(
    make_app: Callable[..., Celery],
    outcome: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
):
    """An item may be answered with the result of another task; its id is stored, as ever."""
    app = make_app()

    @app.task(base=BatchTask, name="plain.refer")
    def refer(x):
        return [app.AsyncResult("other") for _ in x]

    task = ready(refer)
    calls = [(f"id{n}", {}, [[n], {}, NOTHING]) for n in range(2)]
    with every_item_traced(monkeypatch):
        expected = outcome(task, deliver(task, *calls))
    actual = outcome(task, deliver(task, *calls))

    assert expected["stored"] == actual["stored"]


def test_batch_of_all_kinds_is_answered_in_order(
    make_app: Callable[..., Celery], monkeypatch: pytest.MonkeyPatch
):
    """Fast items, malformed ones, and wrong arguments share a batch, each in its place."""
    app = make_app()
    seen: list[Any] = []

    @app.task(base=BatchTask, name="plain.mixed", typing=False)
    def mixed(x):
        seen.extend(x)
        return [ValueError("bad") if each == "bad" else each for each in x]

    task = ready(mixed)
    items = ["a", "bad", None, "b", "c", None]
    bodies = [[[item] if item else ["too", "many"], {}, NOTHING] for item in items]
    with counted(monkeypatch) as short:
        end = run_batch(
            task.name, deliver(task, *((f"id{n}", {}, body) for n, body in enumerate(bodies)))
        )

    assert ["a", "bad", "b", "c"] == seen
    assert [0, 1, 1, 0, 0, 1] == [failed for failed, _, _ in end.results]
    assert ["'a'", "'b'", "'c'"] == [shown for failed, shown, _ in end.results if not failed]
    assert ["id0", "id3"] == short
    assert ["a", "b", "c"] == [app.AsyncResult(f"id{n}").get(timeout=60) for n in (0, 3, 4)]


def test_model_runs_in_the_name_of_the_last_item(make_app: Callable[..., Celery]):
    """Inside the function ``self.request`` is that of the last item, on either path."""
    app = make_app()

    @app.task(base=BatchTask, name="plain.current", bind=True, typing=False)
    def current(self, x):
        return [self.request.id for _ in x]

    task = ready(current)
    good, wrong = [[1], {}, NOTHING], [[1, 2], {}, NOTHING]
    names = []
    for bodies in ([good] * 3, [good, good, wrong], [good]):
        calls = [(f"id{n}", {}, body) for n, body in enumerate(bodies)]
        names.append(run_batch(task.name, deliver(task, *calls)).results[0][1])

    assert ["'id2'", "'id1'", "'id0'"] == names


@pytest.mark.parametrize("name", ["callbacks", "chain", "chord"])
def test_what_follows_a_success_is_the_tracer_s(
    make_app: Callable[..., Celery], monkeypatch: pytest.MonkeyPatch, name: str
):
    """An item with callbacks, in a chain or in a chord goes through the tracer."""
    app = make_app()

    @app.task(base=BatchTask, name="plain.linked")
    def linked(x):
        return x

    task = ready(linked)
    signature = app.signature("plain.linked", (1,), task_id="next")
    body = [[1], {}, {**NOTHING, name: signature if name == "chord" else [signature]}]
    calls = [("first", {}, body), ("second", {}, [[1], {}, NOTHING]), ("last", {}, body)]
    with counted(monkeypatch) as short:
        run_batch(task.name, deliver(task, *calls))

    assert ["second"] == short


def test_who_may_have_succeeded_before_is_looked_up_by_the_tracer(
    make_app: Callable[..., Celery], monkeypatch: pytest.MonkeyPatch
):
    """With ``worker_deduplicate_successful_tasks`` a message that came again is not run again."""
    app = make_app(worker_deduplicate_successful_tasks=True)
    ran: list[Any] = []

    @app.task(base=BatchTask, name="plain.once")
    def once(x):
        ran.extend(x)
        return x

    task = ready(once)
    again = {"delivery_info": {"routing_key": "celery", "redelivered": True}}
    calls = [("one", {}, [["one"], {}, NOTHING]), ("two", {}, [["two"], {}, NOTHING])]
    run_batch(task.name, deliver(task, *calls))
    again_calls = [(name, again, body) for name, _, body in calls]
    with counted(monkeypatch) as short:
        run_batch(task.name, deliver(task, *again_calls, ("x", {}, [["x"], {}, NOTHING])))

    assert ["one", "two", "x"] == ran
    assert [] == short


class Hooked(BatchTask):
    """A task class with one hook, set by a test."""

    abstract = True


def hook(*_: Any, **__: Any) -> None:
    """Do nothing."""


@pytest.mark.parametrize("name", ["before_start", "on_success", "after_return", "__call__"])
def test_hooks_are_the_tracer_s(make_app: Callable[..., Celery], name: str):
    """A task with a hook for each success goes through the tracer."""
    app = make_app()
    base = type("Base", (Hooked,), {name: hook, "abstract": True})

    @app.task(base=base, name="plain.hooked")
    def hooked(x):
        return x

    assert not can_trace_fast(ready(hooked))


@pytest.mark.parametrize("name", ["task_prerun", "task_postrun", "task_success"])
def test_receivers_are_served_by_the_tracer(make_app: Callable[..., Celery], name: str):
    """While a signal of each item has a receiver, each item goes through the tracer."""
    app = make_app()

    @app.task(base=BatchTask, name="plain.watched")
    def watched(x):
        return x

    task = ready(watched)
    signal = getattr(signals, name)
    signal.connect(hook)
    try:
        listened = can_trace_fast(task)
    finally:
        signal.disconnect(hook)

    assert (False, True) == (listened, can_trace_fast(task))


def wrapped(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function as instrumentation does, with its name and attributes."""

    @wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return wrapper


class Loader(AppLoader):
    """A loader with a hook for each task."""

    def on_task_init(self, task_id, task):
        """Do nothing."""


def test_wrapped_parts_need_the_tracer(make_app: Callable[..., Celery]):
    """With another loader, tracer or ``run`` each item goes through the tracer."""
    app = make_app()

    @app.task(base=BatchTask, name="plain.fine")
    def fine(x):
        return x

    @app.task(base=BatchTask, name="plain.started", track_started=True)
    def started(x):
        return x

    @app.task(base=BatchTask, name="plain.tried", autoretry_for=(ValueError,))
    def tried(x):
        return x

    seen = {"as it is": can_trace_fast(ready(fine)), "autoretry": can_trace_fast(ready(tried))}
    seen["track_started"] = can_trace_fast(ready(started))
    task = ready(fine)
    trace, run = task.__trace__, task.run
    task.__trace__ = wrapped(trace)
    seen["tracer"] = can_trace_fast(task)
    task.__trace__, task.run = trace, wrapped(run)
    seen["run"] = can_trace_fast(task)
    del task.run
    app.loader = Loader(app)
    seen["loader"] = can_trace_fast(task)

    assert {name for name, is_so in seen.items() if is_so} == {"as it is", "autoretry"}


def test_log_asks_which_task_it_is_about(
    make_app: Callable[..., Celery], caplog: pytest.LogCaptureFixture
):
    """A filter of the log finds each item's own request, as while the tracer logs."""
    from celery import current_task  # noqa: PLC0415

    app = make_app()
    asked: list[str] = []

    @app.task(base=BatchTask, name="plain.logged")
    def logged(x):
        return x

    def ask(_: logging.LogRecord) -> bool:
        asked.append(current_task.request.id)
        return True

    task = ready(logged)
    calls = [(f"id{n}", {}, [[n], {}, NOTHING]) for n in range(3)]
    fast_trace.trace.logger.addFilter(ask)
    try:
        with caplog.at_level(logging.INFO):
            run_batch(task.name, deliver(task, *calls))
    finally:
        fast_trace.trace.logger.removeFilter(ask)

    assert ["id0", "id1", "id2"] == sorted(asked)
