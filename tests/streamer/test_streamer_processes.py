"""The environment, the errors and the ends of a Streamer's processes."""

from __future__ import annotations

import concurrent.futures
import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
from contextlib import suppress

import numpy as np
import psutil
import pytest

from celery_batch.errors import (
    ConfigurationError,
    LoadFailed,
    ModelError,
    PoisonItem,
    StreamerClosed,
)
from celery_batch.processes import supervisor
from celery_batch.processes.managed_process import wait_until
from celery_batch.streamer import Streamer, worker_pool
from tests.apps.models.streamer_models import Failing, Leaving, Lost, Odd, Told, play
from tests.services.setup import ROOT


@pytest.fixture(scope="module")
def pair():
    """Two processes that are shared by the tests of this module; some kill them."""
    with Streamer(play, 4, worker_num=2, wait_for_worker_ready=True) as made:
        yield made


def run(code, **options):
    """Run a main program of its own."""
    return subprocess.run(
        [sys.executable, *options.pop("args", ("-c", textwrap.dedent(code)))],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        timeout=60,
        **options,
    )


def gone(pids):
    """Say which of these processes are not gone."""
    alive = []
    for pid in pids:
        with suppress(psutil.NoSuchProcess):
            if psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
                alive.append(pid)
    return f"{alive} live" if alive else ""


def test_work_is_spread_over_the_processes(pair):
    """Full batches go to every process."""

    def why():
        batches = [pair.submit([("sleep", 0.1), "pid"] * 2) for _ in range(8)]
        return "" if len({batch.result(60)[1] for batch in batches}) == 2 else "one runs them all"

    wait_until(why, [], what="second process", timeout=60)  # a test may have killed it


def test_process_that_dies_takes_the_culprit_alone(pair):
    """Neighbours of what kills a process are answered; it fails, and a new process is there."""
    before = {pair.predict(["pid"])[0] for _ in range(2)}
    futures = [pair.submit([item]) for item in ("a", "die", "b")]

    with pytest.raises(PoisonItem, match="died under the request, twice"):
        futures[1].result(60)
    assert [["a"], ["b"]] == [futures[0].result(60), futures[2].result(60)]
    assert pair.predict(["pid"])[0] not in before | {os.getpid()}


def test_idle_process_that_dies_is_replaced_at_once():
    """Nobody has to ask first for a killed process to be replaced."""
    with Streamer(play, 4, wait_for_worker_ready=True) as streamer:
        feeder = streamer._pool._feeders[0]
        first = feeder._process
        killed = streamer.predict(["pid"])[0]
        os.kill(killed, signal.SIGKILL)
        wait_until(
            lambda: "the same" if feeder._process in (first, None) else "",
            [],
            what="another process",
            timeout=60,
        )

        assert streamer.predict(["pid"])[0] not in (killed, os.getpid())


def test_model_that_is_lost_later(tmp_path, monkeypatch):
    """Where no process can be replaced, requests fail with the model's error, until one can."""
    monkeypatch.setattr(worker_pool, "_FIRST_PAUSE", 0.01)
    monkeypatch.setattr(supervisor, "LONGEST_PAUSE", 0.5)
    weights = tmp_path / "weights"
    weights.touch()
    options = {"model_init_args": (str(weights),), "worker_num": 2}
    with Streamer(Lost, 1, wait_for_worker_ready=True, **options) as streamer:
        weights.unlink()
        feeders = streamer._pool._feeders
        killed = [feeder._process for feeder in feeders]
        for process in killed:
            process.process.kill()

        def why():
            return "a death is not seen yet" if {*killed} & {f._process for f in feeders} else ""

        wait_until(why, [], what="new processes", timeout=60)  # else requests die with the old
        errors = [each.exception(60) for each in [streamer.submit([each]) for each in range(4)]]
        with pytest.raises(LoadFailed, match="OSError: no weights for cpu"):
            streamer.submit([1])
        weights.touch()
        wait_until(lambda: _why_refused(streamer), [], what="another process", timeout=60)

        assert [5] == streamer.predict([5])
    assert ["Lost.predict on cpu: OSError: no weights for cpu"] * 4 == [
        str(each) for each in errors
    ]


