"""The processes that run the tests of ``--forks``."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from tests.services.shop import ROOT

#: Tests that print their process; those of a group share a fixture.
_TESTS = """
import os
import warnings
import pytest

@pytest.fixture(scope="session")
def shared(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shared")
    yield folder
    (folder / "end").write_text("")
    print("fixture ends in", os.getpid())

@pytest.mark.xdist_group("together")
@pytest.mark.parametrize("number", range(4))
def test_together(number, shared, record_property):
    (shared / str(number)).touch()
    record_property("process", os.getpid())
    record_property("files", len(os.listdir(shared)))

@pytest.mark.parametrize("number", range(4))
def test_apart(number, record_property):
    record_property("process", os.getpid())

def test_warns():
    warnings.warn("beware", stacklevel=1)

def test_fails():
    print("said before")
    assert 1 == 2
"""

_LOST = """
import os

def test_a():
    os._exit(3)
"""

_HELD = """
import os, time

def test_a():
    if os.fork():
        os._exit(3)
    time.sleep(20)
"""

_ENDLESS = """
import time

def test_a():
    assert 0

def test_b():
    time.sleep(1000)
"""

_COMPUTES = """
import torch

NUMBERS = torch.ones(10**6)

def test_a():
    pass
"""

Run = Callable[..., tuple[int, str]]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Run a module of tests with two processes, and return what pytest says."""

    def run(tests: str, *options: str) -> tuple[int, str]:
        (tmp_path / "test_theirs.py").write_text(tests)
        command = [sys.executable, "-m", "pytest", "-p", "tests.forks", "--forks=2"]
        plugins = ["-p", "no:randomly", "-p", "no:schemathesis", "-p", "no:cacheprovider"]
        folder = ["-c", "/dev/null", "--rootdir", str(tmp_path), str(tmp_path)]
        with (tmp_path / "said").open("w+") as file:  # a pipe would wait for all who hold it
            done = subprocess.run(
                [*command, *plugins, *options, *folder],
                cwd=ROOT,
                stdout=file,
                stderr=file,
                check=False,
                timeout=60,
            )
            file.seek(0)
            return done.returncode, file.read()

    return run


def test_every_test_is_reported_once(run: Run, tmp_path: Path):
    """Groups have one process and its fixtures each; failures, output and warnings are shown."""
    report = tmp_path / "report.xml"
    code, said = run(_TESTS, f"--junitxml={report}", "-o", "junit_family=xunit1")
    found = {
        case.get("name", ""): {
            each.get("name"): each.get("value") for each in case.iter("property")
        }
        for case in ET.parse(report).iter("testcase")  # noqa: S314 (written by pytest, just now)
    }
    together = [found[f"test_together[{number}]"] for number in range(4)]

    assert 1 == code
    assert "1 failed, 9 passed, 1 warning" in said
    assert "said before" in said
    assert "UserWarning: beware" in said
    assert 10 == len(found)
    assert 1 == len({each["process"] for each in together})
    assert ["1", "2", "3", "4"] == [each["files"] for each in together]
    assert 2 >= len({each["process"] for each in found.values() if each})


@pytest.mark.parametrize("tests", [_LOST, _HELD], ids=["lost", "its child goes on"])
def test_a_lost_process_fails_the_run(run: Run, tests: str):
    """The run ends, and says which test it was."""
    code, said = run(tests)

    assert 1 == code
    assert "a test process ended with 3 while it ran test_theirs.py::test_a" in said


def test_a_limit_of_failures_holds(run: Run):
    """With -x the first failure interrupts the tests of other processes."""
    code, said = run(_ENDLESS, "-x")

    assert 1 == code
    assert "stopping after 1 failures" in said
    assert "1 failed in" in said


def test_errors_of_collection_stop_the_run(run: Run):
    """No test runs where one cannot be imported."""
    code, said = run("import nothing_of_this_name\n")

    assert 2 == code
    assert "1 error" in said


@pytest.mark.skipif(os.cpu_count() == 1, reason="OpenMP has no threads there")
def test_a_module_that_computes_with_torch_is_refused(run: Run):
    """Where OpenMP has threads before the fork, computations after it wait for ever."""
    code, said = run(_COMPUTES)

    assert 4 == code
    assert "compute with torch" in said
