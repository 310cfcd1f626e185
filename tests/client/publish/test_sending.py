"""How calls reach the broker: alone, many at once, from threads, coroutines and forks."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from base64 import b64decode
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from celery import chord, group, signals
from kombu.exceptions import EncodeError, OperationalError

from celery_batch import BatchTask, PartlySent
from celery_batch.client.publish import aio, buffer
from celery_batch.client.publish.aio import apply_async
from celery_batch.client.publish.publisher import Publisher
from celery_batch.client.results.listener import listener_for
from celery_batch.processes.redis_server import RedisServer
from tests.client.conftest import Sender
from tests.services.eventually import eventually

LARGE = np.ones(20_000, "f4")


@contextmanager
def counted(sender: Sender) -> Iterator[dict[str, int]]:
    """Count the commands that reach Redis meanwhile."""
    sender.redis.config_resetstat()
    calls: dict[str, int] = {}
    yield calls
    for name, stats in sender.redis.info("commandstats").items():
        calls[name.removeprefix("cmdstat_")] = stats["calls"]


def warmed(sender: Sender) -> Sender:
    """Send the first of its kind, which takes Celery's path."""
    for ignored in (True, False):
        sender.task.apply_async(("warm",), ignore_result=ignored)
    sender.task.delay("warm")
    sender.taken()
    return sender


def texts(lists: dict[str, list[dict[str, Any]]]) -> list[str]:
    """Return the first arguments of all messages, in order."""
    return [message["headers"]["argsrepr"] for each in lists.values() for message in each]


def test_a_call_is_one_command(sender: Callable[..., Sender]) -> None:
    """A call costs Redis one LPUSH, and nobody subscribes to its result."""
    here = warmed(sender())
    with counted(here) as calls:
        here.task.delay("a")

    assert 1 == calls.pop("lpush")
    assert {} == {name: count for name, count in calls.items() if "sub" in name}


def test_many_calls_are_one_command_for_each_thousand(sender: Callable[..., Sender]) -> None:
    """`delay_many` sends all items in order, a thousand in one write."""
    here = warmed(sender())
    with counted(here) as calls:
        results = here.task.delay_many(range(2500))
    messages = here.taken()["celery"]

    assert 3 == calls["lpush"]
    assert [f"({number},)" for number in range(2500)] == texts({"": messages})
    assert [message["headers"]["id"] for message in messages] == [each.id for each in results]


def test_rows_have_arguments_and_options(sender: Callable[..., Sender]) -> None:
    """`apply_many` takes positional and keyword arguments, and options for all."""
    here = warmed(sender())
    rows = [(("a", "!"), None), (None, {"text": "b"}), (("c",), {"mark": "?"})]
    results = here.task.apply_many(iter(rows), queue="other", priority=6)
    messages = here.taken()["other\x06\x166"]

    assert [message["headers"]["kwargsrepr"] for message in messages] == [
        "{}",
        "{'text': 'b'}",
        "{'mark': '?'}",
    ]
    assert [message["headers"]["id"] for message in messages] == [each.id for each in results]


def test_nothing_is_sent_of_a_write_with_a_wrong_call(sender: Callable[..., Sender]) -> None:
    """Arguments that do not fit are refused before the write that they would be in."""
    here = warmed(sender())
    with pytest.raises(TypeError, match="missing"):
        here.task.apply_many([(("a",), None), ((), None)])

    assert {} == here.taken()


def test_a_failure_after_a_thousand_says_what_was_sent(sender: Callable[..., Sender]) -> None:
    """What was surely sent is named, and it is what lies in the broker."""
    here = warmed(sender())

    def items() -> Iterator[int]:
        yield from range(1200)
        raise RuntimeError("no more")

    with pytest.raises(PartlySent, match="only 1000 calls were surely sent: no more") as caught:
        here.task.delay_many(items())
    messages = here.taken()["celery"]

    assert isinstance(caught.value, OperationalError)
    assert [message["headers"]["id"] for message in messages] == [
        each.id for each in caught.value.sent
    ]


def test_a_refused_write_fails_as_celerys_does(sender: Callable[..., Sender]) -> None:
    """What Redis refuses is kombu's OperationalError, as on Celery's path."""
    here = warmed(sender(task_publish_retry_policy={"max_retries": 1, "interval_start": 0}))
    here.redis.set("celery", "not a list")
    with pytest.raises(OperationalError, match="WRONGTYPE") as theirs:
        here.stock(("a",))
    with pytest.raises(OperationalError, match="WRONGTYPE") as ours:
        here.task.delay("a")
    here.redis.delete("celery")
    here.task.delay("b")

    assert type(theirs.value) is type(ours.value)
    assert ["('b',)"] == texts(here.taken())


