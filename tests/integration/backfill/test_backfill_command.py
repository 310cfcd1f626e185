"""``celery batch backfill`` with a real worker, whatever comes in between."""

from __future__ import annotations

import csv
import json
import random
import signal
import time
from contextlib import closing

import pytest
import redis

from celery_batch.backfill.engine import Backfill, limits_of
from celery_batch.backfill.window import Limits, Row
from celery_batch.client.results.pending import PendingResults
from celery_batch.processes.managed_process import wait_until
from tests.plugins.seeds import seed_for

MANY = 4000


def rows(number):
    """Return records with a name and a number each."""
    return [{"id": f"r{n}", "number": n} for n in range(number)]


def expected(number):
    """Return what the answers should be."""
    return [
        {"key": f"r{n}", "error": f"ValueError: bad {n}"}
        if n % 100 == 13
        else {"key": f"r{n}", "output": 2 * n}
        for n in range(number)
    ]


def test_every_row_has_its_answer_in_order(setup):
    """Outputs and errors come in the input's order, and the exit code says that some failed."""
    setup.write(rows(500))
    done = setup.run("backfill_tasks.double")

    assert (1, expected(500)) == (done.returncode, setup.answers())
    assert "500 rows, 5 failed" in done.stderr
    assert ["in.jsonl", "out.jsonl", "out.jsonl.about", "out.jsonl.errors"] == sorted(
        each.name for each in setup.folder.iterdir()
    )


def test_only_the_first_rows_are_run(setup):
    """The limit counts rows of the input, failed ones too, and makes a complete output of them."""
    setup.write(rows(300))
    done = setup.run("backfill_tasks.double", "--limit", "50")
    again = setup.run("backfill_tasks.double", "--limit", "50")
    more = setup.run("backfill_tasks.double", "--limit", "60")

    assert (1, expected(50)) == (done.returncode, setup.answers())
    assert "50 rows, 1 failed" in done.stderr
    assert 1 == again.returncode
    assert "is complete already; --retry-errors runs its 1 failed row again" in again.stderr
    assert 1 == more.returncode
    assert "--limit was 50 then, and is 60 now; use --restart" in more.stderr


def test_a_limit_counts_what_an_earlier_run_has_answered(setup):
    """An interrupted command with a limit goes on up to it, and no further."""
    setup.write([{"number": 13}] * 20 + rows(2000))
    stopped = setup.run(
        "backfill_tasks.double", "--limit", "40", "--max-errors", "10", "--window", "8"
    )
    begun = setup.folder / "out.jsonl.partial"
    before = len(begun.read_text().splitlines()) - 1  # without the line that says of what
    other = setup.run("backfill_tasks.double", "--limit", "30")
    done = setup.run("backfill_tasks.double", "--limit", "40")

    assert "more than --max-errors allows" in stopped.stderr
    assert 0 < before < 40
    assert "--limit was 40 then, and is 30 now; use --restart" in other.stderr
    assert 1 == done.returncode
    assert f"{before} answered before" in done.stderr
    assert [f"{n + 1}" for n in range(20)] + [f"r{n}" for n in range(20)] == [
        each["key"] for each in setup.answers()
    ]


def test_answers_may_come_as_they_are_known(setup):
    """Without order the same answers are there."""
    setup.write(rows(12))
    done = setup.run("backfill_tasks.double", "--as-completed", "--window", "4")

    assert 0 == done.returncode
    assert expected(12) == sorted(setup.answers(), key=lambda each: int(each["key"][1:]))


def test_an_output_that_is_there_is_not_touched(setup):
    """It has to be said what shall become of it."""
    setup.write(rows(3))
    setup.out.write_text("mine\n")
    done = setup.run("backfill_tasks.double")

    assert (1, "mine\n") == (done.returncode, setup.out.read_text())
    assert "is there already" in done.stderr
    assert 0 == setup.run("backfill_tasks.double", "--restart").returncode
    assert expected(3) == setup.answers()


