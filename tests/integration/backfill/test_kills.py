"""Whatever is killed, the output is that of an undisturbed run."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pytest

from tests.integration.backfill.kills import FAULTS, attempt

#: Seconds; a trial has limits of its own, which say more.
pytestmark = pytest.mark.timeout(400)


@pytest.fixture
def folder():
    """A folder whose path is short enough for sockets."""
    path = Path(tempfile.mkdtemp(prefix="kills-"))
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.mark.parametrize("fault", [fault for fault in FAULTS if not fault.startswith("producer")])
def test_a_backfill_survives(folder, fault):
    """Its workers and its broker may be killed, and come back empty."""
    outcome = attempt(fault, 1, folder)

    assert (True, 1) == (outcome.identical, outcome.runs)
