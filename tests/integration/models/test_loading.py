"""Models are loaded once in each pool process, before the worker takes its first task."""

from __future__ import annotations

import os
import re
import shutil
import signal
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil
import pytest
from billiard.exceptions import TimeLimitExceeded

from celery_batch.processes.managed_process import ManagedProcess, wait_until
from tests.conftest import Setup

COUNTER = ("-Q", "celery,counter")
ROOT = Path(__file__).parents[3]

#: An app whose model imports a module of the same folder when it is loaded.
LAZY = """
from celery import Celery
from celery_batch import Model

app = Celery("theirs")

class Doubler(Model):
    def load(self, device):
        import networks
        self.double = networks.double

    def predict(self, batch):
        return [self.double(number) for number in batch]

Doubler.as_task(app, name="doubled")
"""


@pytest.mark.parametrize("pool", [("-c", "2"), ("-P", "solo"), ("-P", "threads", "-c", "2")])
def test_model_is_loaded_once_in_each_process(setup: Setup, pool: tuple[str, ...]):
    """Every pool process loads the model once and warms it up, before the first task."""
    worker = setup.worker(*COUNTER, *pool)
    loads = [fact["pid"] for fact in setup.recall("load")]
    warmed_up = [fact["items"] for fact in setup.recall("clerk")]
    answers = [result.get(timeout=30) for result in [setup.clerk.delay(n) for n in range(20)]]

    assert worker.status()["shop.clerk"]["warm"]
    assert (2 if "-P" not in pool else 1) == len(loads) == len(set(loads))
    assert [[1, 2]] * len(loads) == warmed_up
    assert list(range(20)) == [item for item, _ in answers]
    assert {pid for _, pid in answers} <= set(loads)
    assert len(loads) == len(setup.recall("load"))


def test_two_tasks_share_a_model_of_two_parameters(setup: Setup):
    """Each parameter comes as a list, and the instance is loaded and warmed up once."""
    setup.worker("-Q", "abroad", "-c", "1")
    one, two = setup.app.send_task, ("shop.translate", "shop.translate_alone")
    calls = [(("salt", "de"), {}), (("milk",), {}), (("rice",), {"lang": "it"})]
    sent = [one(name, args, kwargs) for name in two for args, kwargs in calls]
    answers = [result.get(timeout=30) for result in sent]

    assert ["salt (de)", "milk (fr)", "rice (it)"] * 2 == answers
    assert 1 == len(setup.recall("load_translator"))
    assert {"text": ["bread"], "lang": ["de"]}.items() <= setup.recall("translator")[0].items()


def test_each_process_has_a_mig_slice_of_its_own(setup: Setup):
    """By the ids of the slices, and what the environment says to the driver reaches all."""
    slices = "MIG-11111111,MIG-22222222"
    setup.worker(
        *COUNTER, "-c", "2", CUDA_VISIBLE_DEVICES=slices, CUDA_MPS_PIPE_DIRECTORY="/run/mps"
    )
    loads = setup.recall("load")

    assert sorted(slices.split(",")) == sorted(fact["visible"] for fact in loads)
    assert {("cuda:0", "/run/mps")} == {(fact["device"], fact["pipes"]) for fact in loads}


def test_slow_load_of_a_replacement_is_not_a_hanging_process(setup: Setup):
    """A process that replaces a dead one may take longer to load than Celery's four seconds."""
    setup.worker(*COUNTER, "-c", "1", TESTS_LOAD_SECONDS="6")
    _, first = setup.clerk.delay("before").get(timeout=30)
    os.kill(first, signal.SIGKILL)
    _, second = setup.clerk.delay("after").get(timeout=60)

    assert first != second
    assert [first, second] == [fact["pid"] for fact in setup.recall("load")]


@pytest.mark.parametrize("pool", [("-c", "2"), ("-P", "solo")], ids=" ".join)
@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("broken", "Clerk on cpu: FileNotFoundError: no weights at /nowhere/weights.bin"),
        ("cold", "Clerk on cpu: Clerk.predict: ValueError: cannot (in the warm-up with"),
    ],
)
def test_failed_load_or_warm_up_is_a_failed_start(
    setup: Setup, pool: tuple[str, ...], fault: str, message: str
):
    """The worker ends with an error that names the model, and takes no task."""
    waiting = setup.clerk.delay("patient")
    worker = setup.launch(*COUNTER, *pool, TESTS_CLERK=fault)
    ended = worker.child.wait(60)

    assert ended
    assert 0 != worker.child.exit_code
    assert message in worker.log
    assert "This worker cannot start" in worker.log
    assert "ready." not in worker.log
    assert "PENDING" == waiting.state


