"""Which arguments are stored beside their message, for how long, and what if they cannot be."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import re
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import redis
import torch
from celery import Celery, chord, group
from celery.worker.request import Request
from kombu import pools
from kombu.exceptions import EncodeError, OperationalError

from celery_batch import BatchTask, MessageTooLarge, PartlySent, QueueFull
from celery_batch.client.publish.send_many import apply_chunks
from celery_batch.compat.deadline import waiting_until
from celery_batch.errors import ConfigurationError
from celery_batch.payloads.app_payloads import AppPayloads, seconds_until
from celery_batch.payloads.store import StoreAway, StoreError
from celery_batch.processes.redis_server import RedisServer
from celery_batch.protocol import READS_PAYLOADS
from tests.services.backends import close_backend

LARGE = np.ones(20_000, "f4")


@pytest.fixture
def client(redis_server: RedisServer) -> Iterator[redis.Redis]:
    """A connection to an empty Redis."""
    with redis.Redis(unix_socket_path=f"{redis_server.directory}/redis.sock") as client:
        client.flushall()
        yield client


@pytest.fixture
def make(redis_server: RedisServer, client: redis.Redis) -> Iterator[Any]:
    """Makes apps with one batch task, with these settings."""
    apps = []

    def made(url: str = "", **settings: Any) -> Any:
        url = url or redis_server.url
        app = Celery("sender", broker=url, backend=url, set_as_current=False)
        app.conf.update(task_publish_retry_policy={"max_retries": 0}, **settings)
        apps.append(app)

        @app.task(base=BatchTask, name="sent", shared=False)
        def sent(x):
            return x

        app.finalize()
        return app.tasks["sent"]

    assert client.ping()
    yield made
    for app in apps:
        close_backend(app)
        app.close()
    pools.reset()


def stored(client: redis.Redis) -> dict[str, int]:
    """Return the seconds until each payload expires, by its key."""
    return {key.decode(): client.ttl(key) for key in client.scan_iter("celery-batch-payload-*")}


def ids_in_queue(client: redis.Redis) -> list[str]:
    """Return the ids of the calls that wait, oldest first."""
    return [json.loads(each)["headers"]["id"] for each in client.lrange("celery", 0, -1)[::-1]]


def size_of_queue(client: redis.Redis) -> int:
    """Return the bytes of the messages that wait."""
    return sum(len(each) for each in client.lrange("celery", 0, -1))


def test_what_is_large_is_stored(make: Any, client: redis.Redis):
    """From the threshold on; the message is small, and the key has the task's id."""
    task = make()
    result = task.delay(LARGE)
    task.delay(LARGE[:2047])

    (key,) = stored(client)
    assert key.startswith(f"celery-batch-payload-{result.id}-")
    assert client.strlen(key) == LARGE.nbytes
    assert 10_000 < size_of_queue(client) < 20_000  # the other one, as base64 of base64


def test_options_by_position(make: Any, client: redis.Redis):
    """Celery's further parameters are those of the same names, and what is large is stored."""
    task = make()
    with task.app.producer_pool.acquire() as producer:
        task.apply_async((LARGE,), {}, "one")
        task.apply_async((LARGE,), None, "two", producer, task.s(), None, "shown")
    headers = [json.loads(each)["headers"] for each in client.lrange("celery", 0, -1)]

    assert {key.split("-")[3] for key in stored(client)} == {"one", "two"}
    assert [("two", "shown"), ("one", None)] == [(each["id"], each["shadow"]) for each in headers]
    for wrong, options in ((("three", *[None] * 5), {}), (("three",), {"task_id": "four"})):
        with pytest.raises(TypeError):
            task.apply_async((1,), {}, *wrong, **options)
    assert client.llen("celery") == 2


def test_the_threshold_may_be_another(make: Any, client: redis.Redis):
    """Of each value by itself."""
    make(batch_payload_threshold=100).delay([np.ones(25, "f4"), np.ones(24, "f4")])

    assert [100] == [client.strlen(key) for key in stored(client)]


