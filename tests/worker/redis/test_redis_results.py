"""Results in a Redis backend: stored as by Celery, many at once, with notifications."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from math import inf
from typing import Any

import pytest
import redis
from celery import Celery, states
from celery.app.task import Context
from celery.backends.redis import RedisBackend
from celery.exceptions import BackendStoreError
from redis.exceptions import OutOfMemoryError

from celery_batch import BatchTask
from celery_batch.processes.redis_server import RedisServer
from celery_batch.protocol import (
    REPLY_CHANNEL,
    REPLY_HEADER,
    read_replies,
)
from celery_batch.worker.redis.result_backend import (
    BulkResultWriter,
    named_channel,
    notify_clients,
    storing_results,
)
from celery_batch.worker.redis.result_store import RedisStore
from tests.services.setup import emptied

#: Celery's own backend uses what redis-py has deprecated.
pytestmark = pytest.mark.filterwarnings("ignore:Call to deprecated setex:DeprecationWarning")

HERE, THERE = f"{REPLY_CHANNEL}here", f"{REPLY_CHANNEL}there"

SERIALIZERS = ["json", "yaml", "msgpack", "pickle"]

STATES = {
    states.SUCCESS: {"text": "Grüße", "deep": [[1, 2.5, None]]},
    states.FAILURE: ValueError("bad"),
    states.RETRY: KeyError("again"),
    states.REVOKED: RuntimeError("revoked"),
    states.STARTED: {"pid": 1, "hostname": "here"},
    "HALF WAY": {"done": 50},
}


def same(x):
    """Return the argument."""
    return x


@pytest.fixture
def client(redis_server: RedisServer) -> Iterator[redis.Redis]:
    """A connection to the Redis of this test, which is empty."""
    emptied(redis_server)
    with redis.Redis(unix_socket_path=str(redis_server.directory / "redis.sock")) as client:
        yield client


@pytest.fixture
def make_app(broker: str, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Celery]:
    """Return a function that makes an app with one batch task, at a fixed time."""
    monkeypatch.setattr(RedisStore, "without_scripts_until", 0.0)
    monkeypatch.setattr(RedisStore, "_has_warned", False)

    def make(**conf: Any) -> Celery:
        app = Celery("results", broker="memory://", backend=broker, set_as_current=False)
        app.conf.update({"result_expires": 600, "accept_content": SERIALIZERS, **conf})
        app.now = lambda: datetime(2026, 1, 2, 3, 4, 5, 678, tzinfo=UTC)
        app.task(base=BatchTask, name="results.same")(same)
        return app

    return make


def store(app: Celery, *stored: tuple[str, str, Any], **options: Any) -> None:
    """Store states of tasks, given as id, state and result, as the end of one batch does."""
    task = app.tasks["results.same"]
    with storing_results(task):
        for task_id, state, result in stored:
            task.backend.store_result(task_id, result, state, request=context(task_id, **options))


def context(task_id: str, **fields: Any) -> Context:
    """Return Celery's context of a running task."""
    about = {"task": "results.same", "args": [1], "kwargs": {"y": 2}, "hostname": "w@here"}
    info = {"delivery_info": {"routing_key": "celery"}, "parent_id": "parent", "group": "group"}
    return Context(id=task_id, **about, **info, **fields)


def contents(client: redis.Redis) -> dict[bytes, tuple[bytes, int]]:
    """Return all keys with their values and their seconds to live."""
    return {key: (client.get(key), client.ttl(key)) for key in client.scan_iter()}


def listen(client: redis.Redis, *channels: str) -> Any:
    """Return a subscription to some channels, once Redis knows of it."""
    subscription = client.pubsub()
    subscription.subscribe(*channels)
    for _ in channels:
        assert subscription.get_message(timeout=60)["type"] == "subscribe"
    return subscription


def received(subscription: Any) -> list[tuple[str, bytes]]:
    """Return what has been published on the channels, in order."""
    messages = []
    subscription.ping()  # whose answer follows what was published before
    while (message := subscription.get_message(timeout=60))["type"] != "pong":
        messages.append((message["channel"].decode(), message["data"]))
    return messages