@pytest.mark.skipif(os.cpu_count() == 1, reason="one core, one copy")
def test_load_imports_what_lies_beside_the_app(setup: Setup, tmp_path: Path):
    """The folder of `-A` has the module of the network, which the app's own must not import."""
    (tmp_path / "networks.py").write_text("def double(number):\n    return 2 * number\n")
    (tmp_path / "their_tasks.py").write_text(LAZY)
    celery = str(Path(sys.executable).with_name("celery"))
    command = [celery, "--workdir", str(tmp_path), "-A", "their_tasks", "worker"]
    env = {**os.environ, **setup.environment, "PYTHONPATH": str(ROOT)}
    with ManagedProcess([*command, "-c", "1", "-Q", "theirs"], tmp_path / "their.log", env=env):
        sent = setup.app.send_task("doubled", (21,), queue="theirs")

        assert 42 == sent.get(timeout=90)  # which includes the worker's start


def test_a_model_for_each_core_is_told_at_the_start(setup: Setup):
    """Without --concurrency the worker says how often it loads its models."""
    worker = setup.worker(*COUNTER)
    cores = os.cpu_count()
    (told,) = re.findall(r"--concurrency is not set.*", worker.log)

    assert f"each of {cores} pool processes, one for each core, loads Clerk;" in told
    assert "--concurrency=1" in told


def test_a_number_of_processes_that_was_chosen_is_not_told(setup: Setup):
    """Whoever has chosen how many copies there are need not be told."""
    worker = setup.worker(*COUNTER, "-c", "2")

    assert "--concurrency" not in worker.log


def test_green_pools_are_refused(setup: Setup):
    """On gevent a model would stop the worker's loop: the worker ends, and names a way out."""
    waiting = setup.double.delay(1)
    worker = setup.launch("-P", "gevent", "-c", "10")

    assert worker.child.wait(60)
    assert 0 != worker.child.exit_code
    assert "This worker cannot start: the gevent pool cannot run batch tasks" in worker.log
    assert "shop.double" in worker.log
    assert "leave --pool out" in worker.log
    assert "PENDING" == waiting.state


def test_a_green_worker_of_other_queues_may_know_batch_tasks(setup: Setup):
    """A worker that consumes no queue of a batch task starts on gevent as it always did."""
    worker = setup.launch("-P", "gevent", "-c", "10", "-Q", "mail")
    wait_until(
        lambda: "" if "ready." in worker.log else "not ready",
        [worker.child],
        what="worker",
        timeout=60,
    )

    assert "cannot run batch tasks" not in worker.log


def test_process_that_dies_while_loading_is_a_failed_start(setup: Setup):
    """A crash in a model's native code is told as what it is, not retried for ever."""
    worker = setup.launch(*COUNTER, "-c", "1", TESTS_CLERK="dies")

    assert worker.child.wait(60)
    assert 0 != worker.child.exit_code
    assert "ended with status 3 while loading its models" in worker.log


def test_load_that_never_ends_is_a_failed_start(setup: Setup):
    """A load has a time limit of its own, and the message names it."""
    worker = setup.launch(
        *COUNTER, "-c", "1", TESTS_LOAD_SECONDS="600", conf={"batch_load_timeout": 1.0}
    )

    assert worker.child.wait(60)
    assert "not loaded after 1 s; raise batch_load_timeout" in worker.log


def test_a_time_limit_fails_no_other_item_though_the_model_loads_again(setup: Setup):
    """The time for which the process that was killed is replaced is not the others'."""
    setup.worker(*COUNTER, "-c", "1", TESTS_LOAD_SECONDS="5")
    items = [((item,), None) for item in (1, "slow", 2)]
    results = setup.clerk.apply_many(items, time_limit=2, queue="counter")
    first, slow, last = [result.get(timeout=60, propagate=False) for result in results]

    assert [1, "slow", 2] in [fact["items"] for fact in setup.recall("clerk")]
    assert [1, 2] == [first[0], last[0]]
    assert isinstance(slow, TimeLimitExceeded)