def test_cancelled_futures_are_done_when_no_process_can_serve(tmp_path, monkeypatch):
    """Where no process has its model any more, a cancelled future is done, and is forgotten."""
    monkeypatch.setattr(worker_pool, "_FIRST_PAUSE", 0.01)
    weights = tmp_path / "weights"
    weights.touch()
    options = {"model_init_args": (str(weights),)}
    with Streamer(Lost, 1, wait_for_worker_ready=True, **options) as streamer:
        weights.unlink()
        feeder = streamer._pool._feeders[0]
        killed = feeder._process
        killed.process.kill()
        wait_until(
            lambda: "" if feeder._process is not killed else "the same",
            [],
            what="a new process",
            timeout=60,
        )
        futures = [streamer.submit([each]) for each in range(9)]
        assert all(future.cancel() for future in futures[:8])

        assert (set(futures), set()) == concurrent.futures.wait(futures, 60)
        assert isinstance(futures[8].exception(), LoadFailed)
        assert 0 == streamer._request_queue.answer_lock.given_up


def _why_refused(streamer):
    try:
        streamer.submit([1])
    except LoadFailed as error:
        return str(error)
    return ""


def test_a_death_by_chance_costs_no_answer(pair, tmp_path):
    """What was running in a process that died runs once more, and is answered."""
    once = ("die once", str(tmp_path / "died"))

    assert ["a", once, "b"] == pair.predict(["a", once, "b"])


def test_a_request_that_waited_long_is_run_again_all_the_same(tmp_path):
    """What ran in a process that died runs once more, however long it had been in line."""
    once = ("die once", str(tmp_path / "died"))
    with Streamer(play, 1, worker_timeout=0.1) as streamer:
        streamer.submit([("sleep", 0.3)])

        assert [once] == streamer.submit([once]).result(60)


def test_what_runs_is_finished_while_the_next_is_packed(tmp_path):
    """Workers that end between two batches finish the first, and the second fails."""

    class Late:
        def __reduce__(self):
            process = streamer._pool._feeders[0]._process.process
            wait_until(
                lambda: "it lives" if process.is_alive() else "", [], what="the end", timeout=60
            )
            return (int, ())

    gate = tmp_path / "gate"
    streamer = Streamer(play, 1)
    running = streamer.submit([("gate", str(gate))])
    wait_until(
        lambda: "" if running.running() else "pending", [], what="the first batch", timeout=60
    )
    late = streamer.submit([Late()])
    wait_until(lambda: "" if late.running() else "pending", [], what="the second batch", timeout=60)
    threading.Timer(0.3, gate.touch).start()
    streamer.destroy_workers()

    assert [("gate", str(gate))] == running.result(0)
    with pytest.raises(StreamerClosed):
        late.result(5)


def test_process_that_cannot_be_made(monkeypatch):
    """Where the system refuses another process, requests fail with its error."""

    def refuse(*_):
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(worker_pool, "WorkerProcess", refuse)
    with Streamer(play, 4) as streamer, pytest.raises(LoadFailed, match="Too many open files"):
        streamer.predict([1])


def test_what_cannot_cross_the_pipe_fails_alone(pair):
    """An input, an output or an error that cannot be pickled fails its own request alone."""
    futures = [pair.submit([item]) for item in ("a", lambda: 0, "unpickled", "odd", Odd(1, 2))]
    messages = ["the request", "the output", "Odd: 1 and 2", "broke off: TypeError"]

    for future, message in zip(futures[1:], messages, strict=True):
        with pytest.raises(ModelError, match=message):
            future.result(30)
    assert ["a"] == futures[0].result(30)


def test_large_arrays_go_and_come_back(pair):
    """They need no setting, and may be larger than any pipe; who dies beside them loses none."""
    array = np.random.default_rng(1).random((4, 1024, 1024))
    futures = [pair.submit([item]) for item in ({"array": array}, "die", {"array": array[1:]})]

    assert (array == futures[0].result(60)[0]["array"]).all()
    assert (array[1:] == futures[2].result(60)[0]["array"]).all()
    with pytest.raises(PoisonItem):
        futures[1].result(60)


