"""The thresholds of the garbage collector, and the objects that it scans."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Iterator

import pytest

from celery_batch.compat import gc as compat


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """This process' collector, restored afterwards."""
    monkeypatch.setattr(compat, "_before", None)
    before = gc.get_threshold()
    gc.set_threshold(700, 10, 10)
    gc.unfreeze()
    yield
    gc.set_threshold(*before)
    gc.unfreeze()
    gc.collect()
    gc.freeze()  # as before the first test


@pytest.mark.usefixtures("collector")
def test_existing_objects_are_scanned_no_more():
    """The collector has frozen the existing objects."""
    compat.freeze_existing()

    assert gc.get_freeze_count() > 10_000


@pytest.mark.usefixtures("collector")
def test_fork_has_pythons_thresholds_again():
    """A model may run there, whose garbage is large."""
    compat.collect_less_often()
    here = gc.get_threshold()
    pid = os.fork()
    if not pid:
        os._exit(gc.get_threshold() != (700, 10, 10))

    assert here[0] > 10_000
    assert 0 == os.waitpid(pid, 0)[1]


@pytest.mark.usefixtures("collector")
def test_thresholds_of_the_user_are_kept():
    """Thresholds other than Python's defaults are not changed."""
    gc.set_threshold(5_000, 20, 20)
    compat.collect_less_often()

    assert (5_000, 20, 20) == gc.get_threshold()


@pytest.mark.usefixtures("collector")
def test_worker_on_a_thread_changes_nothing():
    """A worker that runs on a thread, as in tests, leaves the program's collector alone."""
    before = gc.get_freeze_count()

    def work() -> None:
        compat.freeze_existing()
        compat.collect_less_often()

    worker = threading.Thread(target=work)
    worker.start()
    worker.join()

    assert (before, (700, 10, 10)) == (gc.get_freeze_count(), gc.get_threshold())
