"""Telling a dead worker from a living one by what it wrote about itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from celery_batch.worker.redis.owner import describe_self, is_dead, machine

pytestmark = pytest.mark.skipif(not machine(), reason="this system tells nothing of processes")


def described(**facts: object) -> str:
    """Return this process' own description with other facts."""
    return json.dumps({**json.loads(describe_self("w1@here")), **facts})


def test_a_running_process_is_not_dead():
    """We live, and say so with our worker's name."""
    description = describe_self("w1@here")

    assert json.loads(description)["node"] == "w1@here"
    assert json.loads(description)["pid"] == os.getpid()
    assert not is_dead(description)


def test_a_process_that_has_ended_is_dead():
    """Its number is free again."""
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()

    assert is_dead(described(pid=process.pid))


def test_a_process_not_yet_collected_by_its_parent_is_dead():
    """A zombie runs nothing any more."""
    with subprocess.Popen([sys.executable, "-c", ""], stdout=subprocess.PIPE) as process:
        process.stdout.read()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)

        assert is_dead(described(pid=process.pid))


def test_a_number_that_was_given_again_is_not_the_old_process():
    """The start of a process tells it from a later one of the same number."""
    assert is_dead(described(started="1"))


@pytest.mark.parametrize(
    "description",
    [
        described(machine="elsewhere", pid=2**22 + 1),
        described(machine=""),
        "",
        "{",
        "[]",
        "7",
        described(pid="?"),
    ],
    ids=["elsewhere", "nowhere", "nothing", "broken", "list", "number", "no number"],
)
def test_what_cannot_be_known_is_no_death(description: str):
    """A process of another machine, and nonsense, are left to the lease."""
    assert not is_dead(description)