def test_calls_of_many_threads_share_writes(sender: Callable[..., Sender]) -> None:
    """While one thread writes, the others' calls gather for the next write."""
    here = warmed(sender())
    start = threading.Barrier(16)

    def ask(name: int) -> list[str]:
        start.wait()
        return [here.task.delay(f"{name}-{number}").id for number in range(50)]

    with counted(here) as calls, ThreadPoolExecutor(16) as threads:
        ids = [each for found in threads.map(ask, range(16)) for each in found]
    messages = here.taken()["celery"]

    assert sorted(ids) == sorted(message["headers"]["id"] for message in messages)
    assert calls["lpush"] < 800


def test_a_failed_write_raises_in_every_thread(sender: Callable[..., Sender]) -> None:
    """Each caller whose call was in a write that failed hears of it."""
    here = warmed(sender(task_publish_retry=False))
    here.redis.set("celery", "not a list")
    start = threading.Barrier(8)

    def ask(name: int) -> str:
        start.wait()
        with pytest.raises(OperationalError) as caught:
            here.task.delay(name)
        return str(caught.value)

    with ThreadPoolExecutor(8) as threads:
        errors = list(threads.map(ask, range(8)))

    assert all("WRONGTYPE" in error for error in errors)


def test_coroutines_of_one_pass_share_a_write(sender: Callable[..., Sender]) -> None:
    """Calls that coroutines make together are one write, in order."""
    here = warmed(sender())

    async def ask() -> list[Any]:
        """Make many calls in one pass."""
        return await asyncio.gather(*(here.task.adelay(number) for number in range(200)))

    with counted(here) as calls:
        results = asyncio.run(ask())
    messages = here.taken()["celery"]

    assert 1 == calls["lpush"]
    assert [each.id for each in results] == [message["headers"]["id"] for message in messages]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"headers": {"request_id": "a"}},
        {"headers": {"request_id": "%(id)s"}, "expires": 60.0},
        {"headers": {}},
        {"headers": {"task": "other"}},
        {"expires": 60, "priority": 3},
        {"task_id": "one"},
    ],
    ids=str,
)
def test_calls_of_one_write_are_as_they_would_be_alone(
    sender: Callable[..., Sender], options: dict[str, Any]
) -> None:
    """Whatever calls in a crowd have of their own is in their messages, and in no neighbour's."""
    here = warmed(sender())
    others = {"headers": {"request_id": "b"}, "expires": 3600.0}
    for each in (options, others):
        here.task.apply_async(("x",), **each)  # the first of their kinds
    here.taken()
    here.task.apply_async(("x",), **options)
    ((alone,),) = here.taken().values()

    async def ask() -> list[Any]:
        """Make many calls in one pass, with one of interest among others."""
        calls = [here.task.aapply_async(("o",), **others) for _ in range(5)]
        return await asyncio.gather(*calls, here.task.aapply_async(("x",), **options))

    results = asyncio.run(ask())
    sent = [message for each in here.taken().values() for message in each]
    own = {message["headers"]["id"]: message["headers"] for message in sent}
    among = own[results[-1].id]

    assert len(own) == len(results)
    assert all("b" == own[each.id]["request_id"] for each in results[:-1])
    assert _told(among) == _told(alone["headers"])


def _told(headers: dict[str, Any]) -> dict[str, Any]:
    """Return what a message's headers say, but for what differs from call to call."""
    same = {name: value for name, value in headers.items() if name not in ("id", "root_id")}
    return same | {"expires": bool(headers["expires"])}


def test_coroutines_hear_of_their_own_errors_only(sender: Callable[..., Sender]) -> None:
    """A wrong call among others fails alone; a failed write fails all that were in it."""
    here = warmed(sender(task_publish_retry=False))

    async def ask() -> list[Any]:
        """Make a wrong call among right ones."""
        calls = [here.task.adelay("a"), here.task.adelay(), here.task.aapply_async(("b",))]
        return await asyncio.gather(*calls, return_exceptions=True)

    good, wrong, also_good = asyncio.run(ask())
    sent = here.taken()["celery"]
    here.redis.set("celery", "not a list")
    refused = asyncio.run(ask())

    assert [good.id, also_good.id] == [message["headers"]["id"] for message in sent]
    assert isinstance(wrong, TypeError)
    assert [OperationalError, TypeError, OperationalError] == [type(each) for each in refused]