def test_worker_can_be_stopped_while_it_loads(setup: Setup):
    """SIGTERM during a long load ends the worker at once."""
    worker = setup.launch(*COUNTER, "-c", "1", TESTS_LOAD_SECONDS="600")
    while "batches of up to" not in worker.log and "[tasks]" not in worker.log:
        assert not worker.child.wait(0.05), worker.log
    started = time.monotonic()
    worker.stop(grace=60)

    assert time.monotonic() - started < 30


def test_worker_can_be_stopped_as_a_process_starts(setup: Setup):
    """Also one that does not handle SIGTERM yet, as it was forked a moment before."""
    worker = setup.launch(*COUNTER, "-c", "1", TESTS_FORK_SECONDS="3", TESTS_LOAD_SECONDS="600")
    while "[tasks]" not in worker.log or not psutil.Process(worker.pid).children():
        assert not worker.child.wait(0.05), worker.log
    started = time.monotonic()
    worker.stop(grace=60)

    assert time.monotonic() - started < 30


def test_worker_can_quit_while_it_loads(setup: Setup):
    """SIGQUIT during a long load ends the worker soon."""
    worker = setup.launch(*COUNTER, "-c", "1", TESTS_LOAD_SECONDS="600")
    while "[tasks]" not in worker.log or not psutil.Process(worker.pid).children():
        assert not worker.child.wait(0.05), worker.log
    os.kill(worker.pid, signal.SIGQUIT)

    assert worker.child.wait(60), worker.log


def test_model_is_unloaded_when_the_worker_stops(setup: Setup):
    """A process that ends in peace lets go of its model."""
    worker = setup.worker(*COUNTER, "-c", "1")
    worker.stop()

    assert 1 == len(setup.recall("unload"))


def test_model_of_another_queue_is_loaded_on_first_use(setup: Setup):
    """A task sent here past its own queue still finds its model."""
    setup.worker("-c", "1")

    assert [] == setup.recall("load")
    assert 7 == setup.clerk.apply_async((7,), queue="celery").get(timeout=30)[0]
    assert 1 == len(setup.recall("load"))


def test_failing_replacement_stops_the_worker(setup: Setup, tmp_path):
    """A replacement that cannot load stops the worker, whose messages stay in the broker."""
    worker = setup.worker(*COUNTER, "-c", "1", TESTS_CLERK_FLAG=str(tmp_path / "gone"))
    (pid,) = {fact["pid"] for fact in setup.recall("load")}
    (tmp_path / "gone").touch()
    os.kill(pid, signal.SIGKILL)

    assert worker.child.wait(60)
    assert 0 != worker.child.exit_code
    assert "could not load its models" in worker.log


def test_a_process_that_loads_while_its_worker_ends_warns_of_nothing(setup: Setup, tmp_path):
    """The worker has removed the folder of their sockets by then."""
    worker = setup.worker(*COUNTER, "-c", "1", TESTS_CLERK_SLOW=str(tmp_path / "slow"))
    (pid,) = {fact["pid"] for fact in setup.recall("load")}
    (tmp_path / "slow").touch()
    os.kill(pid, signal.SIGKILL)
    wait_until(
        lambda: "" if len(setup.recall("load")) == 2 else "no replacement loads",
        [worker.child],
        what="shop",
        timeout=60,
    )
    worker.stop()

    assert "cannot receive batch_reload" not in worker.log


def test_without_its_folder_a_worker_serves_and_a_reload_says_what_to_do(setup: Setup):
    """A cleaner of temporary files may remove it: new processes warn, and a reload fails."""
    with TemporaryDirectory() as folder:
        worker = setup.worker(*COUNTER, "-c", "1", TMPDIR=folder)
        _, first = setup.clerk.delay("before").get(timeout=30)
        (sockets,) = Path(folder).glob("cb-*")
        shutil.rmtree(sockets)
        os.kill(first, signal.SIGKILL)
        _, second = setup.clerk.delay("after").get(timeout=60)
        answer = worker.ask("batch_reload", task="shop.clerk", wait=30)
        words = f"the folder {sockets} was removed"

        assert first != second
        assert f"cannot receive batch_reload: {words}" in worker.log
        assert words in answer["error"]
        assert "set TMPDIR to another folder, and restart the worker" in answer["error"]
        assert "Traceback" not in worker.log.partition("cannot receive batch_reload")[2]