@pytest.mark.parametrize("extended", [True, False], ids=["extended", "brief"])
@pytest.mark.parametrize("serializer", SERIALIZERS)
@pytest.mark.parametrize("state", STATES)
def test_results_are_stored_as_by_celery(
    make_app: Callable[..., Celery],
    client: redis.Redis,
    state: str,
    serializer: str,
    extended: bool,  # noqa: FBT001
):
    """Value, expiry and notification are those of Celery's own backend, to the byte."""
    app = make_app(
        result_serializer=serializer, result_extended=extended, result_failure_expires=60
    )
    subscription = listen(client, "celery-task-meta-one")
    backend = app._get_backend()
    backend.store_result("one", STATES[state], state, request=context("one"))
    expected = client.get("celery-task-meta-one"), client.ttl("celery-task-meta-one")
    told = received(subscription)
    client.flushall()
    store(app, ("one", state, STATES[state]))
    actual = client.get("celery-task-meta-one"), client.ttl("celery-task-meta-one")

    assert expected == actual
    assert expected[0]
    assert told == received(subscription)
    subscription.close()


@pytest.mark.parametrize(
    "conf",
    [
        {"result_compression": "gzip"},
        {"result_expires": None},
        {"result_expires": 0},
        {"result_failure_expires": 0},
        {"result_backend_transport_options": {"global_keyprefix": "shop"}},
    ],
    ids=["compressed", "no expiry", "zero expiry", "failures for ever", "key prefix"],
)
@pytest.mark.parametrize("state", [states.SUCCESS, states.FAILURE])
def test_settings_of_the_backend_are_kept(
    make_app: Callable[..., Celery], client: redis.Redis, state: str, conf: dict[str, Any]
):
    """Compression, expiry and key prefix are those of Celery's own backend."""
    app = make_app(**conf)
    app._get_backend().store_result("one", STATES[state], state, request=context("one"))
    expected = contents(client)
    client.flushall()
    store(app, ("one", state, STATES[state]))
    actual = contents(client)

    assert 1 == len(expected)
    assert expected == actual


def standing(status: str, how: str) -> bytes:
    """Return a stored state in one of several forms."""
    meta = {"status": status, "result": [[]], "task_id": "one"}
    match how:
        case "celery's json":
            return json.dumps(meta).encode()
        case "other json":
            return json.dumps(dict(reversed(meta.items())), indent=1).encode()
        case "deep json":
            deep = "[" * 900 + "]" * 900  # Redis' own decoder has had enough of it
            return f'{{"result": {deep}, "task_id": "one", "status": "{status}"}}'.encode()
    raise ValueError(how)


FORMS = ["celery's json", "other json", "deep json"]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("before", "after"),
    [
        (states.SUCCESS, states.SUCCESS),
        (states.REVOKED, states.REVOKED),
        (states.FAILURE, states.SUCCESS),
        (states.STARTED, states.SUCCESS),
    ],
)
def test_final_results_are_not_overwritten(
    make_app: Callable[..., Celery], client: redis.Redis, before: str, after: str, form: str
):
    """A success or a revocation in any JSON is not overwritten; other states are."""
    client.set("celery-task-meta-one", standing(before, form))
    store(make_app(), ("one", states.SUCCESS, "new"))
    stored = json.loads(client.get("celery-task-meta-one"))

    assert after == stored["status"]
    assert (stored["result"] == "new") == (before != after)


@pytest.mark.parametrize("serializer", ["yaml", "msgpack", "pickle", "json"])
@pytest.mark.parametrize("before", [states.SUCCESS, states.FAILURE])
def test_results_that_redis_cannot_read_are_read_in_python(
    make_app: Callable[..., Celery], client: redis.Redis, before: str, serializer: str
):
    """In other formats or compressed, a success is kept and a failure overwritten."""
    compression = "zlib" if serializer == "json" else None
    app = make_app(result_serializer=serializer, result_compression=compression)
    store(app, ("one", before, STATES[before]), ("other", states.FAILURE, ValueError("x")))
    store(app, ("one", states.SUCCESS, "new"), ("other", states.SUCCESS, "new"))
    backend = app._get_backend()
    expected = STATES[states.SUCCESS] if before == states.SUCCESS else "new"

    assert expected == backend.get_task_meta("one")["result"]
    assert "new" == backend.get_task_meta("other")["result"]
    assert client.exists("celery-task-meta-one")