def test_a_group_is_one_write(
    sender: Callable[..., Sender], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A group of batch tasks goes into the broker at once, with Celery's messages."""
    monkeypatch.setattr(buffer, "_LONGEST_WAIT", 60.0)  # a busy machine takes a second for it
    here = warmed(sender())
    first = group(here.task.s(str(number)) for number in range(3))
    first.apply_async()  # the first of its kind
    here.taken()
    with counted(here) as calls:
        result = group(here.task.s(str(number)) for number in range(300)).apply_async()
    messages = here.taken()["celery"]

    assert 1 == calls["lpush"]
    assert [each.id for each in result] == [message["headers"]["id"] for message in messages]
    assert {result.id} == {message["headers"]["group"] for message in messages}
    assert list(range(300)) == [message["headers"]["group_index"] for message in messages]


def test_a_chords_header_is_one_write(
    sender: Callable[..., Sender], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The parts of a chord go into the broker at once, each with the chord's body."""
    monkeypatch.setattr(buffer, "_LONGEST_WAIT", 60.0)  # a busy machine takes a second for it
    here = warmed(sender())
    for _ in range(2):
        with counted(here) as calls:
            chord(group(here.task.s("a") for _ in range(20)), here.task.s()).apply_async()
        messages = here.taken()["celery"]

    assert 20 == len(messages)
    assert 1 == calls["lpush"]


def test_a_fork_sends_for_itself(sender: Callable[..., Sender], tmp_path: Path) -> None:
    """After a fork both processes send, and each says who it is."""
    here = warmed(sender())
    here.task.delay("before")
    child = os.fork()
    if not child:
        try:
            for _ in range(3):
                here.task.delay("child")
            (tmp_path / "done").touch()
        finally:
            os._exit(0)
    for _ in range(3):
        here.task.delay("parent")
    os.waitpid(child, 0)
    messages = here.taken()["celery"]
    origins = {message["headers"]["argsrepr"]: message["headers"]["origin"] for message in messages}

    assert (tmp_path / "done").exists()
    assert 7 == len(messages)
    assert f"gen{child}@" == origins["('child',)"].partition("@")[0] + "@"
    assert f"gen{os.getpid()}@" == origins["('parent',)"].partition("@")[0] + "@"


def test_a_restarted_redis_is_found_again(tmp_path: Path) -> None:
    """A call after Redis was restarted reaches the new one; while it is down, it fails."""
    with RedisServer(directory=tmp_path) as server:
        here = warmed(Sender(server.url, {"task_publish_retry_policy": {"max_retries": 1}}))
        here.task.delay("a")
        server.stop()
        with pytest.raises(OperationalError):
            here.task.delay("lost")
        server.start()
        here.task.delay("b")
        found = texts(here.taken())
        here.close()

    assert "('b',)" in found
    assert "('lost',)" not in found


def test_eager_apps_run_at_once(sender: Callable[..., Sender]) -> None:
    """With `task_always_eager` nothing is sent, by whatever method."""
    here = sender()
    here.task.delay("a")
    here.app.conf.task_always_eager = True
    here.taken()
    many = here.task.delay_many(["a", "b"])

    assert [["a", None], ["b", None]] == [[*each.get()] for each in many]
    assert ["c", None] == [*asyncio.run(here.task.adelay("c")).get()]
    assert {} == here.taken()


def test_a_changed_setting_holds_from_the_next_call(sender: Callable[..., Sender]) -> None:
    """Settings that change while the app runs are seen."""
    here = warmed(sender())
    here.app.conf.task_routes = {"shout": "first"}
    here.app.amqp.flush_routes()
    here.app.amqp.__dict__.pop("router", None)
    for _ in range(2):
        here.task.delay("a")

    assert ["first"] == list(here.taken())


@pytest.mark.parametrize("limit", [None, 0, 1])
def test_any_limit_of_connections_will_do(sender: Callable[..., Sender], limit: int | None) -> None:
    """Calls are sent whatever `broker_pool_limit` says, 0 for no pool among it."""
    here = warmed(sender(broker_pool_limit=limit))
    here.task.delay_many(["a", "b"])
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(here.task.delay, "cdef"))
        list(threads.map(here.task.delay_many, map(list, ["gh", "ij", "kl"])))
    group(here.task.s(text) for text in "mnop").apply_async(countdown=0)
    group(here.task.s(text) for text in "q" * 1500).apply_async(priority=0)
    here.task.apply_many([((text,), None) for text in "rs"], countdown=1)

    found = sorted(text[2:3] for text in texts(here.taken()))

    assert [*"abcdefghijklmnop", *["q"] * 1500, "r", "s"] == found


class Mine:
    """What no serializer knows."""


def adelay(task: Any, *args: Any) -> Any:
    """Send a call from a coroutine."""
    return asyncio.run(task.adelay(*args))


@pytest.mark.parametrize(
    "send",
    [
        lambda task, value: task.delay(value),
        lambda task, value: task.apply_async((value,)),
        lambda task, value: task.apply_async(kwargs={"text": value}),
        lambda task, value: task.apply_async((value,), countdown=1),
        lambda task, value: task.delay_many([value, "b"]),
        lambda task, value: task.apply_many([((value,), None)], shadow="c"),
        lambda task, value: group([task.s(value)]).apply_async(),
        adelay,
    ],
    ids=["delay", "args", "kwargs", "slow", "many", "many-slow", "group", "adelay"],
)
@pytest.mark.parametrize("is_warm", [False, True])
def test_an_argument_that_cannot_be_encoded_is_named(
    sender: Callable[..., Sender], send: Callable[..., Any], is_warm: Any
) -> None:
    """With its task, its type and what to send instead, on each path; nothing is sent."""
    here = warmed(sender()) if is_warm else sender()
    with pytest.raises(
        EncodeError,
        match=r"^shout: the argument text has a \w+\.Mine at \[1\],.*"
        "'json' cannot encode: send numbers, texts, lists or dicts of what is needed of it$",
    ):
        send(here.task, ["a", Mine()])
    with pytest.raises(EncodeError, match=r"^shout: the argument text is a set, .* send a list of"):
        send(here.task, {"a"})

    assert {} == here.taken()


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (((), {"text": "a", "mark": object()}), "the argument mark is an object, which"),
        ((("a", {(1, 2): 3}), {}), "'json' cannot encode the argument mark: keys must be"),
    ],
)
def test_the_second_argument_is_named_too(
    sender: Callable[..., Sender], call: Any, says: str
) -> None:
    """By its parameter, also where no value in it can be named."""
    here = warmed(sender())
    with pytest.raises(EncodeError, match=rf"^shout: .*{says}"):
        here.task.apply_async(*call)

    assert {} == here.taken()