def test_bytes_are_stored_once_a_store_is_named(make: Any, client: redis.Redis, redis_server: Any):
    """By default they are in the message."""
    make().delay(b"\xff" * 100_000)
    assert stored(client) == {}
    make(batch_payload_store=redis_server.url).delay(b"\xff" * 100_000)
    assert [100_000] == [client.strlen(key) for key in stored(client)]


@pytest.mark.parametrize(
    ("options", "seconds"),
    [
        ({}, 0),
        ({"countdown": 5000}, 5000),
        ({"eta": timedelta(seconds=5000)}, 5000),
        ({"expires": 7000}, 7000),
        ({"expires": timedelta(seconds=7000), "countdown": 10}, 7000),
    ],
    ids=["none", "countdown", "eta", "expires", "both"],
)
def test_when_a_payload_expires(make: Any, client: redis.Redis, options: Any, seconds: int):
    """A while after its task is due or has expired."""
    now = datetime.now(UTC)
    given = {
        name: now + each if isinstance(each, timedelta) else each for name, each in options.items()
    }
    make(batch_payload_expires=1000.0).apply_async((LARGE,), **given)

    (found,) = stored(client).values()
    assert seconds + 900 < found <= seconds + 1001


@pytest.mark.parametrize("enable_utc", [True, False])
@pytest.mark.parametrize("option", ["eta", "expires"])
def test_times_without_a_zone(make: Any, client: redis.Redis, enable_utc: Any, option: str):
    """They are what Celery's worker takes them for, whatever the app's zone."""
    task = make(timezone="Asia/Tokyo", enable_utc=enable_utc, batch_payload_expires=1000.0)
    given = datetime.now(UTC).replace(tzinfo=None) + timedelta(days=1)
    for when in (given, given.isoformat()):
        task.apply_async((LARGE,), **{option: when})
    message = SimpleNamespace(
        headers=json.loads(client.lindex("celery", 0))["headers"],
        body=((), {}, {}),
        delivery_info={},
        properties={},
        content_type="",
        content_encoding="",
    )
    request = Request(message, app=task.app, task=task, decoded=True, utc=enable_utc)
    time_of_worker = request.eta if option == "eta" else request._expires

    seconds = time_of_worker.timestamp() - time.time()
    assert [pytest.approx(seconds + 1000, abs=5)] * 2 == list(stored(client).values())


@pytest.mark.parametrize("value", [np.float32(70), np.int64(70), Fraction(70)], ids=repr)
def test_seconds_are_any_number(value: Any):
    """As Celery takes them."""
    assert 70.0 == seconds_until(value)


@pytest.mark.parametrize("value", [None, "", "tomorrow", b"", timedelta(1), -1, [1]], ids=repr)
def test_times_that_are_none(value: Any):
    """They are over; what Celery cannot send is Celery's error."""
    assert 0.0 == seconds_until(value)


def test_many_calls(make: Any, client: redis.Redis):
    """Each has a payload of its own, also of the same array."""
    task = make()
    task.delay_many([LARGE, 1, LARGE])

    assert len(stored(client)) == 2
    assert client.llen("celery") == 3


def test_no_message_is_sent_before_its_payload(make: Any, client: redis.Redis):
    """Where each of many calls is written at once, its values are, too."""
    task = make(batch_bulk=False)
    numbers = []

    def rows():
        for _ in range(4):
            numbers.append((client.llen("celery"), len(stored(client))))
            yield LARGE

    task.delay_many(rows())
    assert [(n, n) for n in range(4)] == numbers


def test_an_array_that_is_filled_again(make: Any, client: redis.Redis):
    """Each call has what was in it when the call was made."""
    task, frame = make(), np.zeros(20_000, "f4")
    task.delay(frame)

    def frames():
        for n in (1, 2, 3):
            frame[:] = n
            yield frame

    task.delay_many(frames())
    found = sorted(np.frombuffer(client.get(key), "f4").mean() for key in stored(client))
    assert [0, 1, 2, 3] == found


