"""How often the garbage collector looks, and at what."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Iterator

import pytest

from celery_batch.compat import gc as garbage


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """This process' collector, which is afterwards as it was."""
    monkeypatch.setattr(garbage, "_before", None)
    before = gc.get_threshold()
    gc.set_threshold(700, 10, 10)
    yield
    gc.set_threshold(*before)
    gc.unfreeze()


@pytest.mark.usefixtures("collector")
def test_what_is_there_is_looked_at_no_more():
    """The collector has put aside what there was."""
    garbage.keep_what_is_there()

    assert gc.get_freeze_count() > 10_000


@pytest.mark.usefixtures("collector")
def test_a_fork_has_pythons_own_measure_again():
    """A model may run there, and leave behind what is large."""
    garbage.collect_seldom()
    here = gc.get_threshold()
    pid = os.fork()
    if not pid:
        os._exit(gc.get_threshold() != (700, 10, 10))

    assert here[0] > 10_000
    assert 0 == os.waitpid(pid, 0)[1]


@pytest.mark.usefixtures("collector")
def test_a_measure_of_the_users_is_kept():
    """Whoever has set the collector knows why."""
    gc.set_threshold(5_000, 20, 20)
    garbage.collect_seldom()

    assert (5_000, 20, 20) == gc.get_threshold()


@pytest.mark.usefixtures("collector")
def test_another_programs_collector_is_left_alone():
    """A worker that runs on a thread, as in tests, is not the program that the collector is of."""
    before = gc.get_freeze_count()

    def work() -> None:
        garbage.keep_what_is_there()
        garbage.collect_seldom()

    worker = threading.Thread(target=work)
    worker.start()
    worker.join()

    assert (before, (700, 10, 10)) == (gc.get_freeze_count(), gc.get_threshold())