@pytest.mark.parametrize(
    ("value", "options", "says"),
    [
        (np.ones(2), {"serializer": "msgpack"}, "'json' and 'batch-msgpack' can$"),
        (memoryview(b"a"), {}, r"send bytes\(\) of it$"),
    ],
    ids=["array", "memoryview"],
)
def test_what_can_be_sent_instead_is_said(
    sender: Callable[..., Sender], value: Any, options: Any, says: str
) -> None:
    """Another serializer, or another type."""
    with pytest.raises(EncodeError, match=rf"^shout: the argument text is a .* {says}"):
        sender().task.apply_async((value,), **options)


def test_a_number_that_python_does_not_write_is_refused(sender: Callable[..., Sender]) -> None:
    """By Python's own error, which says why and names no argument, as with Celery."""
    here = warmed(sender())
    for send in (here.stock, here.task.apply_async):
        with pytest.raises(ValueError, match=r"^Exceeds the limit \(\d+ digits\)"):
            send(("a",), {"mark": 10**5000})

    assert {} == here.taken()


def test_a_task_of_a_class_is_called_as_any_other(sender: Callable[..., Sender]) -> None:
    """Celery does not check its arguments; the first call and later ones are sent alike."""
    here = sender()

    class Scale(BatchTask):
        name = "scale"

        def run(self, x: list[Any]) -> list[Any]:
            """Return what came."""
            return x

    scale = here.app.register_task(Scale())
    for item in (1, 2, LARGE):
        scale.delay(item)
    scale.delay_many([3, 4])
    for item in ({1}, [LARGE, {1}]):
        with pytest.raises(EncodeError, match=r"^scale: the argument x (is|has) a set"):
            scale.delay(item)

    (sent,) = here.taken().values()
    bodies = [json.loads(b64decode(each["body"]))[0] for each in sent]
    assert [[1], [2], [3], [4]] == [*bodies[:2], *bodies[3:]]
    assert len(sent[2]["body"]) < LARGE.nbytes  # it is stored beside its message