def test_values_in_themselves(make: Any):
    """They cannot be encoded, which is Celery's error."""
    value: list[Any] = [LARGE]
    value.append(value)
    with pytest.raises(EncodeError):
        make().delay(value)


@pytest.mark.parametrize(
    "conf",
    [
        {"broker_url": "rediss://localhost/0", "broker_use_ssl": {"ssl_cert_reqs": 0}},
        {"broker_url": "rediss://localhost/0"},
        {"broker_url": "redis://one/0;redis://two/0"},
        {"broker_url": ["redis://one/0", "redis://two/0"]},
        {"broker_url": "sentinel://one:1;sentinel://two:1"},
    ],
    ids=["keys", "no keys", "two", "a list", "sentinels"],
)
def test_brokers_whose_url_does_not_say_all(conf: dict[str, Any]):
    """They are no store, where none is named and the results are elsewhere."""
    app = Celery("elsewhere", backend="rpc://", set_as_current=False)
    app.conf.update(conf)

    assert AppPayloads.of(app).store is None


def test_without_a_store(make: Any, client: redis.Redis):
    """All is in the message."""
    make(batch_payload_store=False).delay(LARGE)

    assert stored(client) == {}
    assert size_of_queue(client) > LARGE.nbytes


@pytest.mark.parametrize("store", [None, False])
def test_a_caller_without_a_store_asks_for_whole_results(
    make: Any, client: redis.Redis, store: Any
):
    """Of every kind of call, for it could not read what is stored beside them."""
    task = make(batch_payload_store=store)
    task.delay(1)
    task.delay_many([1, 2])
    task.apply_async((LARGE,), priority=3, headers={"mine": 1})
    raw = [each for key in client.keys("celery*") if client.type(key) == b"list"
           for each in client.lrange(key, 0, -1)]  # fmt: skip
    asked = [READS_PAYLOADS in json.loads(each)["headers"] for each in raw]

    assert [store is None] * 4 == asked


def test_serializers_that_cannot_say_it(make: Any, client: redis.Redis):
    """What they cannot encode is their error, as before."""
    task = make()
    with pytest.raises(EncodeError):
        task.apply_async((LARGE,), serializer="yaml")

    assert stored(client) == {}


def test_a_store_that_refuses(
    make: Any, client: redis.Redis, redis_server: Any, caplog: pytest.LogCaptureFixture
):
    """Values travel in their messages, with one warning."""
    client.execute_command("ACL", "SETUSER", "reader", "reset", "on", "nopass", "~*", "-@write")
    task = make(batch_payload_store=redis_server.url.replace("://", "://reader:any@", 1))
    try:
        with caplog.at_level(logging.WARNING):
            task.delay(LARGE)
            task.delay(LARGE)
    finally:
        client.acl_deluser("reader")

    assert client.llen("celery") == 2
    assert size_of_queue(client) > 2 * LARGE.nbytes
    assert len([each for each in caplog.messages if "payload store refuses" in each]) == 1


def test_a_store_that_is_away(make: Any, client: redis.Redis):
    """The call fails as if the broker were away, and nothing is sent."""
    task = make(batch_payload_store="redis://127.0.0.1:1/0")
    with pytest.raises(OperationalError, match="payload store cannot be reached"):
        task.delay(LARGE)

    assert client.llen("celery") == 0
    task.delay(1)
    assert client.llen("celery") == 1


@pytest.fixture(params=["just now", "before"])
def away(request: pytest.FixtureRequest, make: Any) -> Any:
    """A task whose store has ended, or was never there."""
    if request.param == "before":
        return make(batch_payload_store="redis://me:secret@127.0.0.1:1/0")
    with RedisServer() as store:
        task = make(batch_payload_store=store.url)
        task.apply_async((LARGE,), queue="another")
    return task


#: What a call raises whose values cannot be stored: which store it is, and the way out.
_SAYS = r"payload store cannot be reached: .* It is (redis|redis\+socket):.*batch_payload_store"

#: Small and large values; the first one that is large fails.
_MIXED = [1, LARGE, 2, LARGE, np.ones(1 << 19, "f4"), 3, LARGE]


