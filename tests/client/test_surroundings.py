"""What stands around a call finds it as ever: receivers, parents, wrappers, green threads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from celery import Task, signals
from celery._state import task_join_will_block
from kombu import Queue

from celery_batch import BatchTask
from celery_batch.client.results.result import BatchResult
from tests.client.conftest import Sender
from tests.client.publish.test_same_message import ID, comparable
from tests.client.publish.test_sending import counted, warmed


@contextmanager
def heard(*kinds: Any) -> Iterator[list[dict[str, Any]]]:
    """Record what receivers of signals are told."""
    told: list[dict[str, Any]] = []

    def hear(**said: Any) -> None:
        """Keep what was said, and by which signal."""
        told.append({name: repr(value) for name, value in said.items()})

    for kind in kinds:
        kind.connect(hear, weak=False)
    try:
        yield told
    finally:
        for kind in kinds:
            kind.disconnect(hear)


@pytest.mark.parametrize("options", [{}, {"countdown": 0, "priority": 2, "queue": "other"}])
def test_receivers_are_told_what_celery_tells(
    sender: Callable[..., Sender], options: dict[str, Any]
) -> None:
    """The signals around a publication fire with the same arguments, in the same order."""
    here = warmed(sender(task_ignore_result=True))
    with heard(signals.before_task_publish, signals.after_task_publish, signals.task_sent) as told:
        here.stock(("a",), task_id=ID, **options)
        theirs = [*told]
        told.clear()
        here.task.apply_async(("a",), task_id=ID, **options)

        assert 3 == len(theirs)
        assert theirs == told


@contextmanager
def connected(kind: Any, receiver: Any) -> Iterator[None]:
    """Have a signal call a receiver; without an end it would do so in other tests, too."""
    kind.connect(receiver, weak=False)  # before 5.7 a dead weak one has senders miss later ones
    try:
        yield
    finally:
        kind.disconnect(receiver)


def test_what_receivers_change_is_in_the_message(sender: Callable[..., Sender]) -> None:
    """Headers that a receiver adds, as tracing libraries do, are sent, of many calls as of one."""
    here = warmed(sender())

    def mark(headers: dict[str, Any], body: Any, **_: Any) -> None:
        """Add a header that names the call."""
        headers["trace"] = body[0][0]

    with connected(signals.before_task_publish, mark), counted(here) as calls:
        here.task.delay("a")
        here.task.delay_many(["b", "c"])
    messages = here.taken()["celery"]

    assert ["a", "b", "c"] == [message["headers"]["trace"] for message in messages]
    assert 2 == calls["lpush"]


def test_receivers_that_come_later_are_told(sender: Callable[..., Sender]) -> None:
    """A receiver that is connected between two calls hears of the second."""
    here = warmed(sender())
    with heard(signals.before_task_publish) as told:
        here.task.delay("a")

    assert 1 == len(told)
    assert 1 == len(here.taken()["celery"])


def test_a_wrapped_method_is_passed(
    sender: Callable[..., Sender], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who has wrapped Celery's own `apply_async`, as monitors do, sees every call."""
    here = warmed(sender())
    seen: list[Any] = []
    own = Task.apply_async

    def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
        """Note the call."""
        seen.append(args)
        return own(self, *args, **kwargs)

    monkeypatch.setattr(Task, "apply_async", wrapper)
    here.task.delay("a")
    here.task.delay_many(["b"])

    assert [("a",), ("b",)] == [args for args, _ in seen]
    assert 2 == len(here.taken()["celery"])


def test_an_overridden_method_is_passed(sender: Callable[..., Sender]) -> None:
    """A task class with an `apply_async` of its own sees every call of many."""
    here = sender()

    class Tenant(BatchTask):
        abstract = True

        def apply_async(self, args: Any = None, kwargs: Any = None, **options: Any) -> Any:
            """Send with the tenant's queue."""
            return super().apply_async(args, kwargs, **{"queue": "tenant", **options})

    @here.app.task(base=Tenant, name="ours")
    def ours(text: list[Any]) -> list[Any]:
        return text

    ours.delay_many(["a", "b"])

    assert ["tenant"] == list(here.taken())