def test_a_batch_takes_one_round_trip(make_app: Callable[..., Celery], client: redis.Redis):
    """Sixty-four results are stored by one script, and a thousand by two."""
    app = make_app()
    store(app, ("first", states.SUCCESS, 0))  # the script is there from now on
    client.config_resetstat()
    store(app, *((f"few{n}", states.SUCCESS, n) for n in range(64)))
    few = client.info("commandstats")["cmdstat_evalsha"]["calls"]
    store(app, *((f"many{n}", states.SUCCESS, n) for n in range(1000)))
    many = client.info("commandstats")["cmdstat_evalsha"]["calls"] - few

    assert (1, 2) == (few, many)
    assert 1065 == client.dbsize()
    assert "cmdstat_mget" not in client.info("commandstats")


def test_large_results_take_several_scripts(make_app: Callable[..., Celery], client: redis.Redis):
    """No script has more than about a megabyte, unless one result is larger."""
    app = make_app()
    store(app, ("first", states.SUCCESS, 0))
    client.config_resetstat()
    store(app, *((f"large{n}", states.SUCCESS, "x" * 400_000) for n in range(8)))

    assert 4 == client.info("commandstats")["cmdstat_evalsha"]["calls"]
    assert {400_000} == {len(app.AsyncResult(f"large{n}").result) for n in range(8)}


def test_each_client_gets_one_notification_of_all_its_results(
    make_app: Callable[..., Celery], client: redis.Redis
):
    """One message for each reply channel has ids and stored values in order."""
    app = make_app()
    subscription = listen(client, HERE, THERE)
    task = app.tasks["results.same"]
    channels = {"a": HERE, "b": THERE, "c": HERE, "d": None, "e": HERE}
    with storing_results(task):
        for task_id, channel in channels.items():
            request = context(task_id, **({REPLY_HEADER: channel} if channel else {}))
            state, value = (states.RETRY, KeyError()) if task_id == "e" else (states.SUCCESS, "Ü")
            task.backend.store_result(task_id, value, state, request=request)
    messages = {channel: read_replies(payload) for channel, payload in received(subscription)}
    stored = {name: client.get(f"celery-task-meta-{name}") for name in channels}
    subscription.close()

    assert {
        HERE: [("a", stored["a"]), ("c", stored["c"])],
        THERE: [("b", stored["b"])],
    } == messages


@pytest.mark.parametrize("serializer", ["json", "pickle"])
def test_clients_are_notified_of_the_stored_result(
    make_app: Callable[..., Celery], client: redis.Redis, serializer: str
):
    """If the task has succeeded before, the notification has that success."""
    app = make_app(result_serializer=serializer)
    store(app, ("one", states.SUCCESS, "first"))
    first = client.get("celery-task-meta-one")
    subscription = listen(client, HERE)
    store(app, ("one", states.FAILURE, ValueError("late")), **{REPLY_HEADER: HERE})
    ((_, payload),) = received(subscription)
    subscription.close()

    assert [("one", first)] == read_replies(payload)


@pytest.mark.parametrize(
    "name",
    [
        7, None, ["x"], "", "elsewhere", REPLY_CHANNEL + "x" * 256,
        REPLY_CHANNEL + "\ud800", REPLY_CHANNEL + "\n",
    ],
)  # fmt: skip
def test_invalid_channels_are_ignored(
    make_app: Callable[..., Celery], client: redis.Redis, name: Any
):
    """The header comes from the network: a value that is no reply channel is ignored."""
    store(make_app(), ("one", states.SUCCESS, 1), **{REPLY_HEADER: name})

    assert client.get("celery-task-meta-one")
    assert "" == named_channel(name)


def test_storing_is_idempotent(make_app: Callable[..., Celery], client: redis.Redis):
    """A script whose reply was lost runs again: the first result stays, and is notified again."""
    app = make_app()
    subscription = listen(client, HERE)
    for value in ("first", "second"):
        store(app, ("one", states.SUCCESS, value), **{REPLY_HEADER: HERE})
    payloads = [payload for _, payload in received(subscription)]
    subscription.close()

    assert "first" == app.AsyncResult("one").result
    assert 2 == len(payloads)
    assert payloads[0] == payloads[1]