def test_a_callback_that_cannot_be_encoded_is_no_argument(sender: Callable[..., Sender]) -> None:
    """The error names the task, and says that it is the call."""
    here = warmed(sender())
    with pytest.raises(
        EncodeError, match=r"^shout: the serializer 'json' cannot encode the call: "
    ):
        here.task.apply_async(("a",), link=here.task.si(object()))

    assert {} == here.taken()


def test_rows_may_come_from_other_calls(sender: Callable[..., Sender]) -> None:
    """What is sent while rows are made is in the broker at once, so that it can be waited for."""
    here = warmed(sender())
    other = here.make("other")
    for _ in range(2):
        other.delay("warm")
    here.taken()

    def items() -> Iterator[str]:
        """Send calls of two tasks, and see them in the broker."""
        for task in (other, here.task):
            task.delay("inner")
            yield str(here.redis.llen("celery"))

    here.task.delay_many(items())

    assert ["('inner',)", "('inner',)", "('1',)", "('2',)"] == texts(here.taken())


def test_who_listens_from_some_row_on_hears_of_the_rest(sender: Callable[..., Sender]) -> None:
    """What is looked up once for many rows is looked up again when it has changed."""
    here = warmed(sender())
    heard: list[str] = []

    def hear(headers: Any, **_: Any) -> None:
        heard.append(headers["argsrepr"])

    def rows() -> Iterator[Any]:
        yield ("a",), None
        yield ("b",), None
        signals.before_task_publish.connect(hear, weak=False)
        yield ("c",), None
        signals.before_task_publish.disconnect(hear)
        yield ("d",), None

    results = here.task.apply_many(rows())

    assert ["('c',)"] == heard
    assert ["('a',)", "('b',)", "('c',)", "('d',)"] == texts(here.taken())
    assert 4 == len(results)


def test_calls_of_an_own_method_go_through_it(sender: Callable[..., Sender]) -> None:
    """A task class with its own way to send has each of many sent that way."""

    class Loud(BatchTask):
        abstract = True

        def apply_async(self, args: Any = None, *more: Any, **options: Any) -> Any:
            return super().apply_async((args[0].upper(),), *more, **options)

    here = sender()
    task = here.make("loud", base=Loud)
    task.delay_many(["a", "b", "c"])

    assert ["('A',)", "('B',)", "('C',)"] == texts(here.taken())


def test_a_receiver_may_send_and_wait(sender: Callable[..., Sender]) -> None:
    """What a receiver sends while many calls are gathered is in the broker at once."""
    others, seen = [], []

    def ask(sender: str, **_: Any) -> None:
        """Send a call of another task, and see it in the broker."""
        if sender == "shout" and others:
            others[0].delay("inner")
            seen.append(here.redis.llen("celery"))

    # First, since before 5.7 a sender may miss later receivers.
    signals.before_task_publish.connect(ask, weak=False)
    here = warmed(sender())
    others.append(here.make("other"))
    here.task.delay_many(["a", "b"])
    signals.before_task_publish.disconnect(ask)

    assert [1, 2] == seen
    assert 4 == len(here.taken()["celery"])


def test_learning_listens_to_nothing(sender: Callable[..., Sender]) -> None:
    """A thread that makes the first call of a kind opens no connection for its result."""
    here = sender()
    before = set(here.redis.pubsub_channels())
    thread = threading.Thread(target=here.task.delay, args=("a",))
    thread.start()
    thread.join()

    listener = listener_for(here.app)
    assert listener is not None
    own = {listener.channel.encode()}
    assert own == set(here.redis.pubsub_channels()) - (before - own)


def test_a_call_that_is_cancelled_before_it_leaves_is_not_sent(
    sender: Callable[..., Sender],
) -> None:
    """What leaves with the next turn of the loop and nobody wants any more stays here."""
    here = warmed(sender())

    async def send() -> None:
        """Send in a loop of its own."""
        unwanted = asyncio.create_task(here.task.adelay("unwanted"))
        await asyncio.sleep(0)  # it has begun, and not left
        unwanted.cancel()
        await here.task.adelay("wanted")
        with pytest.raises(asyncio.CancelledError):
            await unwanted

    asyncio.run(send())

    assert ["('wanted',)"] == texts(here.taken())


