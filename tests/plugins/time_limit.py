"""
Ends a test process whose test goes on after its time limit, and shows where it is.

Pytest-timeout raises an exception in the test once.  A test that waits for ever while it is
cleaned up would keep the whole run.
"""

from __future__ import annotations

import faulthandler
import os
from collections.abc import Iterator

import pytest

#: The part of its time limit after which a test's process ends.
_PATIENCE = 1.5

_stderr = pytest.StashKey[int]()


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """Keep standard error, which pytest captures while a test runs."""
    config.stash[_stderr] = os.dup(2)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """End the process some time after the test's own limit."""
    mark = item.get_closest_marker("timeout")
    option = item.config.getoption("timeout")
    limit = mark.args[0] if mark else option or item.config.getini("timeout")
    seconds = float(limit) * _PATIENCE
    if seconds:  # 0 is no limit
        faulthandler.dump_traceback_later(seconds, exit=True, file=item.config.stash[_stderr])
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()