@pytest.mark.parametrize("bulk", [True, False])
@pytest.mark.parametrize("options", [{}, {"headers": {"mine": 1}}, {"retry": True}], ids=repr)
def test_the_others_of_many_calls_are_sent(away: Any, client: redis.Redis, bulk: Any, options: Any):
    """Those whose values cannot be stored are not, and the error says which were sent."""
    if not bulk:
        away.app.conf.batch_bulk = False
    with pytest.raises(PartlySent, match=_SAYS) as caught:
        away.apply_many([((value,), None) for value in _MIXED], **options)

    assert "secret" not in str(caught.value)
    assert [0, 2, 5] == list(caught.value.places)
    assert [each.id for each in caught.value.sent] == ids_in_queue(client)


def test_all_of_many_calls_with_a_store_that_is_away(away: Any):
    """None was sent, as with a broker that is away."""
    with pytest.raises(OperationalError, match=_SAYS) as caught:
        away.delay_many([LARGE, LARGE])

    assert not isinstance(caught.value, PartlySent)


def test_chunks_with_a_store_that_is_away(away: Any, client: redis.Redis):
    """As of calls with one row each."""
    with pytest.raises(PartlySent, match=_SAYS) as caught:
        apply_chunks(away, [([1, 2],), ([LARGE, 2],), ([3],)], {})

    assert [0, 2] == list(caught.value.places)
    assert [each.id for each in caught.value.sent] == ids_in_queue(client)


def test_the_calls_of_other_coroutines_are_sent(away: Any, client: redis.Redis):
    """Each learns of its own call alone, whatever is written with it."""

    async def call_all() -> list[Any]:
        """Call the task in one pass of the loop."""
        calls = [away.adelay(value) for value in _MIXED]
        return await asyncio.gather(*calls, return_exceptions=True)

    found = asyncio.run(call_all())
    sent = [each for each in found if not isinstance(each, Exception)]
    assert [each.id for each in sent] == ids_in_queue(client)
    assert [0, 2, 5] == [n for n, each in enumerate(found) if each in sent]
    for error in set(found) - set(sent):
        assert isinstance(error, OperationalError)
        assert re.search(_SAYS, str(error))


def test_the_others_of_a_group_are_sent(away: Any, client: redis.Redis):
    """As far as Celery says which were."""
    with pytest.raises(PartlySent, match=_SAYS) as caught:
        group(away.s(value) for value in _MIXED).delay()

    assert [0, 2, 5] == list(caught.value.places)
    assert [each.id for each in caught.value.sent] == ids_in_queue(client)


def test_a_store_that_is_away_is_asked_once(make: Any):
    """And not for each of many calls, since each time may be long."""
    task = make()
    payloads = AppPayloads.of(task.app)
    for payloads.is_allowed in (True, False):
        payloads.store = store = _Away()
        with pytest.raises(OperationalError):
            task.apply_many([((value,), None) for value in [*_MIXED, *[LARGE] * 3000]])
        assert 1 == store.tries


@pytest.mark.parametrize("own", [{"retry": False}, {"seconds": 0.01}], ids=repr)
def test_each_coroutines_call_is_tried_as_often_as_it_may(make: Any, client: redis.Redis, own: Any):
    """What another one has tried, or had time for, is not what it may try."""
    task = make()
    task.app.conf.task_publish_retry_policy = _ANY
    AppPayloads.of(task.app).store = _Away(tries=2)

    async def call(seconds: float = math.inf, **options: Any) -> Any:
        """Call the task with a deadline."""
        with waiting_until(time.monotonic() + seconds):
            return await task.aapply_async((LARGE,), **options)

    async def call_all() -> list[Any]:
        """Call the task in one pass of the loop."""
        return await asyncio.gather(call(**own), call(), return_exceptions=True)

    failed, sent = asyncio.run(call_all())
    assert isinstance(failed, OperationalError)
    assert [sent.id] == ids_in_queue(client)


