"""Ports that tests choose."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

from tests.services.servers.ports import quiet_port

#: As another process of the tests chooses, from few.
CHOOSE = """
from tests.services.servers import ports
ports._FIRST, ports._LAST = {port} - 10, {port} + 10
print(*[ports.quiet_port() for _ in range(10)])
"""


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such names")
def test_two_processes_choose_no_port_twice(in_python: Callable[..., str]):
    """Though no server is there yet, or ever."""
    port = quiet_port()
    others = in_python(CHOOSE.format(port=port)).split()

    assert 10 == len({*others} - {str(port)})
