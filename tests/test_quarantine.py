"""What the gate lets pass: pytest runs over made-up tests, in processes of their own."""

from __future__ import annotations

import datetime as dt
from xml.etree import ElementTree as ET

import pytest

from tests import quarantine
from tests.services.shop import ROOT

pytest_plugins = ["pytester"]

#: A test that fails the first time it is run, as its file remembers.
FAILS_ONCE = """
    import pathlib

    def test_fails_once():
        seen = pathlib.Path(__file__).with_suffix(".seen")
        first = not seen.exists()
        seen.touch()
        assert not first, "the first try"
"""

ENTRY = '[[test]]\nid = "{id}"\nreason = "its server starts slowly"\nsince = 2026-11-23\n'


@pytest.fixture(autouse=True)
def _few_plugins(monkeypatch):
    """Have pytest begin quickly: it loads no plugin but those that are named."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTEST_PLUGINS", "xdist.plugin")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


@pytest.fixture(params=[(), ("-n", "1", "--dist", "loadgroup")], ids=["alone", "xdist"])
def run(request, pytester):
    """Run pytest with the plugin over a test that fails once."""
    pytester.makepyfile(test_made_up=FAILS_ONCE)
    file = pytester.makefile(".toml", quarantine="")

    def run(entries):
        file.write_text(entries)
        return pytester.runpytest_subprocess(
            *("-p", "tests.quarantine", f"--quarantine={file}"),
            *("--quarantine-junit=junit/quarantine.xml", *request.param),
        )

    return run


def test_a_failed_test_fails_the_run(run):
    """No test is tried again unless it stands in the file."""
    result = run(ENTRY.format(id="test_made_up.py::test_another"))

    assert pytest.ExitCode.TESTS_FAILED == result.ret
    result.assert_outcomes(failed=1)


def test_a_quarantined_test_may_fail_once(run, pytester):
    """It is tried again; that is printed with the reason, and kept as JUnit."""
    result = run(ENTRY.format(id="test_made_up.py::test_fails_once"))
    suites = ET.parse(pytester.path / "junit" / "quarantine.xml")  # noqa: S314 (our own)

    assert pytest.ExitCode.OK == result.ret
    result.stdout.fnmatch_lines(
        ["*the first try*", "*tried again*", "*2026-11-23: its server*", "*1 passed*"]
    )
    assert ["test_fails_once"] == [case.get("name") for case in suites.iter("testcase")]


def test_a_quarantined_test_may_not_fail_twice(pytester):
    """A second failure fails the run."""
    pytester.makepyfile(test_made_up="def test_fails(): assert False")
    file = pytester.makefile(".toml", quarantine=ENTRY.format(id="test_made_up.py::test_fails"))
    result = pytester.runpytest_subprocess("-p", "tests.quarantine", f"--quarantine={file}")

    assert pytest.ExitCode.TESTS_FAILED == result.ret
    result.stdout.fnmatch_lines(["*tried again*", "*assert False*"])


def test_a_crash_of_a_test_process_fails_the_run(pytester):
    """A test that takes its process down is not tried again, and nothing hangs."""
    pytester.makepyfile(
        test_crash="import os\ndef test_crash(): os._exit(1)",
        test_good="def test_good(): pass",
    )
    file = pytester.makefile(".toml", quarantine=ENTRY.format(id="test_crash.py::test_crash"))
    options = ("-n2", "--dist=loadgroup", "--max-worker-restart=0")
    result = pytester.runpytest_subprocess(
        "-p", "tests.quarantine", f"--quarantine={file}", *options
    )

    assert pytest.ExitCode.TESTS_FAILED == result.ret
    result.stdout.fnmatch_lines(["*crashed while running*test_crash*"])
    result.stdout.no_fnmatch_line("*tried again*")


def test_tests_that_cannot_be_read_fail_the_run(run, pytester):
    """Where a file cannot be imported, nothing is tried again."""
    pytester.makepyfile(test_unreadable="import no_such_module")
    result = run(ENTRY.format(id="test_made_up.py::test_fails_once"))

    assert pytest.ExitCode.OK != result.ret
    result.stdout.no_fnmatch_line("*tried again*")


def test_a_parametrized_test_is_covered_by_its_name():
    """An entry names one case, or all cases of a test."""
    entry = quarantine.Entry("a.py::test_b", "a reason", dt.date(2026, 11, 23))

    assert entry.covers("a.py::test_b[1]")
    assert not entry.covers("a.py::test_bc")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (ENTRY.format(id="a.py::test_b") * 6, "6 tests, at most 5"),
        ('[[test]]\nid = "a.py::test_b"\nsince = 2026-11-23', "needs an id and a reason"),
        ('[[test]]\nid = "a.py::test_b"\nreason = "slow"', "a.py::test_b needs since"),
    ],
    ids=["too many", "no reason", "no date"],
)
def test_a_file_that_says_too_little_or_too_much_is_refused(tmp_path, text, complaint):
    """Nobody gets in without a reason and a date, and not more than five."""
    file = tmp_path / "quarantine.toml"
    file.write_text(text)

    with pytest.raises(pytest.UsageError, match=complaint):
        quarantine.read(file)


def test_quarantined_tests_exist():
    """An entry whose test is gone goes, too."""
    for entry in quarantine.read(ROOT / "tests" / "quarantine.toml"):
        file, _, name = entry.id.partition("::")

        assert f"def {name.partition('[')[0]}(" in (ROOT / file).read_text()
