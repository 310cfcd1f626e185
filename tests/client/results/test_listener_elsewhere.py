"""Results are heard of in forks, in gevent, in event loops, behind TLS and passwords."""

from __future__ import annotations

import textwrap
from collections.abc import Callable

import pytest

from celery_batch.processes.redis_server import RedisServer
from tests.services.setup import emptied

_START = """
    import asyncio, os, sys, threading, time
    from uuid import uuid4
    from celery import Celery
    import warnings
    warnings.simplefilter("ignore")
    from celery_batch.client.results.listener import listener_for
    from celery_batch.client.results.result import BatchResult
    from celery_batch.protocol import write_replies

    app = Celery("asker", broker=sys.argv[-1], backend=sys.argv[-1])

    def ask(number):
        results = [BatchResult(str(uuid4()), app=app) for _ in range(number)]
        for result in results:
            registry = listener_for(app).registry
            result.pending_result = registry.expect(result.pending_result)
        return results

    def store(result, value):
        app.backend.store_result(result.id, value, "SUCCESS")

    def answer(result, value, channel=None):
        store(result, value)
        key = app.backend.get_key_for_task(result.id)
        for payload in write_replies([(result.id, app.backend.client.get(key))]):
            app.backend.client.publish(channel or listener_for(app).channel, payload)
"""


@pytest.fixture
def run(redis_server: RedisServer, in_python: Callable[..., str]) -> Callable[[str], str]:
    """Run a snippet with a client of its own; return what it prints."""
    url = emptied(redis_server)

    def run(code: str, before: str = "") -> str:
        whole = before + textwrap.dedent(_START).replace("sys.argv[-1]", repr(url))
        return in_python(whole + textwrap.dedent(code))

    return run


def test_listener_is_made_again_after_a_fork(run: Callable[[str], str]):
    """A forked process has an ear of its own, and finds what was asked before."""
    printed = run(
        """
        before, answered = ask(2)
        answer(answered, "answered")
        assert answered.get(timeout=20) == "answered"
        parent = listener_for(app).channel
        pid = os.fork()
        if not pid:
            assert listener_for(app).channel != parent
            (mine,) = ask(1)
            answer(mine, "mine")
            assert mine.get(timeout=20) == "mine"
            assert answered.get() == "answered"
            assert before.get(timeout=20) == "before"
            async def wait():
                return await before
            assert asyncio.run(wait()) == "before"
            assert before.future().result(20) == "before"
            os._exit(0)
        time.sleep(0.1)
        answer(before, "before", parent)
        assert os.waitpid(pid, 0)[1] == 0
        (after,) = ask(1)
        answer(after, "after")
        print(before.get(timeout=20), after.get(timeout=20), listener_for(app).channel == parent)
        """
    )

    assert "before after True" == printed


def test_callback_of_what_was_asked_before_a_fork(run: Callable[[str], str]):
    """A callback is called in a fork too, whoever was told of the result."""
    printed = run(
        """
        (before,) = ask(1)
        parent = listener_for(app).channel
        pid = os.fork()
        if not pid:
            called = threading.Event()
            before.then(lambda result: result.get() == "before" and called.set())
            os._exit(0 if called.wait(20) else 1)
        time.sleep(0.1)
        answer(before, "before", parent)
        print(os.waitpid(pid, 0)[1])
        """
    )

    assert "0" == printed


def test_future_of_what_was_asked_before_a_fork(run: Callable[[str], str]):
    """A future is done in a fork too, and first of all what is done there."""
    printed = run(
        """
        before, never = ask(2)
        store(before, "before")
        pid = os.fork()
        if not pid:
            never.future().cancel()
            print(before.future().result(10), flush=True)
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
        """
    )

    assert "before" == printed


@pytest.mark.parametrize("way", ["then", "future", "_cache"])
def test_fork_while_the_inbox_is_busy(run: Callable[[str], str], way: str):
    """What was asked or heard before a fork needs no lock of the process that was forked."""
    printed = run(
        f"""
        import signal
        heard, unheard = ask(2)
        answer(heard, 1)
        while heard.pending_result.value is None:
            time.sleep(0.01)
        unheard.then(str)
        store(unheard, 2)
        taken, done = threading.Event(), threading.Event()
        def hold():
            with heard.pending_result.registry._lock:
                taken.set()
                done.wait()
        threading.Thread(target=hold).start()
        taken.wait()
        pid = os.fork()
        if not pid:
            signal.alarm(60)  # rather than hang
            values = []
            for result in (heard, unheard):
                if "{way}" == "then":
                    result.then(lambda result: values.append(result.get()))
                elif "{way}" == "future":
                    values.append(result.future().result())
                else:
                    result._cache
                    values.append(result.get())
            listener_for(app)  # as in Celery, somebody has to look
            while len(values) < 2:
                time.sleep(0.01)
            assert values == [1, 2], values
            os._exit(0)
        status = os.waitpid(pid, 0)[1]
        done.set()
        print("status", status)
        """
    )

    assert "status 0" == printed.splitlines()[-1]