def test_error_says_where_it_was_raised(pair):
    """An error keeps its class and brings along the traceback from its process."""
    with pytest.raises(ValueError, match="cannot digest") as caught:
        pair.predict(["raise"])

    assert "streamer_models.py" in caught.value.__notes__[0]


def test_environment_is_in_place_before_the_models_imports(monkeypatch):
    """GPU and threads are set by process, before the model's module is imported."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    with Streamer(Told, 1, 0.1, 1, (3,), (1,), {"b": 2}, True) as streamer:  # noqa: FBT003
        args, kwargs, gpu_id, threads = streamer.predict([0])[0]

    assert ((1,), {"b": 2}, "3") == (args, kwargs, gpu_id)
    assert str(len(os.sched_getaffinity(0))) == threads
    assert os.environ.get("CUDA_VISIBLE_DEVICES") is None


def test_cores_are_shared_unless_the_user_has_chosen(monkeypatch):
    """OMP_NUM_THREADS is what the user has set, whatever number of processes there is."""
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    with Streamer(Told, 1) as streamer:
        assert "5" == streamer.predict([0])[0][3]


@pytest.mark.parametrize(
    ("model", "message"),
    [(Failing, "Failing.predict on cpu: no weights for cpu"), (Leaving, "ended with exit code 7")],
    ids=["raises", "exits"],
)
def test_model_that_cannot_be_loaded(model, message):
    """Requests fail at once with the error of the load, the later ones too."""
    with Streamer(model, 4) as streamer:
        for _ in range(2):
            with pytest.raises(LoadFailed, match=message):
                streamer.predict([1])
        with pytest.raises(LoadFailed, match=message):
            streamer._wait_for_worker_ready()


def test_gpu_that_is_not_there(monkeypatch):
    """A device that cannot be had is named."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")

    with pytest.raises(ConfigurationError, match="cuda_devices: there is no cuda:4"):
        Streamer(play, 4, cuda_devices=[4])
    with pytest.raises(LoadFailed, match="cuda_devices: 'gpu' is no device"):
        Streamer(play, 4, cuda_devices="gpu", wait_for_worker_ready=True)


def test_what_no_other_process_can_import_is_refused():
    """A function from nowhere is refused when the streamer is made."""
    with pytest.raises(ConfigurationError, match="cannot be sent to a worker process"):
        Streamer(lambda batch: batch, 4)


def test_at_a_prompt_a_module_is_recommended():
    """In a notebook or at a prompt, the message says that processes cannot import from there."""
    done = run(
        """
        from celery_batch.streamer import Streamer
        def predict(batch): return batch
        Streamer(predict, 4)
        """
    )

    assert "defined in a notebook or at a prompt" in done.stderr


def test_unguarded_main_is_refused(tmp_path):
    """A main module that each process would run again ends with advice to guard it."""
    main = tmp_path / "unguarded.py"
    main.write_text(
        "from celery_batch.streamer import Streamer\n"
        "from tests.apps.models.streamer_models import play\n"
        "print(Streamer(play, 4).predict([1]))\n"
    )
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = run("", args=(str(main),), env=env)

    assert 'put what runs under `if __name__ == "__main__":`' in done.stderr
    assert 1 == done.stderr.count("Traceback") - done.stderr.count("direct cause")


def test_a_streamer_of_another_module_needs_no_guard(tmp_path):
    """The worker processes, which see one GPU each, import it again and let it be."""
    (tmp_path / "other.py").write_text(
        "from celery_batch.streamer import Streamer\n"
        "def double(batch):\n"
        "    return [2 * each for each in batch]\n"
        "streamer = Streamer(double, 1, worker_num=2, cuda_devices=(0, 1))\n"
    )
    main = tmp_path / "main.py"
    main.write_text(
        "from other import streamer\n"
        "if __name__ == '__main__':\n"
        "    streamer._wait_for_worker_ready()\n"
        "    print(streamer.predict([1, 2, 3]))\n"
    )
    env = {**os.environ, "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": "0,1"}
    done = run("", args=(str(main),), env=env)
    said = done.stderr.splitlines()  # where there are no GPUs, once

    assert "[2, 4, 6]\n" == done.stdout
    assert 1 >= len(said) == done.stderr.count("cuda_devices: no GPU can be seen")