@pytest.mark.parametrize("inherits", [False, True])
def test_a_task_that_calls_is_the_parent(
    sender: Callable[..., Sender],
    inherits: bool,  # noqa: FBT001
) -> None:
    """A call inside a task names it as parent, and is in its trail, as with Celery."""
    here = warmed(sender(task_inherit_parent_priority=inherits))
    trails, found = [], []

    @here.app.task(bind=True, name="parent")
    def parent(self: Any, how: str) -> None:
        """Call in one way or the other."""
        send = here.stock if how == "stock" else here.task.apply_async
        for _ in range(2):
            send(("a",), task_id=ID)
            found.append(comparable(here.taken()))
        trails.append([each.id for each in self.request.children])

    request = {"called_directly": False, "delivery_info": {"priority": 4}, "root_id": "root"}
    for how in ("stock", "ours"):
        parent.push_request(id="parent-id", children=[], args=(how,), **request)
        from celery._state import _task_stack  # noqa: PLC0415

        _task_stack.push(parent)
        parent.run(how)
        _task_stack.pop()
        parent.pop_request()

    assert found[0]
    assert found[:2] == found[2:]
    assert [[ID, ID], [ID, ID]] == trails


def test_an_expiring_queue_goes_on_expiring(sender: Callable[..., Sender]) -> None:
    """The expiry of a queue is set anew with each message, where kombu knows of it."""
    here = sender(task_queues=[Queue("celery", expires=60)])
    here.stock(("a",))
    is_set = here.redis.pttl("celery") > 0  # on Redis since kombu 5.7
    for _ in range(3):
        here.redis.persist("celery")
        here.task.delay("a")
        assert is_set is (0 < here.redis.pttl("celery") <= 60_000)


def test_arguments_are_checked_unless_the_task_says_no(sender: Callable[..., Sender]) -> None:
    """Wrong arguments raise where the call is made; with ``typing=False`` they are sent."""
    here = warmed(sender())
    with pytest.raises(TypeError, match="missing 1 required positional argument"):
        here.task.delay()
    free = here.make("free", typing=False)
    for _ in range(2):
        free.delay(1, 2, 3, 4)

    assert 2 == len(here.taken()["celery"])


def test_green_threads_share_writes(broker: str, in_python: Callable[..., str]) -> None:
    """With gevent's monkey patches, many greenlets send at once and none hangs."""
    pytest.importorskip("gevent")
    code = f"""
from gevent import monkey; monkey.patch_all()
import gevent
from celery import Celery
from celery_batch import BatchTask
app = Celery("green", broker={broker!r}, backend={broker!r})
@app.task(base=BatchTask, name="shout")
def shout(text): return text
shout.delay("first")
ids = [job.get(timeout=20).id for job in [gevent.spawn(shout.delay, n) for n in range(200)]]
with app.connection_for_read() as connection:
    print(len(set(ids)), connection.default_channel.client.llen("celery"))
"""
    assert "200 201" == in_python(code)


def test_a_process_that_sends_imports_no_models(in_python: Callable[..., str]) -> None:
    """Making a task loads neither torch nor the worker's side, nor what listens."""
    code = """
import sys
from celery import Celery
from celery_batch import BatchTask
app = Celery("light", broker="memory://")
@app.task(base=BatchTask, name="shout")
def shout(text): return text
app.finalize()
heavy = ("torch", "celery_batch.worker", "celery_batch.client.publish.publisher",
         "celery_batch.client.results.listener")
print([name for name in heavy if name in sys.modules])
"""
    assert "[]" == in_python(code)


def test_nobody_subscribes_to_what_is_told(sender: Callable[..., Sender]) -> None:
    """Celery's path subscribes to no result that our listener hears of, and to all others."""
    here = warmed(sender())
    with counted(here) as ours:
        result = here.task.apply_async(("a",), countdown=1)
    with counted(here) as theirs:
        other = here.stock(("a",))
        other.backend.result_consumer._pubsub.get_message(timeout=60)

    assert isinstance(result, BatchResult)
    assert "subscribe" not in ours
    assert 1 == theirs["subscribe"]


def test_others_may_wait_while_a_call_is_sent(sender: Callable[..., Sender]) -> None:
    """A call on Celery's path keeps no other thread from waiting for its results."""
    here = warmed(sender())
    allowed = []

    def look(**_: Any) -> None:
        """Look whether results may be waited for now."""
        allowed.append(not task_join_will_block())

    with connected(signals.before_task_publish, look):
        here.task.delay("a")

    assert [True] == allowed