@pytest.mark.parametrize("shape", ["chord", "in a group", "slow", "single"])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_chords_members_are_all_sent_or_none(
    make: Any, client: redis.Redis, shape: str, place: int
):
    """Its body could never run, whatever the others give."""
    task = make(batch_payload_store="redis://127.0.0.1:1/0", batch_bulk=shape != "single")
    options = {"headers": {"mine": 1}, "priority": 0} if shape == "slow" else {}
    values = [1, 2, 3]
    values[place] = LARGE
    members = [task.s(value).set(**options) for value in values]
    whole = chord(members, task.s())
    with pytest.raises(OperationalError, match=_SAYS):
        (group(task.s(1), whole) if shape == "in a group" else whole).apply_async()

    assert client.llen("celery") == (place if shape == "single" else 0)


def test_a_value_that_is_too_large_for_redis(make: Any, client: redis.Redis):
    """The store takes the other values of the same calls."""
    with (
        RedisServer() as store,
        redis.Redis(unix_socket_path=f"{store.directory}/redis.sock") as its_client,
    ):
        its_client.config_set("proto-max-bulk-len", 3 << 20)
        task = make(batch_payload_store=store.url)
        with pytest.raises(PartlySent, match="8388608 bytes may be more") as caught:
            task.delay_many([np.ones(1 << 21, "f4"), np.ones(1 << 19, "f4"), LARGE, 1])

    assert [1, 2, 3] == list(caught.value.places)
    assert client.llen("celery") == 3


class _Away:
    """A store that is away for some tries, which it counts."""

    name = "away://"

    def __init__(self, tries: float = math.inf) -> None:
        self.tries, self._fails = 0, tries

    def put_many(self, payloads: Any) -> dict[str, StoreError]:
        """Store none, or say so."""
        self.tries += 1
        return {key: StoreAway("away") for key, *_ in payloads if self.tries <= self._fails}


#: A policy of five tries, or of as many as there is time for.
_FIVE = {"max_retries": 4, "interval_start": 0, "interval_step": 0, "interval_max": 0}
_ANY = {"max_retries": None, "interval_start": 0.05, "interval_step": 0, "interval_max": 0.05}


@pytest.mark.parametrize(
    ("conf", "options", "tries"),
    [
        (True, {}, 1),
        (True, {"retry_policy": _FIVE}, 5),
        (True, {"retry_policy": _FIVE, "retry": False}, 1),
        (False, {"retry_policy": _FIVE}, 1),
        (False, {"retry_policy": _FIVE, "retry": True}, 5),
    ],
)
@pytest.mark.parametrize("is_allowed", [False, True])
def test_retries_are_those_of_the_message(
    make: Any, client: redis.Redis, conf: Any, options: Any, tries: int, is_allowed: Any
):
    """One call or many; the settings, unless the call says something else."""
    task = make(task_publish_retry=conf)
    payloads = AppPayloads.of(task.app)
    payloads.is_allowed = is_allowed
    calls = [
        lambda: task.apply_async((LARGE,), **options),
        lambda: task.apply_many([((LARGE,), None)] * 2, **options),
        lambda: asyncio.run(task.aapply_async((LARGE,), **options)),
    ]
    for call in calls:
        payloads.store = away = _Away()
        with pytest.raises(OperationalError, match="payload store cannot be reached: away"):
            call()
        assert away.tries == tries

    assert client.llen("celery") == 0


@pytest.mark.parametrize("many", [False, True])
def test_retries_end_at_the_deadline(make: Any, many: Any):
    """Also those of calls that are written together later."""
    task = make()
    task.app.conf.task_publish_retry_policy = _ANY
    payloads = AppPayloads.of(task.app)
    payloads.is_allowed, payloads.store = True, (away := _Away())
    began = time.monotonic()
    with pytest.raises(OperationalError), waiting_until(began + 1.0):
        task.delay_many([LARGE, LARGE]) if many else task.delay(LARGE)

    assert away.tries > 1
    assert time.monotonic() - began < 30.0


