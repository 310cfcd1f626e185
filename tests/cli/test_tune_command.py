"""``celery batch tune``: loads and measures a task of an app, and proposes settings."""

from __future__ import annotations

import json
import sys
import time
from functools import cache
from types import SimpleNamespace

import pytest
from celery import Celery
from click.testing import CliRunner

from celery_batch import BatchTask, Model
from celery_batch.cli.common import batch_task
from celery_batch.cli.tune import probe, rows_for, tune
from celery_batch.cli.tune_report import show
from celery_batch.errors import BackfillError, ConfigurationError, ModelError, OutOfMemory
from celery_batch.padding import padded_length
from celery_batch.runtime import registry
from celery_batch.testing import HungryModel
from celery_batch.tuning.curve import Curve, Point
from celery_batch.tuning.propose import propose

#: Models that were unloaded.
unloaded = []


class Hungry(HungryModel):
    """Has room for eight, and something to be measured with."""

    def examples(self):
        """Return one."""
        return ["a"]

    def unload(self):
        """Note it."""
        unloaded.append(self)


class Shy(Model):
    """Cannot answer its own example when asked with others."""

    def examples(self):
        """Return one."""
        return [1]

    def predict(self, batch):
        """Answer one at a time."""
        return list(batch) if len(batch) == 1 else [ValueError("too many") for _ in batch]


class Broken(Model):
    """Cannot be loaded."""

    def load(self, device):
        """Say why."""
        raise FileNotFoundError(f"no weights for {device} at /nowhere")

    def predict(self, batch):
        """Answer."""
        return batch


class Texts(Model):
    """Takes a millisecond and a tenth of that for each character, padding included."""

    def examples(self):
        """Return texts of unlike lengths."""
        return ["x" * length for length in (1, 2, 3, 8)]

    def predict(self, texts):
        """Compute."""
        time.sleep(0.001 + 0.0001 * max(map(len, texts)) * len(texts))
        return texts


class Bare(Model):
    """Has no examples."""

    def predict(self, batch):
        """Answer."""
        return batch


@pytest.fixture
def app(monkeypatch):
    """An app with tasks of each kind, none of which knows a broker."""
    monkeypatch.setattr(registry, "_device", None)
    with Celery("tuned", set_as_current=False) as app:
        for model in (Hungry, Shy, Bare, Broken):
            model.as_task(app, name=model.__name__.lower())

        by_length = {"cost": "item", "max_batch_cost": 50, "padded": True}
        Texts.as_task(app, name="texts", **by_length)
        Texts.as_task(app, name="letters", max_item_cost=12, **by_length)

        @app.task(base=BatchTask, name="add")
        def add(left, right, scale=1):
            return [s * (a + b) for a, b, s in zip(left, right, scale, strict=True)]

        @app.task(name="plain")
        def plain():
            return None

        yield app
    registry.unload_all()


@pytest.fixture
def run(app):
    """Call the command on the app."""

    def run(*words, code=0):
        done = CliRunner().invoke(
            tune,
            [*words, "--seconds", "0.01", "--device", "cpu"],
            obj=SimpleNamespace(app=app),
            catch_exceptions=False,
        )
        assert code == done.exit_code, done.output
        # On a slow machine progress is printed, too, before an error.
        return done.stdout if code == 0 else done.stderr[done.stderr.index("Error: ") :]

    return run


def test_a_model_is_measured_until_memory_ends(run):
    """With its own examples; the cap is printed, and no advice for workers."""
    said = run("hungry", "--latency", "5", "--sizes", "1,2,4,8,16,32")

    assert said.startswith("hungry on cpu")
    assert ["batch", "1", "2", "4", "8"] == [line.split()[0] for line in said.splitlines()[1:6]]
    assert "No larger ones: a batch of 16 does not fit into memory" in " ".join(said.split())
    assert "max_batch_size=" in said
    assert unloaded


def test_everything_is_there_as_data(run):
    """For scripts: what was measured, what is proposed, what it is expected to do."""
    found = json.loads(run("hungry", "--json", "--latency", "30", "--rate", "1", "--sizes", "1,2"))

    assert ("hungry", "cpu", 30.0, 1.0, True) == tuple(
        found[name] for name in ("task", "device", "latency", "rate", "meets")
    )
    assert [1, 2] == [each["size"] for each in found["sizes"]]
    assert {"max_batch_size", "max_wait", "linger"} == found["settings"].keys()
    assert {"p50", "p99", "rate", "batch_size", "busy"} == found["forecast"].keys()


