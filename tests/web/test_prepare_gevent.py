"""A web process under gevent while RabbitMQ hangs: its real process is stopped."""

from __future__ import annotations

import subprocess
import sys

import psutil

from tests.services.servers.rabbitmq import RabbitMQServer

#: Seconds for two tries, each with a new connection; far above that nothing ends them.
ENDED, HUNG = 15.0, 45.0

#: The connections have sent control commands alone, so the first call of a task declares its
#: queue and waits for RabbitMQ's reply.
PROGRAM = """
from gevent import monkey
monkey.patch_all()
import sys, time, gevent
from celery import Celery
from celery_batch import BatchTask, prepare

app = Celery("gevent_calls", broker=sys.argv[1], backend="cache+memory://")
prepare(app)

@app.task(base=BatchTask)
def echo(x):
    return x

def failure(call):
    try:
        call()
    except Exception as error:
        return type(error).__name__

revokes = [gevent.spawn(app.control.revoke, "an-id") for _ in range(3)]
gevent.joinall(revokes, raise_error=True)
print("ready", flush=True)
sys.stdin.readline()
began = time.monotonic()
calls = [gevent.spawn(failure, lambda: echo.delay(1)) for _ in range(3)]
gevent.joinall(calls)
print(time.monotonic() - began, *[each.value for each in calls], flush=True)
"""


def test_a_call_ends_while_rabbitmq_hangs(rabbitmq_server: RabbitMQServer):
    """A call of a greenlet fails within the time-outs of `prepare` while RabbitMQ hangs."""
    program = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, rabbitmq_server.url],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert program.stdout is not None
    with program:
        assert "ready\n" == program.stdout.readline()
        processes = psutil.Process(rabbitmq_server.child.pid).children()
        for each in processes:
            each.suspend()
        try:
            said, _ = program.communicate("\n", timeout=HUNG)
        finally:
            for each in processes:
                each.resume()
            program.kill()

    seconds, *failures = said.split()

    assert ["OperationalError"] * 3 == failures
    assert float(seconds) < ENDED