_PARENT = """
    import json, sys, time
    from celery_batch.streamer import Streamer
    from tests.apps.models.streamer_models import play
    if __name__ == "__main__":
        streamer = Streamer(play, 1, worker_num=2, wait_for_worker_ready=True)
        pids = {streamer.submit([("sleep", 0.2)]) and streamer.predict(["pid"])[0]
                for _ in range(4)}
        print(json.dumps(sorted(pids)), flush=True)
        streamer.submit([("sleep", %s)])
        time.sleep(%s)
"""


@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGTERM], ids=lambda each: each.name)
def test_processes_end_with_a_killed_parent(ending):
    """However the parent is killed, its processes end, those that run a batch as well."""
    code = textwrap.dedent(_PARENT % (0.5, 600))
    with subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE) as parent:
        pids = json.loads(parent.stdout.readline())
        parent.send_signal(ending)
        parent.wait()
        wait_until(lambda: gone(pids), [], what="the end of the processes", timeout=60)

    assert pids


_COPIED = """
    import json, os, sys, time
    from celery_batch.streamer import Streamer
    from tests.apps.models.streamer_models import play
    if __name__ == "__main__":
        streamer = Streamer(play, 1, mp_start_method=sys.argv[1], wait_for_worker_ready=True)
        pid = streamer.predict(["pid"])[0]
        copy = os.fork()
        if copy:
            print(json.dumps([pid, copy]), flush=True)
        time.sleep(600)
"""


@pytest.mark.parametrize("method", ["spawn", "forkserver", "fork"])
def test_processes_end_though_a_copy_of_their_parent_lives(method):
    """A fork of a killed parent, which holds its pipes open, does not keep its processes alive."""
    command = [sys.executable, "-c", textwrap.dedent(_COPIED), method]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as parent:
        pid, copy = json.loads(parent.stdout.readline())
        parent.kill()
        parent.wait()
        try:
            wait_until(lambda: gone([pid]), [], what="the end of the process", timeout=60)
        finally:
            os.kill(copy, signal.SIGKILL)

    assert pid != copy


def test_processes_end_with_a_parent_that_returns():
    """A program that never destroys its workers ends all the same, and they with it."""
    done = run(_PARENT % (0.2, 0))

    assert (0, "") == (done.returncode, done.stderr)
    pids = json.loads(done.stdout)
    wait_until(lambda: gone(pids), [], what="the end of the processes", timeout=60)


def test_a_streamer_that_is_closed_leaves_no_file_open(in_python):
    """Its pipes are closed then, not when the interpreter next looks for cycles of objects."""
    out = in_python(  # another test's threads open files here, and close them
        textwrap.dedent(
            """
            import gc; import psutil
            from celery_batch.streamer import Streamer
            from tests.apps.models.streamer_models import play
            if __name__ == "__main__":
                gc.disable()
                for _ in range(3):
                    with Streamer(play, 4, wait_for_worker_ready=True) as streamer:
                        streamer.predict([1])
                    print(psutil.Process().num_fds())
            """
        )
    )

    counts = out.splitlines()
    assert [counts[0]] * 3 == counts


def test_program_that_returns_does_not_wait_for_a_model(in_python):
    """A batch that takes longer than a streamer's grace does not hold up its program's end."""
    out = in_python(
        textwrap.dedent(
            """
            from celery_batch.streamer import Streamer; from celery_batch.streamer import base
            from tests.apps.models.streamer_models import play
            base.GRACE = 0.1
            if __name__ == "__main__":
                streamer = Streamer(play, 1, wait_for_worker_ready=True)
                asked = streamer.submit([("sleep", 300)])
                print("asked")
            """
        )
    )

    assert ["asked"] == out.splitlines()