@pytest.fixture
def without_scripts(client: redis.Redis, broker: str) -> Iterator[str]:
    """The URL of a user who may do everything except run scripts."""
    rules = ("on", "nopass", "~*", "&*", "+@all", "-@scripting")
    client.execute_command("ACL", "SETUSER", "plain", "reset", *rules)
    yield broker.replace("://", "://plain:any@", 1)
    client.acl_deluser("plain")


def test_without_scripts_the_outcome_is_the_same(
    make_app: Callable[..., Celery],
    client: redis.Redis,
    without_scripts: str,
    caplog: pytest.LogCaptureFixture,
):
    """If Redis runs no scripts the same happens in several steps, with one warning."""
    app = make_app()
    app.conf.result_backend = without_scripts
    client.set("celery-task-meta-old", standing(states.SUCCESS, "celery's json"))
    subscription = listen(client, HERE)
    with caplog.at_level(logging.WARNING):
        for n in range(2):
            results = ((name, states.SUCCESS, n) for name in ("old", f"new{n}"))
            store(app, *results, **{REPLY_HEADER: HERE})
    told = [read_replies(payload) for _, payload in received(subscription)]
    subscription.close()

    assert 1 == len([each for each in caplog.records if "no script" in each.message])
    assert [["old", "new0"], ["old", "new1"]] == [[name for name, _ in each] for each in told]
    assert [[[]], 0, 1] == [app.AsyncResult(name).result for name in ("old", "new0", "new1")]
    assert all(dict(each)["old"] == client.get("celery-task-meta-old") for each in told)


def scripts_run(client: redis.Redis) -> int:
    """Return how many scripts this Redis has run since its statistics were reset."""
    return int(client.info("commandstats").get("cmdstat_evalsha", {}).get("calls", 0))


def test_scripts_are_refused_for_each_backend_by_itself(
    make_app: Callable[..., Celery], client: redis.Redis, without_scripts: str
):
    """Another user of the same Redis may run scripts."""
    poor, rich = make_app(), make_app()
    poor.conf.result_backend = without_scripts
    store(rich, ("none", states.SUCCESS, 0))  # the server has the script from here on
    store(poor, ("one", states.SUCCESS, 1))
    client.config_resetstat()
    store(rich, ("two", states.SUCCESS, 2))

    assert 1 == scripts_run(client)
    assert [1, 2] == [rich.AsyncResult(name).result for name in ("one", "two")]


def test_scripts_are_tried_again_later(
    make_app: Callable[..., Celery],
    client: redis.Redis,
    without_scripts: str,
    monkeypatch: pytest.MonkeyPatch,
):
    """After the ACL has been changed no restart is needed."""
    monkeypatch.setattr("celery_batch.worker.redis.result_store._TRY_AGAIN", 0.0, raising=False)
    app = make_app()
    app.conf.result_backend = without_scripts
    store(app, ("one", states.SUCCESS, 1))
    client.execute_command("ACL", "SETUSER", "plain", "+@scripting")
    store(app, ("two", states.SUCCESS, 2))
    client.config_resetstat()
    store(app, ("three", states.SUCCESS, 3))

    assert 1 == scripts_run(client)


def test_script_that_fails_once_runs_the_next_time(
    make_app: Callable[..., Celery], client: redis.Redis, monkeypatch: pytest.MonkeyPatch
):
    """If it was killed, for example, its results are stored in steps, and later ones at once."""
    app = make_app()
    store(app, ("none", states.SUCCESS, 0))  # the server has the script from here on
    run = RedisStore._run_script

    def killed(_store: RedisStore, _piece: Any) -> None:
        raise redis.ResponseError("ERR Error running script: Script killed by user")

    monkeypatch.setattr(RedisStore, "_run_script", killed)
    store(app, ("one", states.SUCCESS, 1))
    monkeypatch.setattr(RedisStore, "_run_script", run)
    client.config_resetstat()
    store(app, ("two", states.SUCCESS, 2))

    assert 1 == scripts_run(client)
    assert [1, 2] == [app.AsyncResult(name).result for name in ("one", "two")]


