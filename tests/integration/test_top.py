"""``celery batch top`` beside a loaded worker, on a terminal and in a pipe."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import threading

import pytest

from tests.services.place import eventually
from tests.services.shop import CELERY, environment_of
from tests.services.terminal import Terminal

COMMAND = (CELERY, "-A", "tests.services.tasks", "batch", "top")


@pytest.fixture
def load(shop):
    """Keep a worker busy, from a thread, until the test ends."""
    stop = threading.Event()

    def send():
        while not stop.wait(0.05):
            shop.double.delay_many(range(20))

    thread = threading.Thread(target=send)
    thread.start()
    yield
    stop.set()
    thread.join()


@pytest.mark.usefixtures("load")
def test_a_person_watches(shop):
    """On a terminal the frame comes again and again, with rates, until Ctrl-C."""
    worker = shop.worker("-c", "1")
    env = {**os.environ, **shop.environment}
    with Terminal([*COMMAND, "--interval", "0.5"], env=env) as terminal:
        sizes = lambda text: "sizes of shop.double" in text and "9 to 16" in text  # noqa: E731
        terminal.read_until(sizes, timeout=90)
        terminal.read_until(lambda text: text.count("celery batch top") > 3)
        terminal.process.send_signal(signal.SIGINT)
        code = terminal.read_to_the_end()

    assert 0 == code
    assert worker.name in terminal.text
    assert terminal.raw.index("\x1b[?1049h") < terminal.raw.index("\x1b[?1049l")  # and back


@pytest.mark.usefixtures("load")
def test_a_script_asks_once(shop):
    """``--once`` prints one plain frame, with rates, and ends."""
    worker = shop.worker("-c", "1")

    def answered():
        done = subprocess.run(
            [*COMMAND, "--once", "--interval", "2"],
            env={**os.environ, **shop.environment},
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
        return done.stdout if "sizes of shop.double" in done.stdout else None

    shown = eventually(answered, "two answers of the worker's in time", timeout=90)
    lines = shown.splitlines()
    task = next(line.split() for line in lines if line.startswith("shop.double"))

    assert "\x1b" not in shown
    assert "1" == task[1]
    assert float(task[task.index("of") - 3].replace(",", "")) > 0
    assert any(line.startswith(worker.name) for line in lines)
    assert re.search(r"messages in the broker: .*\bcelery \d", shown)


def test_the_broker_is_away():
    """Without a broker it says so and goes on looking; in a pipe frame follows frame."""
    env = {**os.environ, **environment_of("redis://:secret@127.0.0.1:1/0")}
    command = [*COMMAND, "--interval", "0.1"]
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, text=True) as process:
        seen = 0
        for line in process.stdout:
            assert "secret" not in line
            seen += "The broker does not answer" in line
            if seen == 2:
                break
        process.terminate()
        process.stdout.read()

    assert 0 == process.returncode


def test_a_script_hears_that_the_broker_is_away():
    """``--once`` ends with 1 then, and promises no further look."""
    env = {**os.environ, **environment_of("redis://127.0.0.1:1/0")}
    done = subprocess.run(
        [*COMMAND, "--once", "--interval", "0.1"],
        env=env,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
        timeout=120,
    )

    assert 1 == done.returncode
    assert "The broker does not answer" in done.stdout
    assert "asked again" not in done.stdout