def test_a_store_that_hangs(make: Any, client: redis.Redis):
    """No longer than until the deadline is an answer of Redis waited for."""
    task = make()
    task.app.conf.task_publish_retry_policy = _ANY
    task.delay(LARGE)
    client.execute_command("CLIENT", "PAUSE", 20_000, "WRITE")
    began = time.monotonic()
    try:
        with pytest.raises(OperationalError), waiting_until(began + 0.3):
            task.delay(LARGE)
        assert 0.2 < time.monotonic() - began < 10.0
    finally:
        client.execute_command("CLIENT", "UNPAUSE")

    task.delay(LARGE)


def test_more_than_a_message_may_have(make: Any, client: redis.Redis):
    """The call fails with the name of the setting."""
    with pytest.raises(MessageTooLarge, match="batch_max_payload_size"):
        make(batch_max_payload_size=1000).delay(LARGE)

    assert stored(client) == {}


def test_calls_that_cannot_be_sent(make: Any, client: redis.Redis):
    """Nothing is stored for them: they raise what they raise without a large value."""
    task = make()
    with pytest.raises(TypeError):
        task.delay(LARGE, 1, 2)
    for value in ([LARGE, np.array([None])], {"a": LARGE, "b": {object()}}):
        with pytest.raises(EncodeError):
            task.delay(value)
    with pytest.raises(TypeError):
        task.apply_many([((LARGE, 1, 2), {})])

    assert stored(client) == {}
    assert client.llen("celery") == 0


@pytest.mark.parametrize(
    "call",
    [((LARGE, 10**5000), {}), ((LARGE, [1, -(10**5000)]), {}), ((LARGE,), {(1, 2): 3})],
    ids=["number", "list", "key"],
)
def test_plain_values_that_cannot_be_sent(make: Any, client: redis.Redis, call: Any):
    """Not every number and name can be written: nothing is stored beside those that cannot."""
    task = make()
    task.typing = False
    with pytest.raises((EncodeError, TypeError, ValueError)):
        task.apply_async(*call)

    assert stored(client) == {}
    assert client.llen("celery") == 0


@pytest.mark.filterwarnings("ignore:Sparse CSR")
@pytest.mark.parametrize("layout", ["sparse_coo", "sparse_csr"])
def test_sparse_tensors(make: Any, client: redis.Redis, layout: str):
    """They cannot be encoded, which the error says, with a way out."""
    tensor, task = getattr(torch.eye(200), f"to_{layout}")(), make()
    words = rf"torch.{layout} .* cannot be encoded: use .to_dense\(\)"
    for send in (
        lambda: task.delay(tensor),
        lambda: task.delay({"a": [LARGE, tensor]}),
        lambda: task.delay_many([tensor]),
        lambda: task.delay_many([{"a": tensor}, 1]),
    ):
        with pytest.raises(EncodeError, match=words):
            send()

    assert stored(client) == {}
    assert client.llen("celery") == 0


def test_a_full_queue(make: Any, client: redis.Redis):
    """It is refused before anything is stored."""
    task = make(batch_max_queue=1)
    task.delay(1)
    with pytest.raises(QueueFull):
        task.delay(LARGE)

    assert stored(client) == {}


def test_what_exceeds_a_message(make: Any, client: redis.Redis):
    """Whole arguments are stored, as JSON; the others stay."""
    task = make(batch_max_message_size=1 << 20)
    task.apply_async((), {"x": "x" * (1 << 21)})
    task.delay([[0.125] * 1000] * 200)

    assert size_of_queue(client) < 10_000
    assert len(stored(client)) == 2


def test_an_eager_call(make: Any, client: redis.Redis):
    """Nothing is stored for it."""
    assert make(task_always_eager=True).delay(LARGE).get().shape == LARGE.shape
    assert stored(client) == {}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("batch_payload_store", True),
        ("batch_payload_store", ""),
        ("batch_payload_threshold", 0),
        ("batch_payload_expires", 0),
        ("batch_max_payload_size", "1M"),
    ],
)
def test_wrong_settings(make: Any, name: str, value: Any):
    """The error names the setting."""
    with pytest.raises(ConfigurationError, match=name):
        make(**{name: value})