def test_a_call_that_is_cancelled_while_it_is_sent_is_told_of(
    sender: Callable[..., Sender], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is sent, and whoever asked for that learns its id when it is."""
    here = warmed(sender())
    send_buffer = Publisher.of(here.app)._send_buffer
    write, begun, validator = send_buffer._write, threading.Event(), threading.Event()

    def slowly(prepared_messages: Any) -> None:
        begun.set()
        assert validator.wait(20)
        write(prepared_messages)

    monkeypatch.setattr(send_buffer, "_write", slowly)

    async def send() -> Any:
        """Send in a loop of its own."""
        told: asyncio.Queue[Any] = asyncio.Queue()
        call = apply_async(here.task, ("late",), None, {}, on_abandoned=told.put_nowait)
        sending = asyncio.create_task(call)
        assert await asyncio.to_thread(begun.wait, 20)
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending
        validator.set()
        return await asyncio.wait_for(told.get(), 20)

    result = asyncio.run(send())

    assert [result.id] == [
        message["headers"]["id"] for each in here.taken().values() for message in each
    ]


def test_a_call_that_is_cancelled_as_it_is_sent_is_told(
    sender: Callable[..., Sender], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the result and the cancellation come in the same pass of the loop, none is lost."""
    here, told = warmed(sender()), []
    report = aio.LoopCall.report

    async def send() -> None:
        """Cancel right after the future has its result."""
        sending = asyncio.ensure_future(
            apply_async(here.task, ("late",), None, {}, on_abandoned=told.append)
        )

        def report_and_cancel(call: aio.LoopCall, outcome: Any) -> None:
            """Cancel when the result is there."""
            report(call, outcome)
            sending.cancel()

        monkeypatch.setattr(aio.LoopCall, "report", report_and_cancel)
        with pytest.raises(asyncio.CancelledError):
            await sending

    asyncio.run(send())

    assert [told[0].id] == [message["headers"]["id"] for message in here.taken()["celery"]]


def test_blocking_jobs_of_the_users_hold_up_no_call(sender: Callable[..., Sender]) -> None:
    """A call leaves though whatever the application runs in the loop's threads blocks there."""
    here = warmed(sender())
    validator = threading.Event()

    async def send() -> None:
        """Send while the loop's only other thread is busy."""
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(1))
        blocking = loop.run_in_executor(None, validator.wait, 60)
        try:
            async with asyncio.timeout(20):
                await here.task.adelay("a")
        finally:
            validator.set()
            await blocking

    asyncio.run(send())

    assert ["('a',)"] == texts(here.taken())


def test_coroutines_of_a_failed_write_have_errors_of_their_own(
    sender: Callable[..., Sender],
) -> None:
    """What one coroutine does to its error is not done to its neighbours'."""
    here = warmed(sender(task_publish_retry=False))
    here.redis.set("celery", "not a list")

    async def send() -> list[Any]:
        """Make calls that go in one write."""
        calls = (here.task.adelay(number) for number in range(5))
        return await asyncio.gather(*calls, return_exceptions=True)

    errors = asyncio.run(send())

    assert {OperationalError} == {type(error) for error in errors}
    assert 5 == len({id(error) for error in errors})


def test_what_is_sent_as_its_loop_ends_is_told_of(
    sender: Callable[..., Sender], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call that arrives after its loop was closed can still be called back."""
    here = warmed(sender())
    send_buffer = Publisher.of(here.app)._send_buffer
    write, begun, validator = send_buffer._write, threading.Event(), threading.Event()
    told: list[Any] = []

    def slowly(prepared_messages: Any) -> None:
        begun.set()
        assert validator.wait(20)
        write(prepared_messages)

    monkeypatch.setattr(send_buffer, "_write", slowly)

    async def send() -> None:
        """Leave a call behind."""
        call = apply_async(here.task, ("late",), None, {}, on_abandoned=told.append)
        leaving = asyncio.create_task(call)
        assert await asyncio.to_thread(begun.wait, 20)
        leaving.cancel()

    asyncio.run(send())
    validator.set()
    eventually(lambda: told[0])

    assert [told[0].id] == [message["headers"]["id"] for message in here.taken()["celery"]]