def test_failed_notifications_do_not_affect_storing(
    make_app: Callable[..., Celery],
    client: redis.Redis,
    broker: str,
    caplog: pytest.LogCaptureFixture,
):
    """If the ACL forbids a reply channel, results are stored, with one warning."""
    rules = ("on", "nopass", "~*", "resetchannels", "&celery-task-meta-*", "+@all")
    client.execute_command("ACL", "SETUSER", "narrow", "reset", *rules)
    app = make_app()
    app.conf.result_backend = broker.replace("://", "://narrow:any@", 1)
    with caplog.at_level(logging.WARNING):
        for name in ("one", "two"):
            store(app, (name, states.SUCCESS, 1), **{REPLY_HEADER: HERE})
    client.acl_deluser("narrow")

    assert client.exists("celery-task-meta-one", "celery-task-meta-two") == 2
    assert 1 == len([each for each in caplog.records if "notify a client" in each.message])


def test_full_memory_is_a_temporary_error(make_app: Callable[..., Celery], client: redis.Redis):
    """A full Redis may have room later, and scripts are still used."""
    app = make_app()
    backend = app.tasks["results.same"].backend
    recorder = BulkResultWriter.of(backend)
    client.config_set("maxmemory", "1")
    try:
        with pytest.raises(OutOfMemoryError):
            backend.store_result("one", 1, states.SUCCESS, request=context("one", batch_reply=HERE))
    finally:
        client.config_set("maxmemory", "0")

    assert recorder is not None
    assert 0.0 == recorder._store.without_scripts_until


def test_a_result_that_is_too_large_is_the_items_error(
    make_app: Callable[..., Celery], monkeypatch: pytest.MonkeyPatch
):
    """A result that Redis cannot store is refused, as by Celery."""
    app = make_app()
    monkeypatch.setattr(RedisBackend, "_MAX_STR_VALUE_SIZE", 1000)
    with pytest.raises(BackendStoreError, match="too large"):
        store(app, ("one", states.SUCCESS, "x" * 2000))


def test_every_thread_notifies(make_app: Callable[..., Celery], client: redis.Redis):
    """Celery has a backend for each thread; all of them notify, independently."""
    app = make_app()
    notify_clients(app, app.tasks.values())
    subscription = listen(client, HERE)
    request = context("one", **{REPLY_HEADER: HERE})

    def fail() -> None:
        app.backend.mark_as_failure("one", ValueError("x"), request=request)
        app.backend.client.close()

    with storing_results(app.tasks["results.same"]):
        thread = threading.Thread(target=fail)
        thread.start()
        thread.join()
        replies = received(subscription)
    subscription.close()

    assert 1 == len(replies)


def test_shared_backend_keeps_threads_apart(make_app: Callable[..., Celery], client: redis.Redis):
    """With one backend for all threads, a batch collects only its own thread's results."""
    app = make_app(result_backend_thread_safe=True)
    task = app.tasks["results.same"]
    with storing_results(task):
        task.backend.store_result("mine", 1, states.SUCCESS, request=context("mine"))
        thread = threading.Thread(
            target=task.backend.store_result, args=("theirs", 1, states.SUCCESS)
        )
        thread.start()
        thread.join()
        during = client.exists("celery-task-meta-mine"), client.exists("celery-task-meta-theirs")

    assert (0, 1) == during
    assert client.exists("celery-task-meta-mine")


class Derived(RedisBackend):
    """A backend class of the user."""


def test_users_backend_stores_by_itself(make_app: Callable[..., Celery], broker: str):
    """A class derived from Celery's may store in its own way, and so is left as it is."""
    app = make_app()
    backend = Derived(app=app, url=broker.removeprefix("redis+"))

    assert BulkResultWriter.of(backend) is None
    assert "_store_result" not in vars(backend)


@pytest.mark.parametrize("scripts", [True, False], ids=["script", "no script"])
def test_start_after_the_end_notifies_the_end(
    make_app: Callable[..., Celery],
    client: redis.Redis,
    monkeypatch: pytest.MonkeyPatch,
    scripts: bool,  # noqa: FBT001
):
    """For a redelivered message of a task that has succeeded, the client is notified of that."""
    app = make_app()
    monkeypatch.setattr(RedisStore, "without_scripts_until", 0.0 if scripts else inf)
    store(app, ("one", states.SUCCESS, "first"))
    first = client.get("celery-task-meta-one")
    subscription = listen(client, HERE)
    store(app, ("one", states.STARTED, {"pid": 1}), **{REPLY_HEADER: HERE})
    ((_, payload),) = received(subscription)
    subscription.close()

    assert [("one", first)] == read_replies(payload)