def test_made_before_a_fork_and_used_after(in_python, tmp_path):
    """Streamers made before a fork work on both sides; requests of before fail in the child."""
    out = in_python(
        textwrap.dedent(
            """
            import os, pathlib, sys
            from celery_batch.streamer import Streamer, ThreadedStreamer
            from tests.apps.models.streamer_models import play
            if __name__ == "__main__":
                both = [ThreadedStreamer(play, 1), Streamer(play, 1, wait_for_worker_ready=True)]
                gate = pathlib.Path(os.environ["GATE"])
                running = [each.submit([("gate", str(gate))]) for each in both]
                pid = os.fork()
                if not pid:
                    errors = [type(each.exception(40)).__name__ for each in running]
                    print(errors, [each.predict([1]) for each in both], flush=True)
                    sys.exit(0)
                status = os.waitpid(pid, 0)[1]
                gate.touch()
                print(status, [len(each.result()) for each in running],
                      [each.predict([2]) for each in both])
            """
        ),
        GATE=str(tmp_path / "gate"),
    )

    assert ["['BatchError', 'BatchError'] [[1], [1]]", "0 [1, 1] [[2], [2]]"] == out.splitlines()


def test_locks_that_a_fork_leaves_behind_are_forgotten(in_python, tmp_path):
    """Whatever locks the parent's threads held at a fork, its copy ends requests and streamers."""
    out = in_python(
        textwrap.dedent(
            """
            import gc, os, pathlib, signal, threading
            from celery_batch.streamer import ThreadedStreamer
            from tests.apps.models.streamer_models import play
            streamer = ThreadedStreamer(play, 2)
            gate = pathlib.Path(os.environ["GATE"])
            whole = streamer.submit([("gate", str(gate))] * 6)
            held, over = threading.Event(), threading.Event()
            def hold():
                with whole._condition, whole._parts[2]._condition, streamer._request_queue._lock:
                    held.set()
                    over.wait(80)
            threading.Thread(target=hold).start()
            held.wait()
            pid = os.fork()
            if not pid:
                print(type(whole.exception(30)).__name__, flush=True)
                del streamer
                gc.collect()
                os._exit(0)
            killer = threading.Timer(60, os.kill, (pid, signal.SIGKILL))
            killer.start()
            print(os.waitpid(pid, 0)[1])
            killer.cancel()
            gate.touch()
            over.set()
            """
        ),
        GATE=str(tmp_path / "gate"),
    )

    assert ["BatchError", "0"] == out.splitlines()


def test_works_in_gevent(in_python):
    """Where gevent has put its greenlets in place of threads, both streamers answer them."""
    out = in_python(
        textwrap.dedent(
            """
            from gevent import monkey
            monkey.patch_all()
            import gevent
            from celery_batch.streamer import Streamer, ThreadedStreamer
            from tests.apps.models.streamer_models import play
            if __name__ == "__main__":
                for streamer in ThreadedStreamer(play, 4), Streamer(play, 4):
                    asked = [gevent.spawn(streamer.predict, [n, "size"]) for n in range(8)]
                    ticks = [0]
                    def tick():
                        while True:
                            ticks[0] += 1
                            gevent.sleep(0.01)
                    gevent.spawn(tick)
                    answers = [each.get(timeout=30) for each in asked]
                    print([n for n, _ in answers], max(size for _, size in answers), ticks[0] > 0)
                    streamer.destroy_workers()
            """
        )
    )

    assert ["[0, 1, 2, 3, 4, 5, 6, 7] 4 True"] * 2 == out.splitlines()


class Slow:
    """An item on whose way to a worker process the test has a hand."""

    begun, may_go = threading.Event(), threading.Event()

    def __reduce__(self):
        """Pickle it as a number, when the test lets it."""
        Slow.begun.set()
        Slow.may_go.wait(60)
        return (int, (7,))


def test_a_batch_on_its_way_to_a_process_that_is_to_end_is_answered():
    """What runs, as its future says, is finished also where its process does not have it yet."""
    streamer = Streamer(play, 1, wait_for_worker_ready=True)
    future = streamer.submit([Slow()])
    assert Slow.begun.wait(60)
    assert future.running()
    end = threading.Thread(target=streamer.destroy_workers)
    end.start()
    wait_until(lambda: "" if is_closed(streamer) else "takes requests", [], what="end", timeout=60)
    Slow.may_go.set()

    assert [7] == future.result()
    end.join()


def is_closed(streamer):
    """Say whether a streamer takes no more requests."""
    try:
        streamer.submit([1]).cancel()
    except StreamerClosed:
        return True
    return False
