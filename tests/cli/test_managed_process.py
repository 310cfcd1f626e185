"""Servers end with the process that started them, whatever ends it."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
import time

import pytest

from celery_batch.processes.managed_process import ManagedProcess, ServerFailed, wait_until

#: A server that refuses to end on SIGTERM, and so does its own child.
STUBBORN = """
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
os.fork()
os.write(1, b"up\\n")  # in one piece, as two processes write
time.sleep(600)
"""

#: A parent of a stubborn server: starts it as asked, says so, lives on.
PARENT = """
import os, subprocess, sys, threading, time
from pathlib import Path
from celery_batch.processes.managed_process import ManagedProcess, wait_until
server, folder, pipe, way = sys.argv[1:]
folder = Path(folder)

def start():
    global child
    child = ManagedProcess([sys.executable, "-c", server], folder / "server.log",
                  pass_fds=[int(pipe)], folder=folder)

if way == "from a thread":
    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
else:
    start()
os.set_inheritable(int(pipe), False)
wait_until(lambda: "" if child.log.read_text().count("up") == 2 else "silent", [child],
           what="server", timeout=30)
if way == "beside a fork":
    copy = os.fork()
    if copy == 0:
        os.close(int(pipe))
        time.sleep(600)
    print(copy, flush=True)
if way == "beside a careless program":
    other = subprocess.Popen(["sleep", "600"], close_fds=False)
    print(other.pid, flush=True)
if way == "by returning":
    sys.exit()
print("started", flush=True)
time.sleep(600)
"""


def all_holders_gone(pipe, seconds):
    """Say whether every process with the pipe's other end is gone within these seconds."""
    return bool(select.select([pipe], [], [], seconds)[0]) and not os.read(pipe, 1)


def run_parent(tmp_path, way):
    """Return a parent process whose server runs, and a pipe that both of them hold open."""
    folder = tmp_path / "served"
    folder.mkdir()
    reading, writing = os.pipe()
    command = [sys.executable, "-c", PARENT, STUBBORN, str(folder), str(writing), way]
    parent = subprocess.Popen(command, pass_fds=[writing], stdout=subprocess.PIPE, text=True)
    os.close(writing)
    return parent, reading, folder


@pytest.fixture
def start(tmp_path):
    """Start a Python program as a server that ends with the test."""
    children = []

    def start(program, name="server", **options):
        command = [sys.executable, "-c", program]
        children.append(ManagedProcess(command, tmp_path / f"{name}.log", **options))
        return children[-1]

    yield start
    for child in children:
        child.stop(grace=0)


def has_said(child, word):
    """Return a question for `wait_until`: has the server printed this word?"""
    return lambda: "" if word in child.log.read_text() else f"it has not said {word}"


@pytest.mark.parametrize(
    "way", ["plainly", "from a thread", "beside a fork", "beside a careless program"]
)
def test_killed_parent_takes_all_along(tmp_path, way):
    """SIGKILL of the parent ends its server, the server's child and the folder soon."""
    parent, pipe, folder = run_parent(tmp_path, way)
    others = []
    while (line := parent.stdout.readline()) and line != "started\n":
        others.append(int(line))
    was_running = not all_holders_gone(pipe, 0)
    parent.kill()
    parent.wait()
    gone = all_holders_gone(pipe, 60)
    for other in others:
        os.kill(other, signal.SIGKILL)
    parent.stdout.close()
    os.close(pipe)

    assert was_running
    assert ("beside" in way) == len(others)
    assert gone
    assert not folder.exists()


def test_parent_that_just_returns_takes_all_along(tmp_path):
    """A parent that ends without stopping its server leaves no process and no folder."""
    parent, pipe, folder = run_parent(tmp_path, "by returning")
    output, _ = parent.communicate(timeout=30)
    gone = all_holders_gone(pipe, 60)
    os.close(pipe)

    assert output == ""
    assert gone
    assert not folder.exists()


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no signal for this")
def test_killed_reaper_takes_the_server_along(start):
    """SIGKILL of the reaper itself does not leave its server behind."""
    reading, writing = os.pipe()
    child = start("import time; print('up', flush=True); time.sleep(600)", pass_fds=[writing])
    os.close(writing)
    wait_until(has_said(child, "up"), [child], what="server", timeout=30)
    os.kill(child._reaper.pid, signal.SIGKILL)
    gone = all_holders_gone(reading, 60)
    os.close(reading)

    assert gone
    assert child._reaper.wait() == -signal.SIGKILL


def test_a_signal_to_the_reaper_ends_the_server(start):
    """SIGTERM sent to the reaper ends the server too."""
    child = start("import time; print('up', flush=True); time.sleep(600)")
    wait_until(has_said(child, "up"), [child], what="server", timeout=30)
    os.kill(child._reaper.pid, signal.SIGTERM)

    assert child.wait(60)
    assert child.exit_code == 128 + signal.SIGTERM