def test_fork_while_the_listener_is_busy(run: Callable[[str], str]):
    """A fork at any moment, with locks held by threads that it does not have, hangs nobody."""
    printed = run(
        """
        ask(1)  # a fork amid another thread's import hangs in Python itself, whoever imports
        stop = threading.Event()
        def busy():
            while not stop.is_set():
                results = ask(50)
                for result in results:
                    result.pending_result.registry.add_callback(result.pending_result, print)
                    result.pending_result.registry.remove_callback(result.pending_result, print)
        threads = [threading.Thread(target=busy) for _ in range(4)]
        for thread in threads:
            thread.start()
        codes = []
        for n in range(10):
            pid = os.fork()
            if not pid:
                (mine,) = ask(1)
                answer(mine, n)
                os._exit(0 if mine.get(timeout=20) == n else 1)
            codes.append(os.waitpid(pid, 0)[1])
        stop.set()
        for thread in threads:
            thread.join()
        print(sum(codes))
        """
    )

    assert "0" == printed


def test_fork_while_the_app_is_configured(run: Callable[[str], str]):
    """A fork asks and waits, though a thread that it does not have was loading the settings."""
    printed = run(
        """
        from celery.app.base import PendingConfiguration
        begun, stop = threading.Event(), threading.Event()
        def load():
            with PendingConfiguration.data.lock:
                begun.set()
                stop.wait(20)
        threading.Thread(target=load, daemon=True).start()
        begun.wait(20)
        pid = os.fork()
        if not pid:
            (mine,) = ask(1)
            answer(mine, "mine")
            os._exit(0 if mine.get(timeout=20) == "mine" else 1)
        stop.set()
        print(os.waitpid(pid, 0)[1])
        """
    )

    assert "0" == printed


@pytest.mark.parametrize("name", ["_transport_options", "retry_policy", "client"])
def test_fork_while_another_thread_uses_a_backend(run: Callable[[str], str], name: str):
    """A fork asks, stores and waits, though a thread that it does not have was just storing."""
    printed = run(
        f"""
        from celery.backends.redis import RedisBackend
        begun, stop = threading.Event(), threading.Event()
        def use():
            with vars(RedisBackend)["{name}"].lock:  # kombu has one for all backends
                begun.set()
                stop.wait(80)
        ask(1)
        threading.Thread(target=use, daemon=True).start()
        begun.wait(20)
        pid = os.fork()
        if not pid:
            import signal
            signal.alarm(60)  # rather than hang
            (mine,) = ask(1)
            answer(mine, "mine")
            os._exit(0 if mine.get(timeout=20) == "mine" else 1)
        status = os.waitpid(pid, 0)[1]
        stop.set()
        print("status", status)
        """
    )

    assert "status 0" == printed.splitlines()[-1]


def test_waiting_in_gevent(run: Callable[..., str]):
    """In a process patched by gevent, greenlets wait without keeping others from running."""
    pytest.importorskip("gevent")
    printed = run(
        """
        import gevent
        results = ask(100)
        ticks = []
        def tick():
            while True:
                ticks.append(1)
                gevent.sleep(0.01)
        gevent.spawn(tick)
        waiting = [gevent.spawn(result.get, 20) for result in results]
        with gevent.Timeout(20):
            while len(ticks) <= 10:
                gevent.sleep(0.01)
        for n, result in enumerate(results[:50]):
            answer(result, n)
        for n, result in enumerate(results[50:]):
            store(result, 50 + n)
        gevent.joinall(waiting, timeout=30)
        print([greenlet.value for greenlet in waiting] == list(range(100)))
        """,
        "from gevent import monkey; monkey.patch_all()\n",
    )

    assert "True" == printed


def test_waiting_in_one_event_loop(run: Callable[[str], str]):
    """As in an ASGI server: coroutines await results that are asked for while others wait."""
    printed = run(
        """
        async def request(n):
            (result,) = await asyncio.to_thread(ask, 1)
            asyncio.get_running_loop().run_in_executor(None, answer, result, n)
            async with asyncio.timeout(20):
                return await result

        async def serve():
            return await asyncio.gather(*(request(n) for n in range(200)))

        print(asyncio.run(serve()) == list(range(200)), asyncio.run(serve()) == list(range(200)))
        """
    )

    assert "True True" == printed


def test_program_ends_while_it_listens(run: Callable[[str], str]):
    """A program that has waited for results ends at once, and silently."""
    printed = run(
        """
        results = ask(3)
        future = results[0].future()
        answer(results[1], 1)
        print(results[1].get(timeout=20))
        """
    )

    assert "1" == printed
