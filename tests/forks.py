"""
A plugin of pytest's: ``--forks 6`` runs the tests in six processes, forked when all are collected.

Each process of pytest-xdist imports and collects all tests itself, eight seconds of a processor.
The rest is as with its ``--dist loadgroup``: tests of one ``xdist_group`` run in one process, one
after another, and groups go to whichever process is free, in the order of collection.
"""

from __future__ import annotations

import atexit
import multiprocessing.util
import os
import signal
import sys
import traceback
import warnings
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe, wait
from types import ModuleType
from typing import Any, NoReturn

import pytest

#: Seconds without a message after which the main process looks whether all others are there.
_LOOK = 5.0

#: Seconds that a fork may take to fill four megabytes.
_COMPUTES = 20

#: Whether a process has ended, without an end to it.
_GONE = os.WEXITED | os.WNOHANG | os.WNOWAIT

#: What pytest tells the main process of a test, by the names of its hooks.
_HOOKS = ("pytest_runtest_logstart", "pytest_runtest_logfinish")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Have pytest know the option."""
    parser.addoption("--forks", type=int, default=0, help="processes to run the tests in")


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    """Run the tests in processes of their own, if that is wanted."""
    number = session.config.getoption("forks")
    if not number or session.config.option.collectonly or session.testsfailed:
        return None
    Main(session).run(number)
    return True


def groups(items: Sequence[pytest.Item]) -> dict[str, list[int]]:
    """Return the places of each group's tests; one without a group is one by itself."""
    found: dict[str, list[int]] = {}
    for place, item in enumerate(items):
        mark = item.get_closest_marker("xdist_group")
        found.setdefault(mark.args[0] if mark else item.nodeid, []).append(place)
    return found


@dataclass
class Fork:
    """
    A process that runs tests.

    Args:
        pid: Its process id.
        line: Our end of the connection.
        test: What it runs.
        has_ended: It has said that it needs no more tests.
    """

    pid: int
    line: Connection
    test: tuple[str, Any] = ("", None)
    has_ended: bool = False


class Main:
    """
    The main process: hands out the tests and reports what became of them.

    Args:
        session: Has collected the tests.
    """

    def __init__(self, session: pytest.Session) -> None:
        self.session = session
        self.config = session.config
        self._groups = deque(groups(session.items).values())
        self._forks: dict[Connection, Fork] = {}

    def run(self, number: int) -> None:
        """Run all tests in so many processes."""
        reporter = self.config.pluginmanager.getplugin("terminalreporter")
        reporter.showfspath = False  # tests of several files are reported by turns
        # Each has its own folder in the run's.
        self.config._tmp_path_factory.getbasetemp()
        if not _can_compute():
            raise pytest.UsageError("modules of tests must not compute with torch when imported")
        try:
            for place in range(min(number, len(self._groups))):
                self._fork(place)
            while self._forks:
                for line in wait([*self._forks], _LOOK):
                    self._listen(self._forks[line])
                    self._stop_if_wanted()
                self._look()
        finally:
            self._end()

    def _fork(self, place: int) -> None:
        ours, theirs = Pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if not pid:
            for line in (*self._forks, ours):
                line.close()
            _Runner(self.session, theirs, place).run()
        theirs.close()
        self._forks[ours] = Fork(pid, ours)

    def _listen(self, fork: Fork) -> None:
        """Do what one message of a process asks for."""
        try:
            what, *values = fork.line.recv()
        except (EOFError, ConnectionError):
            self._forget(fork)
            return
        if what == "group":
            fork.line.send(self._groups.popleft() if self._groups else [])
        elif what == "report":
            hook = self.config.hook
            report = hook.pytest_report_from_serializable(config=self.config, data=values[0])
            hook.pytest_runtest_logreport(report=report)
        elif what == "warning":
            message, when, nodeid, location = values
            hook = self.config.hook.pytest_warning_recorded.call_historic
            warning = warnings.WarningMessage(*message)
            hook(
                kwargs={
                    "warning_message": warning,
                    "when": when,
                    "nodeid": nodeid,
                    "location": location,
                }
            )
        elif what in _HOOKS:
            fork.test = values
            getattr(self.config.hook, what)(nodeid=values[0], location=values[1])
        else:
            fork.has_ended = True

    def _look(self) -> None:
        """Part with processes that are gone, whose own children may keep their lines open."""
        for fork in [*self._forks.values()]:
            if os.waitid(os.P_PID, fork.pid, _GONE) and not fork.line.poll():
                self._forget(fork)

    def _forget(self, fork: Fork) -> None:
        """Part with a process that is gone; the run fails if it was lost."""
        del self._forks[fork.line]
        code = os.waitstatus_to_exitcode(os.waitpid(fork.pid, 0)[1])
        if fork.has_ended:
            return
        nodeid, location = fork.test
        said = f"a test process ended with {code} while it ran {nodeid or 'no test'}"
        report = pytest.TestReport(
            nodeid, location or ("", None, ""), {}, "failed", said, "call", duration=0
        )
        self.config.hook.pytest_runtest_logreport(report=report)
        raise self.session.Failed(said)

    def _stop_if_wanted(self) -> None:
        """Stop where a failure is one too many."""
        if self.session.shouldfail:
            raise self.session.Failed(self.session.shouldfail)
        if self.session.shouldstop:
            raise self.session.Interrupted(self.session.shouldstop)

    def _end(self) -> None:
        """End the processes that are left, as a Ctrl-C would, or when they say the next thing."""
        for fork in self._forks.values():
            with suppress(ProcessLookupError):
                os.kill(fork.pid, signal.SIGINT)
            fork.line.close()
        for fork in self._forks.values():
            os.waitpid(fork.pid, 0)


