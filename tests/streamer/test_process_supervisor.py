"""Worker processes that are kept running, with functions that do nothing but die or return."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from celery_batch import ConfigurationError, GpuWorkerManager, LoadFailed, RedisWorker
from celery_batch.processes import supervisor
from celery_batch.streamer import Streamer, process_supervisor, redis_worker
from celery_batch.streamer.process_supervisor import Job, keep_running
from celery_batch.streamer.redis_worker import run_redis_workers_forever
from tests.apps.models.streamer_models import Told
from tests.services.setup import ROOT


def die_once(notes: str, how: int) -> None:
    """Note the process; the first one is killed."""
    with Path(notes).open("a") as file:
        file.write(f"{os.environ['NOTED']}\n")
    if len(Path(notes).read_text().splitlines()) == 1:
        os.kill(os.getpid(), how)


class Unpicklable:
    """Cannot be sent to a process."""

    def __reduce__(self):
        """Refuse."""
        raise TypeError("cannot be sent")

    def __call__(self):
        """Do nothing."""


class Unknown:
    """Cannot be received by a process."""

    def __reduce__(self):
        """Come back as an error."""
        return int, ("no number",)

    def __call__(self):
        """Do nothing."""


class Unlucky:
    """Is killed the first time while it works, and the second time while it is received."""

    def __init__(self, notes):
        self.notes = notes

    def __reduce__(self):
        """Come back by a function that may not live so long."""
        return _received, (self.notes,)

    def __call__(self):
        """End the first time."""
        if self.notes.read_text() == "1":
            os.kill(os.getpid(), signal.SIGKILL)


def _received(notes):
    with notes.open("a") as file:
        file.write("1")
    if notes.read_text() == "11":
        os.kill(os.getpid(), signal.SIGKILL)
    return Unlucky(notes)


def load_sometimes(notes: str, loads: str) -> None:
    """Say whether the model is loaded, and end; the nth of us, as the nth letter says."""
    with Path(notes).open("a") as file:
        file.write("x")
    if loads[min(len(Path(notes).read_text()), len(loads)) - 1] == "y":
        process_supervisor.report(process_supervisor.LOADED)
    else:
        process_supervisor.report(process_supervisor.UNLOADED, "Bert on cuda:0: no weights")
    os._exit(1)


def note(path: str, *_: object) -> None:
    """Note the process."""
    with Path(path).open("a") as file:
        file.write(f"{os.environ['NOTED']}\n")


class Slow:
    """Keeps a process that it is sent to from starting, until it is let go."""

    def __init__(self):
        self.has_begun, self.may_end = threading.Event(), threading.Event()

    def __reduce__(self):
        """Come back as a text."""
        self.has_begun.set()
        self.may_end.wait(60)
        return str, ()


class Manager(GpuWorkerManager):
    """Notes which of the workers each is."""

    @staticmethod
    def gpu_worker(index, gpu_num):
        """Note it, and return."""
        Path(os.environ["NOTES"]).joinpath(f"{index} of {gpu_num}").touch()


def test_process_that_dies_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A killed process has a successor in the same surroundings; one that returns is done."""
    monkeypatch.setattr(supervisor, "FIRST_PAUSE", 0.0)
    notes = tmp_path / "notes"
    keep_running([Job("worker", die_once, (str(notes), signal.SIGKILL), {"NOTED": "gpu 1"})])

    assert ["gpu 1", "gpu 1"] == notes.read_text().splitlines()
    assert "NOTED" not in os.environ


@pytest.mark.parametrize("method", multiprocessing.get_all_start_methods())
def test_each_process_has_an_environment_of_its_own(method: str, tmp_path: Path):
    """However processes are started, none has what was meant for another."""
    notes = tmp_path / "notes"
    keep_running([Job(each, note, (str(notes),), {"NOTED": each}) for each in ("a", "b")], method)

    assert ["a", "b"] == sorted(notes.read_text().splitlines())