def test_stop_lets_the_server_finish(start):
    """A server that needs a moment after SIGTERM gets it, and `stop` waits for it."""
    program = """
import signal, sys, time
def finish(*_):
    time.sleep(1)
    print("finished", flush=True)
    sys.exit(7)
signal.signal(signal.SIGTERM, finish)
print("up", flush=True)
while True:
    time.sleep(0.1)  # a signal just before a sleep is handled after it
"""
    child = start(program)
    wait_until(has_said(child, "up"), [child], what="server", timeout=30)
    child.stop(grace=30)

    assert child.log.read_text() == "up\nfinished\n"
    assert child.exit_code == 7


def test_stop_kills_what_does_not_end(start):
    """A server that ignores SIGTERM is killed when its grace is over, its children with it."""
    reading, writing = os.pipe()
    child = start(STUBBORN, pass_fds=[writing])
    os.close(writing)
    wait_until(has_said(child, "up\nup"), [child], what="server", timeout=30)
    child.stop(grace=0.2)
    gone = all_holders_gone(reading, 0)
    os.close(reading)

    assert gone
    assert child.exit_code == 128 + signal.SIGKILL


def test_children_of_an_ended_server_are_ended(start):
    """What a crashed server leaves running is killed."""
    reading, writing = os.pipe()
    child = start("import os, time; os.fork() or time.sleep(600)", pass_fds=[writing])
    os.close(writing)
    ended = child.wait(60)
    gone = all_holders_gone(reading, 60)
    os.close(reading)

    assert ended
    assert gone


def test_interrupted_stop_still_ends_the_server(start, monkeypatch):
    """A second Ctrl-C, during `stop`, cuts the grace short and leaves nothing behind."""
    reading, writing = os.pipe()
    child = start(STUBBORN, pass_fds=[writing])
    os.close(writing)
    wait_until(has_said(child, "up\nup"), [child], what="server", timeout=30)
    await_end = child._await_end

    def interrupted():
        threading.Timer(0.3, os.kill, [os.getpid(), signal.SIGINT]).start()
        await_end()

    with monkeypatch.context() as patch:
        patch.setattr(child, "_await_end", interrupted)
        with pytest.raises(KeyboardInterrupt):
            child.stop(grace=600)
    gone = all_holders_gone(reading, 60)
    os.close(reading)

    assert gone


def test_stop_needs_no_lock_that_an_interrupted_wait_has_left(start):
    """A Ctrl-C within a call of subprocess may leave its lock held; nothing waits for it."""
    child = start("import time; print('up', flush=True); time.sleep(600)")
    wait_until(has_said(child, "up"), [child], what="server", timeout=30)
    lock = child._reaper._waitpid_lock
    lock.acquire()
    stopping = threading.Thread(target=child.stop, daemon=True)
    stopping.start()
    stopping.join(30)
    has_stopped = not stopping.is_alive()
    lock.release()

    assert has_stopped


def test_a_forked_copy_does_not_stop_the_server(start):
    """A process forked from ours that cleans up after itself leaves our server alone."""
    child = start("import time; print('up', flush=True); time.sleep(600)")
    wait_until(has_said(child, "up"), [child], what="server", timeout=30)
    copy = os.fork()
    if copy == 0:
        child.stop()
        os._exit(0)
    os.waitpid(copy, 0)

    assert not child.wait(0.3)


def test_dead_server_is_reported_with_its_log(start):
    """Waiting for a server that has died raises at once and shows what it said last."""
    child = start(
        "import sys; print('first', flush=True); sys.exit('no model here')", name="worker"
    )
    began = time.monotonic()
    with pytest.raises(ServerFailed) as failure:
        wait_until(lambda: "silent", [child], what="worker", timeout=60)

    assert time.monotonic() - began < 30
    assert "worker ended with exit code 1\n" in str(failure.value)
    assert f"the end of {child.log}\nfirst\nno model here" in str(failure.value)
    assert repr(child) == "<ManagedProcess worker ended with 1>"


def test_waiting_gives_up_with_the_reason(start):
    """A server that never gets ready is reported with the reason it gave, and its log."""
    child = start("import time; print('loading', flush=True); time.sleep(600)")
    wait_until(has_said(child, "loading"), [child], what="server", timeout=30)
    with pytest.raises(ServerFailed) as failure:
        wait_until(lambda: "no model", [child], what="web", timeout=0.1)

    assert str(failure.value).startswith("web not ready after 0.1 s: no model\n")
    assert str(failure.value).endswith("server.log\nloading")


def test_tail_shows_the_last_lines_of_a_long_log(start):
    """Of a log with many lines the last ones are shown, whole."""
    child = start("print(*range(5000), sep='\\n')")
    child.wait(60)

    assert child.tail(lines=3).splitlines()[1:] == ["4997", "4998", "4999"]