def test_cost_is_measured_and_proposed_where_it_is_limited(run, tmp_path):
    """Budgets from the longest text up, and how the time depends on them."""
    trace, picture = tmp_path / "trace.jsonl", tmp_path / "tune.png"
    lines = [{"arrived": n / 100, "cost": float(1 + n % 8), "rows": 1} for n in range(200)]
    head = {"task": "texts", "processes": 1}
    trace.write_text("".join(json.dumps(line) + "\n" for line in (head, *lines)))
    words = ["texts", "--sizes", "1,4,16", "--latency", "1", "--trace", str(trace)]
    found = json.loads(run(*words, "--json"))

    assert [8, 16, 32, 64, 128] == [each["size"] for each in found["sizes"]]
    assert pytest.approx(100, rel=0.02) == found["rate"]
    assert 0.00009 < found["cost"]["b"] < 0.0003
    assert ["max_batch_cost", "sort_window", "max_wait", "linger"] == [*found["settings"]]

    said = run(*words, "--plot", str(picture))

    assert "for each unit of its cost, with its padding; measured up to a cost of 128" in " ".join(
        said.split()
    )
    assert "max_batch_cost=" in said
    assert picture.exists()


def test_a_proposed_cost_holds_the_costliest_item(run):
    """Though the examples are shorter than the longest item that the task takes."""
    words = ["letters", "--sizes", "1,4", "--latency", "1", "--rate", "10", "--json"]
    found = json.loads(run(*words))

    assert 12 == found["sizes"][0]["size"]
    assert found["settings"]["max_batch_cost"] >= 12


def test_what_a_trace_lacks_is_said(run, tmp_path):
    """Costs are needed where cost is limited."""
    trace = tmp_path / "trace.jsonl"
    lines = [{"arrived": n / 100, "cost": 0.0, "rows": 1} for n in range(200)]
    head = {"task": "texts", "processes": 1}
    trace.write_text("".join(json.dumps(line) + "\n" for line in (head, *lines)))

    assert "has no costs" in run("texts", "--trace", str(trace), code=1)


@pytest.mark.parametrize("is_terminal", [True, False])
def test_progress_is_printed_on_a_terminal(app, monkeypatch, capsys, is_terminal):
    """In lines on standard error where there is no spinner; nothing in a log or a pipe."""
    for name in ("rich", "rich.console"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setattr("celery_batch.cli.tune._EVERY", 0.0)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: is_terminal)
    words = ["hungry", "--json", "--sizes", "1,2", "--seconds", "0.01", "--device", "cpu"]
    tune.main(words, standalone_mode=False, obj=SimpleNamespace(app=app))
    out, err = capsys.readouterr()
    printed = err.splitlines()

    assert [1, 2] == [each["size"] for each in json.loads(out)["sizes"]]
    if is_terminal:
        assert ["loading ...", "batches of 1 ...", "batches of 2 ..."] == printed[:3]
        assert "simulating requests with batches of up to 2 ..." in printed
    else:
        assert not printed


@pytest.mark.parametrize("kind", ["png", "svg"])
def test_it_is_drawn(run, tmp_path, kind):
    """In the kind that the name asks for."""
    picture = tmp_path / f"tune.{kind}"
    run("hungry", "--plot", str(picture), "--latency", "30", "--rate", "1", "--sizes", "1,2")

    assert picture.read_bytes().startswith({"png": b"\x89PNG", "svg": b"<?xml"}[kind])