def test_failed_rows_are_run_again(setup):
    """Only they go to the model, and their lines alone change."""
    setup.write(rows(120))
    setup.run("backfill_tasks.double")
    setup.write([each | {"number": 14 if each["number"] % 100 == 13 else -1} for each in rows(120)])
    # Without it another input is refused; a retry reads whatever is there now.
    done = setup.run("backfill_tasks.double", "--retry-errors")

    wanted = expected(120)
    wanted[13], wanted[113] = ({"key": key, "output": 28} for key in ("r13", "r113"))
    assert (0, wanted) == (done.returncode, setup.answers())
    assert (
        "none of its rows has failed" in setup.run("backfill_tasks.double", "--retry-errors").stderr
    )


def test_an_input_may_be_mended_more_than_once(setup):
    """A second try that was stopped begins anew where its input is another one by then."""
    setup.write([{"number": 13}] * 40)
    setup.run("backfill_tasks.double")
    stopped = setup.run("backfill_tasks.double", "--retry-errors", "--max-errors", "1")
    assert "more than --max-errors allows" in stopped.stderr
    setup.write([{"number": 14}] * 40)
    done = setup.run("backfill_tasks.double", "--retry-errors")

    assert 0 == done.returncode, done.stderr
    assert [28] * 40 == [each["output"] for each in setup.answers()]


def test_a_hopeless_job_stops(setup):
    """With more failures than allowed it ends early, and keeps what it has."""
    setup.write([{"number": 13}] * 2000)
    done = setup.run("backfill_tasks.double", "--max-errors", "5%")

    assert 1 == done.returncode
    assert "more than --max-errors allows" in done.stderr
    assert not setup.out.exists()


def test_a_row_that_kills_its_process_costs_one_row(setup):
    """A chunk that is poison is sent row by row."""
    setup.write([{"number": n} for n in range(16)])
    done = setup.run("backfill_tasks.fragile")

    assert 1 == done.returncode
    found = setup.answers()
    assert [2 * n for n in range(16) if n != 5] == [
        each["output"] for each in found if "output" in each
    ]
    assert "PoisonItem" in found[5]["error"]


def test_a_table_goes_in_and_out(setup):
    """CSV is read by its columns, and written with key, output and error."""
    (setup.folder / "in.csv").write_text("key,left,right\none,a,b\ntwo,c,d\n")
    out = setup.folder / "out.csv"
    done = setup.run(
        "backfill_tasks.join", "--input", str(setup.folder / "in.csv"), "--output", str(out)
    )

    assert 0 == done.returncode, done.stderr
    with out.open(newline="") as file:
        assert [["key", "output", "error"], ["one", "a-b", ""], ["two", "c-d", ""]] == [
            *csv.reader(file)
        ]


def test_a_folder_of_files_is_an_input(setup):
    """Each file is a row of bytes, named by its path."""
    (setup.folder / "in").mkdir()
    for name, content in (("a.bin", b"\0\1"), ("b.bin", b"12345")):
        (setup.folder / "in" / name).write_bytes(content)
    done = setup.run("backfill_tasks.length", "--input", str(setup.folder / "in"))

    assert 0 == done.returncode, done.stderr
    assert [{"key": "a.bin", "output": 2}, {"key": "b.bin", "output": 5}] == setup.answers()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("backfill_tasks.plain",), "is an ordinary task, made without base=BatchTask; this app's"),
        (("backfill_tasks.doubel",), "is no batch task of this app; there are: backfill_tasks."),
        (("backfill_tasks.double", "--input", "nowhere"), "nowhere: there is no such file"),
        (("backfill_tasks.double", "--output", "out.txt"), "give it one of .jsonl, .ndjson, .csv"),
        (("backfill_tasks.double", "--input", __file__), "not known; give --format, of jsonl, csv"),
        (("backfill_tasks.double", "--max-errors", "some"), "--max-errors: must be a number"),
        (("backfill_tasks.double", "--restart", "--retry-errors"), "give one of them"),
        (("backfill_tasks.join",), "line 1 must have the fields left, right"),
        (("backfill_tasks.double", "--output", "no/out.jsonl"), "written: there is no folder "),
        (("backfill_tasks.double", "--field", "text"), "has no field 'text', it has"),
    ],
    ids=[
        "no batch task",
        "no task",
        "no input",
        "no format of the output",
        "no format of the input",
        "no limit",
        "both",
        "no such fields",
        "no folder",
        "no field",
    ],
)
def test_what_cannot_begin_says_why(setup, options, words):
    """The error names the thing and the way out."""
    setup.write(rows(3))
    done = setup.run(*options)

    assert 1 == done.returncode
    assert words in done.stderr
    assert ["in.jsonl"] == [each.name for each in setup.folder.iterdir()]