def test_a_process_that_starts_changes_nothing_for_others(tmp_path: Path, monkeypatch):
    """While one thread starts a process on a GPU, another's streamer finds its own GPU."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    slow, notes = Slow(), tmp_path / "notes"
    env = {"CUDA_VISIBLE_DEVICES": "0", "NOTED": "gpu 0"}
    jobs = [Job("worker", note, (str(notes), slow), env)]
    thread = threading.Thread(target=keep_running, args=(jobs,))
    thread.start()
    try:
        assert slow.has_begun.wait(60)
        with Streamer(Told, 1, cuda_devices=(1,), wait_for_worker_ready=True) as streamer:
            gpu = streamer.predict([0])[0][2]
    finally:
        slow.may_end.set()
        thread.join()

    assert ("1", "gpu 0\n") == (gpu, notes.read_text())


def test_a_main_module_does_not_undo_a_workers_environment(tmp_path: Path):
    """What the program sets for all of its processes gives way to what each is given."""
    main = tmp_path / "main.py"
    main.write_text(
        "import os\n"
        "first = os.environ.get('CUDA_VISIBLE_DEVICES')\n"
        "os.environ['CUDA_VISIBLE_DEVICES'] = '1,2'\n"
        "from celery_batch.streamer import Streamer\n"
        "from celery_batch.streamer.process_supervisor import Job, keep_running\n"
        "from tests.apps.models.streamer_models import Told\n"
        "def show():\n"
        "    print(first, os.environ['CUDA_VISIBLE_DEVICES'], flush=True)\n"
        "if __name__ == '__main__':\n"
        "    keep_running([Job('worker', show, (), {'CUDA_VISIBLE_DEVICES': '2'})])\n"
        "    with Streamer(Told, 1, cuda_devices=(0, 1), worker_num=2,\n"
        "                  wait_for_worker_ready=True) as streamer:\n"
        "        seen = set()\n"
        "        while len(seen) < 2:  # on a busy machine one may answer many in a row\n"
        "            seen.add(streamer.predict([0])[0][2])\n"
        "        print(*sorted(seen))\n"
    )
    said = subprocess.run(
        [sys.executable, str(main)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    ).stdout

    assert ["2 2", "1 2"] == said.splitlines()


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_processes_begin_where_only_the_program_finds_the_package(method: str, tmp_path: Path):
    """A program that has changed `sys.path` to import us has its processes all the same."""
    main = tmp_path / "main.py"
    main.write_text(
        "import sys\n"
        f"sys.path.insert(0, {str(ROOT)!r})\n"
        "from celery_batch.streamer import Streamer\n"
        "from celery_batch.streamer.process_supervisor import Job, keep_running\n"
        "def double(batch):\n"
        "    return [2 * each for each in batch]\n"
        "def show():\n"
        f"    print(sys.path.count({str(ROOT)!r}), flush=True)\n"
        "if __name__ == '__main__':\n"
        f"    with Streamer(double, 1, mp_start_method={method!r}) as streamer:\n"
        "        print(streamer.predict([21]), flush=True)\n"
        f"    keep_running([Job('worker', show)], {method!r})\n"
    )
    done = subprocess.run(  # isolated: what is installed is not found either
        [sys.executable, "-I", "-S", str(main)],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        timeout=60,
    )

    assert (["[42]", "2"], "") == (done.stdout.splitlines(), done.stderr)


def test_successor_that_is_killed_too_soon_is_replaced(tmp_path: Path, monkeypatch):
    """A process that is killed before it begins is replaced if one before it could begin."""
    monkeypatch.setattr(supervisor, "FIRST_PAUSE", 0.0)
    keep_running([Job("worker", Unlucky(tmp_path / "notes"))])

    assert "111" == (tmp_path / "notes").read_text()


def test_process_that_cannot_begin_is_not_replaced():
    """A process whose program cannot be imported would fail for ever."""
    with pytest.raises(LoadFailed, match="before it could begin"):
        keep_running([Job("worker", Unknown())])


@pytest.mark.parametrize(
    ("loads", "message", "tries"),
    [("n", "^Bert on cuda:0: no weights", 1), ("ynnynnn", "given up after 3 tries: Bert on", 7)],
    ids=["never", "not any more"],
)
def test_model_that_cannot_be_loaded_ends_all(loads, message, tries, tmp_path, monkeypatch):
    """Who never had its model is not replaced; later it is tried some times in a row."""
    monkeypatch.setattr(supervisor, "FIRST_PAUSE", 0.0)
    monkeypatch.setattr(process_supervisor, "TRIES", 3)
    notes = tmp_path / "notes"
    with pytest.raises(LoadFailed, match=message):
        keep_running([Job("worker", load_sometimes, (str(notes), loads))], "fork")

    assert "x" * tries == notes.read_text()


def test_workers_of_a_model_that_cannot_be_loaded_end_at_once(tmp_path):
    """The program ends with the model's own error, and before it needs a Redis."""
    main = tmp_path / "main.py"
    main.write_text(
        "from celery_batch import run_redis_workers_forever\n"
        "from tests.apps.models.streamer_models import Failing\n"
        "if __name__ == '__main__':\n"
        "    run_redis_workers_forever(Failing, 8, redis_broker='localhost:1')\n"
    )
    done = subprocess.run(
        [sys.executable, str(main)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )

    assert 1 == done.returncode
    last_words = done.stderr.splitlines()[-1]
    assert "LoadFailed: Failing on cpu: no weights for cpu" in last_words


def test_what_cannot_be_sent_is_named():
    """The way out of a class within a function is said."""
    with pytest.raises(ConfigurationError, match="top of a module"):
        keep_running([Job("worker", Unpicklable())])


def test_a_manager_runs_its_own_function(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Each worker gets its index and the number of GPUs."""
    monkeypatch.setenv("NOTES", str(tmp_path))
    Manager().run_workers(worker_num=2, gpu_num=3)

    assert {"0 of 3", "1 of 3"} == {path.name for path in tmp_path.iterdir()}


def test_workers_are_spread_over_gpus(monkeypatch: pytest.MonkeyPatch):
    """Worker i is on device i mod n, and the cores are shared out, before anything is imported."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(12)))
    jobs: list[Job] = []
    monkeypatch.setattr(redis_worker, "keep_running", lambda given, _method: jobs.extend(given))
    run_redis_workers_forever(len, 8, worker_num=3, cuda_devices=(4, 5))

    assert ["4", "5", "4"] == [job.env["CUDA_VISIBLE_DEVICES"] for job in jobs]
    assert ["4", "4", "4"] == [job.env["OMP_NUM_THREADS"] for job in jobs]


def test_a_gpu_that_is_not_visible_is_refused(monkeypatch: pytest.MonkeyPatch):
    """Numbers that are not all in the variable count what it shows; the message says so."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5")

    with pytest.raises(ConfigurationError, match=r"cuda_devices: there is no cuda:5.*shows 2 GPUs"):
        run_redis_workers_forever(len, 8, worker_num=2, cuda_devices=(5, 0))


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"batch_size": 0}, "max_batch_size"),
        ({"max_latency": -1}, "max_wait"),
        ({"model_class": "bert"}, "predict function"),
        ({"redis_broker": "amqp://"}, "no Redis"),
        ({"max_waits": 1}, "max_waits: no such task option"),
    ],
)
def test_a_worker_says_what_is_wrong_at_once(options: dict, complaint: str):
    """A wrong argument is refused where it is given, not in a process that starts later."""
    with pytest.raises(ConfigurationError, match=complaint):
        RedisWorker(**{"model_class": len, "batch_size": 8, **options})


def test_no_workers_are_refused():
    """A program that would run nothing says so."""
    with pytest.raises(ConfigurationError, match="worker_num"):
        run_redis_workers_forever(len, 8, worker_num=0)
    with pytest.raises(ConfigurationError, match="worker_num"):
        Manager().run_workers(worker_num=0)


def test_an_unguarded_program_is_refused(in_python):
    """A program without `if __name__ == "__main__"` ends with a message, and starts once."""
    said = in_python(
        "import subprocess, sys, tempfile, pathlib\n"
        "path = pathlib.Path(tempfile.mkdtemp()) / 'unguarded.py'\n"
        "path.write_text('from celery_batch import run_redis_workers_forever\\n"
        "run_redis_workers_forever(len, 8)')\n"
        "done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True)\n"
        "print(done.returncode, done.stderr)",
        PYTHONPATH=str(ROOT),
    )

    assert said.startswith("1")
    assert "if __name__ == '__main__'" in said
    assert "before it could begin" in said


def test_a_client_imports_neither_models_nor_workers(in_python):
    """A web process with a RedisStreamer has no torch, and nothing of the worker's."""
    said = in_python(
        "import sys\n"
        "from celery_batch import RedisStreamer\n"
        "RedisStreamer('localhost:6379')\n"
        "names = ('torch', 'celery_batch.worker', 'celery_batch.runtime', 'celery_batch.task')\n"
        "print([name for name in names if name in sys.modules])"
    )

    assert "[]" == said