def test_a_plot_wants_matplotlib_before_it_measures(run, monkeypatch, tmp_path):
    """Rather than after minutes."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    said = run("bare", "--plot", str(tmp_path / "tune.png"), code=1)

    assert "Error: --plot needs matplotlib: pip install matplotlib" in said


def test_a_table_needs_nothing_that_may_be_missing(run, monkeypatch):
    """What was measured for minutes is not thrown away for want of colours."""
    for name in ("rich", "rich.console"):
        monkeypatch.setitem(sys.modules, name, None)
    said = run("hungry", "--latency", "30", "--rate", "1", "--sizes", "1")

    assert said.startswith("hungry on cpu\n")
    assert "max_batch_size=1" in said


def measured(memory):
    """Return the curve of a model that gains from batches up to 512, and uses so much memory."""
    return Curve(tuple(Point(n, (0.01 + n * 1e-6,), memory) for n in (1, 512, 1024)))


@cache
def proposed():
    """Return what is proposed for it, which takes a second to find."""
    return propose(measured(None), 0.2, rate=50)


@pytest.mark.parametrize(
    ("columns", "memory", "longest"),
    [(80, None, 20), (70, None, 14), (60, None, 0), (80, 3 << 30, 14), (200, None, 20)],
)
def test_bars_are_as_long_as_there_is_room_for(capsys, monkeypatch, columns, memory, longest):
    """Never cut, so that the best can be distinguished; without room there are none."""
    monkeypatch.setenv("COLUMNS", str(columns))
    show("t", "cpu", measured(memory), proposed())
    table = capsys.readouterr().out.splitlines()[2:5]

    assert [0, longest // 2, longest] == [line.count("█") for line in table]
    assert max(map(len, table)) <= columns


def test_rows_of_a_file_are_what_a_function_is_measured_with(run, tmp_path):
    """As a backfill reads them: by the names of its parameters."""
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"left": 1, "right": 2}\n{"left": 3, "right": 4, "scale": 2}\n')
    found = json.loads(run("add", "--json", "--input", str(rows), "--rate", "1", "--sizes", "3,1"))

    assert [1, 3] == [each["size"] for each in found["sizes"]]


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["hungri"], "did you mean hungry?"),
        (["plain"], "this app's batch tasks: add, bare, broken, hungry"),
        (["bare"], "bare: its model has no examples(), so there is nothing to measure with;"),
        (["broken"], "Broken on cpu: FileNotFoundError: no weights for cpu at /nowhere"),
        (["add"], "add: it is a function, so there is nothing to measure with; give --input"),
        (["shy"], "shy: 1 failed with ValueError: too many; measure with rows that succeed"),
        (["hungry", "--sizes", "0,x"], "--sizes: must be whole numbers from 1 to 1024"),
        (["hungry", "--plot", "tune.gif"], "--plot: tune.gif: must end in one of .png, .svg, .pdf"),
        (["hungry", "--plot", "/no/a.png"], "--plot: /no/a.png: there is no folder /no"),
        (["hungry", "--input", "no.jsonl"], "no.jsonl: there is no such file or folder"),
    ],
    ids=lambda words: words[0] if isinstance(words, list) else "",
)
def test_what_cannot_be_measured_is_said(run, words, error):
    """In one line, with the way out, and without a traceback."""
    said = run(*words, code=1)

    assert said.startswith("Error: ")
    assert error in said
    assert "Traceback" not in said


@pytest.mark.parametrize("value", ["inf", "nan"])
@pytest.mark.parametrize("option", ["--latency", "--rate", "--overhead"])
def test_a_number_without_end_is_refused(run, option, value):
    """Before anything is measured: no settings could meet it."""
    said = run("hungry", option, value, code=2)

    assert f"Invalid value for '{option}': {value}: must be a finite number" in said


def test_rows_that_do_not_fit_are_left_out(app, tmp_path):
    """A broken line is no reason not to measure with the others; if all are, it is said why."""
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"left": 1}\n{"left": 3, "right": 4}\n{"lef')

    assert [(3, 4, 1)] == rows_for(batch_task(app, "add"), str(rows))

    rows.write_text('{"left": 1}\n')
    with pytest.raises(BackfillError, match="line 1 has no field 'right'"):
        rows_for(batch_task(app, "add"), str(rows))


class Ladder(Model):
    """Refuses texts that are longer than its lengths, and with them the whole batch."""

    batch_lengths, batch_sizes = (4, 8), (1, 2, 4)

    def example(self, length):
        """Return a text of a length."""
        return "x" * length

    def predict(self, batch):
        """Answer, unless a text is too long."""
        padded_length(max(map(len, batch)), lengths=self.batch_lengths)
        return batch


@pytest.mark.parametrize(
    "options",
    [{"cost": "item", "max_item_cost": 8}, {"cost": "item", "max_item_cost": 8,
     "max_batch_cost": 64}, {}],
    ids=["cost", "batch cost", "lengths"],
)  # fmt: skip
def test_rows_that_are_too_large_are_left_out(app, tmp_path, options):
    """They are counted beside the result, like those that do not fit; if all are, it fails."""
    (Ladder if not options else Texts).as_task(app, name="short", **options)
    rows = tmp_path / "rows.jsonl"
    lines = [json.dumps({"item": "x" * n}) for n in (2, 9, 4, 30)]
    rows.write_text("\n".join([*lines, "{"]))
    words = ["short", "--input", str(rows), "--json", "--sizes", "1,2,4", "--latency", "30",
             "--rate", "1", "--seconds", "0.01", "--device", "cpu"]  # fmt: skip
    done = CliRunner().invoke(tune, words, obj=SimpleNamespace(app=app), catch_exceptions=False)

    assert 0 == done.exit_code, done.output
    assert json.loads(done.stdout)["sizes"]
    assert "1 of 5 rows do not fit the task, and are left out" in done.stderr
    assert "2 of 4 rows are too large for the task, or fail in it, and are left out" in done.stderr

    rows.write_text(lines[1])
    done = CliRunner().invoke(tune, words, obj=SimpleNamespace(app=app), catch_exceptions=False)

    assert "Error: no row fits the task: " in done.stderr
    assert 1 == done.exit_code


def test_a_few_rows_that_fail_are_left_out(app):
    """One in twenty is no reason not to measure with the others; more are."""
    bad = {7, 20, 41}

    @app.task(base=BatchTask, name="picky")
    def picky(item):
        if not bad.isdisjoint(item):
            raise ValueError("bad item")
        return item

    rows = [(n,) for n in range(60)]
    run = probe(picky, rows)
    for _ in range(8):
        run(8)

    assert [n for n in range(60) if n not in bad] == [n for (n,) in rows]

    bad.add(50)
    with pytest.raises(ModelError, match="failed with ValueError: bad item; measure with rows"):
        run(57)


def test_an_empty_file_is_refused(app, tmp_path):
    """It is no reason to fall back to something else."""
    empty = tmp_path / "empty.jsonl"
    empty.touch()
    with pytest.raises(ConfigurationError, match=r"empty\.jsonl: has no rows to measure with"):
        rows_for(batch_task(app, "add"), str(empty))


def test_batches_are_cut_from_the_rows_in_turn(app):
    """Every row has its turn, so that long and short ones are measured as they come."""
    seen = []

    @app.task(base=BatchTask, name="noted")
    def noted(item):
        seen.append(list(item))
        return item

    run = probe(noted, [(1,), (2,), (3,)])
    for size in (2, 2, 4):
        run(size)

    assert [[1, 2], [3, 1], [2, 3, 1, 2]] == seen


def test_every_stage_of_a_model_counts(app, run):
    """A batch that comes alone takes the time of all of them, whatever runs beside others."""

    class Staged(Model):
        def load(self, device):
            pass

        def examples(self):
            return [1]

        def collate(self, batch):
            time.sleep(0.02)
            return batch

        def predict(self, batch):
            time.sleep(0.01)
            return batch

        def uncollate(self, output):
            time.sleep(0.03)
            return output

    Staged.as_task(app, name="staged")
    (found,) = json.loads(run("staged", "--json", "--sizes", "1", "--seconds", "0.1"))["sizes"]

    assert found["p50"] >= 0.06


def test_a_task_of_fixed_sizes_is_measured_with_these(app, run):
    """Others would be filled up to them."""

    class Fixed(Hungry):
        batch_sizes = (2, 4)

    Fixed.as_task(app, name="fixed")

    assert [2, 4] == [each["size"] for each in json.loads(run("fixed", "--json"))["sizes"]]
    assert "fixed has calls of 2, 4 rows, got '2,3'" in run("fixed", "--sizes", "2,3", code=1)


def test_a_batch_is_one_call_however_large(app):
    """The task's own largest batch is no limit here, and what did not fit is not remembered."""
    sizes = []

    @app.task(base=BatchTask, name="sized", max_batch_size=2)
    def sized(item):
        sizes.append(len(item))
        if len(item) > 50:
            raise MemoryError
        return item

    run = probe(sized, [(1,)])
    with pytest.raises(OutOfMemory):
        run(60)
    run(40)

    assert [60, 40] == sizes


def test_a_failing_model_is_named_with_the_row(app):
    """So that it can be left out of what is measured."""

    @app.task(base=BatchTask, name="failing")
    def failing(item):
        raise KeyError(item[0])

    with pytest.raises(ModelError, match=r"failing: 'a+\.\.\.a+' failed with KeyError"):
        probe(failing, [("a" * 100,)])(1)


def test_memory_is_what_the_device_says(app, monkeypatch):
    """The most in use during the run, where torch has a GPU awake."""
    cuda = SimpleNamespace(
        is_initialized=lambda: True,
        reset_peak_memory_stats=lambda: None,
        max_memory_allocated=lambda: 123,
        OutOfMemoryError=MemoryError,
    )
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    task = batch_task(app, "add")

    assert 123 == probe(task, [(1, 2, 3)])(2).memory

    monkeypatch.setattr(cuda, "is_initialized", lambda: False)

    assert probe(task, [(1, 2, 3)])(2).memory is None