def interrupt(setup, chance, kill):
    """Begin a backfill, and kill it after a random part of it; return whether it was killed."""
    process = setup.begin("backfill_tasks.double")
    target = chance.uniform(0.05, 0.9) * MANY * 20
    partial = setup.out.with_name("out.jsonl.partial")
    deadline = time.monotonic() + 60
    while process.poll() is None and time.monotonic() < deadline:
        if partial.exists() and partial.stat().st_size >= target:
            kill(process)
            break
        time.sleep(0.005)
    process.wait(60)
    return not setup.out.exists()


@pytest.mark.parametrize(
    "number",
    [
        0,
        *(
            pytest.param(
                n, marks=pytest.mark.thorough("more moments at which a backfill is killed")
            )
            for n in range(1, 20)
        ),
    ],
)
def test_a_killed_backfill_goes_on(setup, number):
    """Killed at a random moment, the same command ends with the same output, as if undisturbed."""
    chance = random.Random(seed_for(f"kill {number}"))  # noqa: S311 (chance that can be repeated)
    setup.write(rows(MANY))
    kill = chance.choice([signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
    interrupt(setup, chance, lambda process: process.send_signal(kill))
    if not setup.out.exists():
        setup.run("backfill_tasks.double")

    assert expected(MANY) == setup.answers()


@pytest.mark.parametrize("kill", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_backfill_that_is_ended_revokes_its_rows(setup, kill):
    """Whichever signal ends a backfill, what it has on its way does not run in vain."""
    client = redis.Redis(unix_socket_path=str(setup.redis.directory / "redis.sock"))
    setup.write(rows(MANY))
    process = setup.begin("backfill_tasks.slow")
    partial = setup.folder / "out.jsonl.partial"
    has_begun = lambda: partial.exists() and partial.stat().st_size  # noqa: E731
    why = lambda: "" if has_begun() else "nothing is answered"  # noqa: E731
    wait_until(why, [], what="answers", timeout=60)
    process.send_signal(kill)

    assert 130 == process.wait(60)
    why = lambda: "" if not client.llen("celery") else "messages wait"  # noqa: E731
    wait_until(why, [], what="queue", timeout=60)


def messages(client):
    """Return how many messages wait or are held, all counted at one moment."""
    with client.pipeline(transaction=True) as pipe:
        pipe.hlen("unacked")
        for queue in ("celery", *(f"celery\x06\x16{priority}" for priority in range(1, 10))):
            pipe.llen(queue)
        return sum(pipe.execute())


def test_nothing_is_left_in_the_broker(setup):
    """Neither results nor messages of a backfill stay behind."""
    client = redis.Redis(unix_socket_path=str(setup.redis.directory / "redis.sock"))
    # What a killed backfill of another test has sent may still be running.
    idle = lambda: "is busy" if messages(client) else ""  # noqa: E731
    wait_until(idle, [], what="worker", timeout=60)
    before = set(client.keys("celery-task-meta-*"))
    setup.write(rows(200))
    setup.run("backfill_tasks.double")

    assert set() == set(client.keys("celery-task-meta-*")) - before
    # The last ones are acknowledged a moment after their results are there.
    wait_until(idle, [], what="worker", timeout=60)


def test_revoked_rows_leave_no_results(setup, app):
    """A backfill that is ended makes no worker store a state for each of its messages."""
    client = redis.Redis(unix_socket_path=str(setup.redis.directory / "redis.sock"))
    wait_until(lambda: "is busy" if messages(client) else "", [], what="worker", timeout=60)
    before = set(client.keys("celery-task-meta-*"))
    source = (Row(n, str(n), (n,)) for n in range(1000))
    with Backfill(app.double, source, limits_of(app.double), {"queue": "crowd"}) as backfill:
        backfill.step(timeout=0.1)
        sent = backfill.status()["pending"]
    setup.write(rows(200))
    setup.run("backfill_tasks.double")  # the worker has read the revoke when this ends

    assert sent > 0
    assert set() == set(client.keys("celery-task-meta-*")) - before


def test_an_iterable_is_read_no_further_than_needed(app):
    """In Python any iterable will do; it is not consumed ahead of need, and closed at the end."""
    read, closed = [], []

    def numbers():
        try:
            for n in range(10_000):
                read.append(n)
                yield n
        finally:
            closed.append(True)

    answers = app.double.backfill(numbers(), window=64)
    first = [next(answers) for _ in range(40)]
    answers.close()
    is_closed = bool(closed)  # not only when the interpreter looks for cycles of objects

    assert is_closed
    assert [2 * n for n in range(40) if n != 13] == [
        each.output for each in first if not each.error
    ]
    assert len(read) <= 40 + 2 * 64


@pytest.mark.parametrize("in_order", [True, False])
def test_input_that_raises_loses_no_answer(app, in_order):
    """Its error comes behind the answers of what it gave before."""

    def numbers():
        yield from range(100)
        raise OSError("the disk is gone")

    answers = []
    with pytest.raises(OSError, match="the disk is gone"):
        answers.extend(app.double.backfill(numbers(), window=64, in_order=in_order))
    assert [*range(100)] == sorted(each.item for each in answers)


def test_an_answer_has_the_item_that_was_given(app):
    """As it was, in whatever order and however it was spread; only mappings are spread."""
    items = [{"id": "a", "left": "x", "right": "y"}, {"right": "y"}, ("x", "y")]
    found = {each.row.position: each for each in app.join.backfill(items, in_order=False)}

    assert all(found[n].item is item for n, item in enumerate(items))
    assert ("x-y", "a") == (found[0].output, found[0].row.key)
    assert "InvalidRow: row 2 has no field 'left'" == found[1].error
    assert "row 3 must have the fields left, right, it has tuple" in found[2].error


def test_the_first_rows_leave_before_more_is_read(app, setup):
    """Workers begin while the input is still being read, however long that takes."""
    client = redis.Redis(unix_socket_path=str(setup.redis.directory / "redis.sock"))
    waiting = []

    def source():
        for n in range(4):
            waiting.append(client.llen("unread"))
            yield Row(n, str(n), (n,))

    with Backfill(
        app.double, source(), Limits(window=4, chunk_size=2), {"queue": "unread"}
    ) as backfill:
        while len(waiting) < 4:  # a step reads for half a second at most
            backfill.step(timeout=0.0)
    client.delete("unread")

    assert [0, 0, 1, 1] == waiting


def test_answers_come_while_a_slow_input_is_read(app):
    """Where rows come one by one, the first answer waits for no whole window of them."""
    read = []

    def numbers():
        for n in range(1024):
            time.sleep(0.03)
            read.append(n)
            yield n

    with closing(app.double.backfill(numbers())) as answers:
        first = next(answers)

    assert 0 == first.output
    assert len(read) < 768


def send(backfill, client, queue, count):
    """Take steps until at least so many messages wait in a queue."""

    def why():
        backfill.step(timeout=0.1)
        found = client.llen(queue)
        # One may be sent twice: what waits there may have been lost before.
        return "" if found >= count else f"{found} of {count} messages are sent"

    wait_until(why, [], what="messages", timeout=60)


def test_what_was_lost_is_sent_again(app, setup):
    """A broker that has come back empty has lost messages, which are not waited for for ever."""
    client = redis.Redis(unix_socket_path=str(setup.redis.directory / "redis.sock"))
    source = [Row(n, str(n), (n,)) for n in range(4)]
    limits = Limits(window=4, chunk_size=2, patience=0.1)
    with Backfill(app.double, source, limits, {"queue": "unserved"}) as backfill:
        send(backfill, client, "unserved", 2)
        client.delete("unserved")
        found = []

        def why():
            found.extend(backfill.step(timeout=0.1))
            while client.lmove("unserved", "celery", "RIGHT", "LEFT"):  # which is served
                pass
            return "" if backfill.is_over else "waits for what is lost"

        wait_until(why, [], what="answers", timeout=60)

    assert [0, 2, 4, 6] == [each.output for each in found]


def test_what_is_given_up_is_awaited_no_more(app, setup):
    """When a backfill is closed, its process does not poll for ever for what was not answered."""
    client = redis.Redis(unix_socket_path=str(setup.redis.directory / "redis.sock"))
    registry = PendingResults.of(app.double.app)
    source = [Row(n, str(n), (n,)) for n in range(4)]
    with Backfill(
        app.double, source, Limits(window=4, chunk_size=2), {"queue": "left"}
    ) as backfill:
        send(backfill, client, "left", 2)
        was_awaited = registry.is_awaited()
    client.delete("left")

    assert (True, False) == (was_awaited, registry.is_awaited())


def test_what_is_lost_is_found_while_others_keep_the_queue_full(app, setup):
    """Where messages always wait, what one that was sent later has overtaken is lost."""
    client = redis.Redis(unix_socket_path=str(setup.redis.directory / "redis.sock"))
    source = [Row(n, str(n), (n,)) for n in range(8)]
    limits = Limits(window=8, chunk_size=2, patience=0.1)
    with Backfill(app.double, source, limits, {"queue": "crowded"}) as backfill:
        send(backfill, client, "crowded", 4)
        client.delete("crowded")
        app.double.apply_async((1,), queue="crowded")
        found = []

        def why():
            found.extend(backfill.step(timeout=0.1))
            while client.llen("crowded") > 1:  # theirs stays, ours are answered
                client.lmove("crowded", "celery", "LEFT", "RIGHT")
            return "" if backfill.is_over else "waits for what is lost"

        wait_until(why, [], what="answers", timeout=60)
    client.delete("crowded")

    assert [2 * n for n in range(8)] == [each.output for each in found]


def test_a_worker_may_be_slower_than_patience(app):
    """What a worker has is not lost, however long its model takes."""
    source = [Row(n, str(n), (n,)) for n in range(6)]
    limits = Limits(window=6, chunk_size=2, patience=0.1)
    begun = time.monotonic()
    with Backfill(app.slow, source, limits) as backfill:
        found = []
        while not backfill.is_over and time.monotonic() - begun < 60:
            found += backfill.step(timeout=0.05)

    assert [2 * n for n in range(6)] == [each.output for each in found]


@pytest.mark.parametrize("name", ["narrow", "silent"])
def test_options_of_a_task_do_no_harm(app, name):
    """A queue that is full has room later, and answers that others ignore are wanted here."""
    task = getattr(app, name)
    wide = list(task.backfill(range(100), window=100))
    source = [Row(n, str(n), (n,)) for n in range(100)]
    limits = Limits(window=100, chunk_size=16)
    crowded = []
    with Backfill(task, source, limits) as backfill:
        while not backfill.is_over:
            crowded += backfill.step()

    wanted = [2 * n for n in range(100)]
    assert (wanted, wanted) == tuple([each.output for each in some] for some in (wide, crowded))


def test_an_output_is_no_input(setup):
    """A folder that is read is not written to."""
    done = setup.run("backfill_tasks.length", "--input", str(setup.folder))

    assert 1 == done.returncode
    assert "is read, and would be written" in done.stderr
    assert [] == list(setup.folder.iterdir())


@pytest.mark.parametrize("name", ["out.jsonl", "out.jsonl.errors", "out.jsonl.partial"])
def test_an_input_is_no_output(setup, name):
    """Not even --restart takes away what is to be read."""
    setup.write(rows(3), name)
    kept = (setup.folder / name).read_text()
    source = ("--input", str(setup.folder / name), "--format", "jsonl")
    done = setup.run("backfill_tasks.double", *source, "--restart")

    assert (1, kept) == (done.returncode, (setup.folder / name).read_text())
    assert f"{name}: is read, and would be written; name another output" in done.stderr


def test_a_bad_line_costs_one_row(setup):
    """It is an error under its own name, and is run again once it is mended."""
    pairs = [{"id": f"r{n}", "left": n, "right": -n} for n in range(40)]
    lines = [json.dumps(each) for each in pairs]
    bad = {3: '{"id": "r3", "lef', 20: '{"id": "r20", "left": 1}', 30: '["r30"]'}
    text = "\n".join(bad.get(n, line) for n, line in enumerate(lines))
    (setup.folder / "in.jsonl").write_text(text)
    done = setup.run("backfill_tasks.join")

    wanted = [{"key": f"r{n}", "output": f"{n}-{-n}"} for n in range(40)]
    misfit = "InvalidRow: line {} must have the fields left, right, it has {}"
    unread = "InvalidRow: line 4 is not JSON: Unterminated string starting at column 14"
    failed = {
        3: {"key": "4", "error": unread},
        20: {"key": "r20", "error": "InvalidRow: line 21 has no field 'right'"},
        30: {"key": "31", "error": misfit.format(31, "list")},
    }
    assert 1 == done.returncode, done.stderr
    assert [failed.get(n, each) for n, each in enumerate(wanted)] == setup.answers()

    setup.write(pairs)
    assert 0 == setup.run("backfill_tasks.join", "--retry-errors").returncode
    assert wanted == setup.answers()


def test_a_full_disk_is_an_error_from_which_it_goes_on(setup):
    """What was answered until then is not asked again."""
    setup.write(rows(MANY))
    full = setup.run("backfill_tasks.double", largest=60_000)
    assert 1 == full.returncode
    words = "out.jsonl.partial: cannot be written: File too large; the outputs are kept"
    assert words in full.stderr
    assert "Traceback" not in full.stderr

    done = setup.run("backfill_tasks.double")
    assert expected(MANY) == setup.answers()
    assert "rows, 40 failed; " in done.stderr


def test_standard_input_is_given_again(setup):
    """What was answered is skipped; another input is refused, as far as its first line says."""
    text = "".join(json.dumps(each) + "\n" for each in [{"number": 13}, *rows(600)])
    stopped = setup.run("backfill_tasks.double", "--input", "-", "--max-errors", "3", text=text)
    assert "more than --max-errors allows" in stopped.stderr
    other = setup.run("backfill_tasks.double", "--input", "-", text='{"number": 1}\n' + text)
    assert "use --restart to start anew" in other.stderr

    done = setup.run("backfill_tasks.double", "--input", "-", text=text)
    assert 1 == done.returncode
    assert expected(600) == setup.answers()[1:]
    assert " answered before; " in done.stderr


def test_an_empty_input_has_an_empty_output(setup):
    """No rows, no errors."""
    setup.write([])
    done = setup.run("backfill_tasks.double")

    assert (0, []) == (done.returncode, setup.answers())


def test_other_rows_are_not_taken_for_those_that_failed(setup):
    """Where the input has changed its rows' order, a retry would mix them up."""
    setup.write(rows(20))
    setup.run("backfill_tasks.double")
    before = setup.answers()
    setup.write(rows(20)[::-1])
    done = setup.run("backfill_tasks.double", "--retry-errors")

    assert (1, before) == (done.returncode, setup.answers())
    assert "line 14 is 'r6' now, and the one that failed was 'r13'" in done.stderr


def test_a_value_that_no_message_has_costs_one_row(app):
    """The others of its chunk are asked one by one."""
    values = [1, {2}, 3, b"4"]
    found = [(each.output, each.error) for each in app.echo.backfill(values)]

    assert [(1, ""), (None, found[1][1]), (3, ""), (b"4", "")] == found
    assert ": the argument value is a set, which the serializer 'json' cannot" in found[1][1]


@pytest.mark.parametrize(("window", "wanted"), [(None, 50 * 4 * 16), (64, 64)])
def test_the_window_grows_with_the_workers(app, monkeypatch, window, wanted):
    """The more answer, the more is on its way, unless it was said how much may be."""
    source = (Row(n, str(n), (n,)) for n in range(10_000))
    limits = limits_of(app.double, window=window)
    with Backfill(app.double, source, limits, {"queue": "crowd"}) as backfill:
        monkeypatch.setattr(backfill._sender, "workers", lambda: 50)
        # A step sends for so long only; its last chunk may be no whole one, so some are missing.
        while backfill.status()["pending"] <= wanted - 16:
            backfill.step(timeout=0.1)

        assert wanted == backfill.status()["window"] >= backfill.status()["pending"]


def test_the_window_is_no_wider_than_the_queue(app):
    """Where a task says how many may wait, no more are sent however many workers there are."""
    assert (20, 0) == (limits_of(app.narrow).window, limits_of(app.narrow).rows_per_worker)