class _Runner:
    """
    A forked process: asks for groups of tests, and tells the main process what becomes of them.

    Args:
        session: The main process's, as it was.
        line: Our end of the connection.
        place: Our number, from 0.
    """

    def __init__(self, session: pytest.Session, line: Connection, place: int) -> None:
        self.session = session
        self.config = session.config
        self._line = line
        self._place = place
        self._stderr = os.dup(2)
        self._has_parted = False

    def run(self) -> NoReturn:
        """Run tests until none is left; end the process."""
        code = 1
        try:
            self._part()
            with _torn_down(self.session):
                for item, following in self._pairs():
                    self.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            self._line.send(("end",))
            code = 0
        except (KeyboardInterrupt, EOFError, ConnectionError):
            pass
        except BaseException:  # noqa: BLE001 (the main process says that it lost this one)
            os.write(self._stderr, traceback.format_exc().encode())
        finally:
            with suppress(BaseException):
                atexit._run_exitfuncs()
            os._exit(code)

    def _part(self) -> None:
        """Share with the main process nothing that either changes."""
        atexit._clear()
        atexit.register(multiprocessing.util._exit_function)
        # A program that starts another with Python's multiprocessing would import pytest there.
        sys.modules["__main__"] = ModuleType("__main__")
        sys.argv = ["-c"]
        factory = self.config._tmp_path_factory
        factory._basetemp = factory.getbasetemp() / str(self._place)
        factory._basetemp.mkdir(mode=0o700)
        self.config.get_terminal_writer()._file = open(os.devnull, "w")  # noqa: SIM115, PTH123
        capture = self.config.pluginmanager.getplugin("capturemanager")
        capture.stop_global_capturing()
        capture.start_global_capturing()
        capture.suspend_global_capture()
        self.config.pluginmanager.register(self)  # which repeats earlier warnings
        self._has_parted = True

    def _pairs(self) -> Iterator[tuple[pytest.Item, pytest.Item | None]]:
        """Yield each test with the one that comes next, which may go on with its fixtures."""
        places = self._ask()
        while places:
            item = self.session.items[places.pop(0)]
            places = places or self._ask()
            yield item, self.session.items[places[0]] if places else None

    def _ask(self) -> list[int]:
        self._line.send(("group",))
        places: list[int] = self._line.recv()
        return places

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logstart(self, nodeid: str, location: Any) -> None:
        """Tell of a test that begins."""
        self._line.send(("pytest_runtest_logstart", nodeid, location))

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logfinish(self, nodeid: str, location: Any) -> None:
        """Tell of a test that has ended."""
        self._line.send(("pytest_runtest_logfinish", nodeid, location))

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Tell of a test's setup, call or teardown."""
        hook = self.config.hook.pytest_report_to_serializable
        self._line.send(("report", hook(config=self.config, report=report)))

    @pytest.hookimpl(tryfirst=True)
    def pytest_warning_recorded(
        self, warning_message: warnings.WarningMessage, when: str, nodeid: str, location: Any
    ) -> None:
        """Tell of a warning that is no error."""
        found = warning_message
        message = (str(found.message), found.category, found.filename, found.lineno)
        if self._has_parted:
            self._line.send(("warning", message, when, nodeid, location))


@contextmanager
def _torn_down(session: pytest.Session) -> Iterator[None]:
    """Leave no fixture of an interrupted test behind."""
    try:
        yield
    except BaseException:
        session._setupstate.teardown_exact(None)
        raise


def _can_compute() -> bool:
    """Return whether a fork can compute with torch: not after OpenMP has begun threads here."""
    if "torch" not in sys.modules:
        return True
    pid = os.fork()
    if not pid:
        signal.alarm(_COMPUTES)
        sys.modules["torch"].ones(1 << 20)
        os._exit(0)
    return not os.waitpid(pid, 0)[1]
