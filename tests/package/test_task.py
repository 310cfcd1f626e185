"""The task that caller and worker share: its single-item face, however it is made."""

from __future__ import annotations

from typing import Any
from weakref import WeakSet

import pytest
from celery import Celery, Task, _state, shared_task

from celery_batch import BatchTask, InvalidChunk, WrongResultCount
from celery_batch.config import policy_of
from tests.services.making import double, join, make, refusal

#: What a batch task brings along.
WORKER_STEPS = {
    "celery_batch.worker.bootsteps:BatchWorker",
    "celery_batch.worker.metrics.exporter:BatchMetrics",
}
CONSUMER_STEPS = {
    "celery_batch.worker.bootsteps:BatchConsumer",
    "celery_batch.worker.metrics.health_step:HealthStep",
}


@pytest.fixture
def app(monkeypatch: pytest.MonkeyPatch) -> Celery:
    """An app of the test's own; Celery gives shared tasks to every app there will be."""
    monkeypatch.setattr(_state, "_on_app_finalizers", set())
    monkeypatch.setattr(_state, "_apps", WeakSet())
    return Celery("shop", set_as_current=False)


def poison(x):
    """Fail each item with an error of its own, and the batch if one is zero."""
    return [KeyError(value) for value in x if 1 / value]


def twice(x):
    """Return two outputs per input."""
    return x + x


def named(self, x):
    """Take the task itself before the batch."""
    return [(self.name, value) for value in x]


class TestCalls:
    """Without a worker of ours a task is called with one item and runs a batch of one."""

    def test_defaults_and_keywords(self, app: Celery):
        """Each parameter becomes a list, however it was given or left out."""
        task = make(app, join)

        assert "a-!" == task("a") == task.apply(("a",)).get()
        assert "a-b" == task("a", "b") == task(right="b", left="a")
        assert "a+b" == task("a", "b", sep="+")
        assert "a+!" == task.apply(("a",), {"sep": "+"}).get()

    def test_the_function_sees_lists(self, app: Celery):
        """A list given by a caller is one item, not a batch."""
        task = make(app)

        assert [1, 2, 1, 2] == task([1, 2])

    @pytest.mark.parametrize(
        ("args", "kwargs"), [((), {}), (("a", "b", "c"), {}), (("a",), {"spe": "+"})]
    )
    def test_wrong_arguments(self, app: Celery, args: tuple[Any, ...], kwargs: dict[str, Any]):
        """A call that does not fit is refused where it is made, also before it is sent."""
        task = make(app, join)

        with pytest.raises(TypeError):
            task(*args, **kwargs)
        with pytest.raises(TypeError):
            task.delay(*args, **kwargs)

    def test_wrong_count(self, app: Celery):
        """The error names the task that returned the wrong number of outputs."""
        task = make(app, twice, name="shop.twice")

        with pytest.raises(
            WrongResultCount,
            match=r"^shop\.twice returned 2 outputs for a batch .* a list \* 2 repeats it$",
        ):
            task(1)

    def test_bound(self, app: Celery):
        """With bind=True the task itself comes first and is no item."""
        task = make(app, named, name="b", bind=True)

        assert ("b", 1) == task(1) == task(x=1) == task.apply((1,)).get()


class TestClasses:
    """A task may be written as a class whose `run` is on lists."""

    def test_registered_by_hand(self, app: Celery):
        """It has the same single-item face."""

        class Scale(BatchTask):
            name = "shop.scale"
            max_batch_size = 4
            factor = 3

            def run(self, x, *, plus=0):
                return [value * self.factor + more for value, more in zip(x, plus, strict=True)]

        task = app.register_task(Scale())

        assert 6 == task(2) == task.apply((2,)).get()
        assert 7 == task(2, plus=1)
        assert 4 == policy_of(task).max_batch_size

    def test_static_run(self, app: Celery):
        """A `run` that needs no task is fine as well."""

        class Scale(BatchTask):
            name = "shop.scale"
            run = staticmethod(double)

        assert 4 == app.register_task(Scale())(2)

    def test_attributes_of_its_own(self, app: Celery):
        """A class may hold anything; only its values that are ours are checked."""

        class Odd(BatchTask):
            name = "shop.odd"
            max_batchsize = "what it wants"
            max_wait = -1

            def run(self, x):
                return x

        assert "shop.odd.max_wait: must be seconds as a number from 0 up, got -1" == refusal(
            lambda: app.register_task(Odd())
        )

    def test_extended(self, app: Celery):
        """A task class made from another may keep its `run`, or bring its own."""

        class Double(BatchTask):
            name = "shop.double"

            def run(self, x):
                return double(x)

        class Renamed(Double):
            name = "shop.renamed"

        class Half(Double):
            name = "shop.half"

            def run(self, x, by=2):
                return [value / divisor for value, divisor in zip(x, by, strict=True)]

        made = [app.register_task(kind()) for kind in (Double, Renamed, Half)]

        assert [8, 8, 2] == [task(4) for task in made]
        assert 1 == made[2](4, by=4)

    def test_base_classes_are_no_tasks(self, app: Celery):
        """A class without `run` can be bound, and is not checked as a task."""

        class Base(BatchTask):
            abstract = True
            max_wait = -1

        Base.bind(app)

        assert Base.run is Task.run


class TestBinding:
    """Celery may bind a task more than once."""

    def test_twice(self, app: Celery):
        """The function is wrapped once."""
        task = make(app)
        task.bind(app)
        task.bind(app)

        assert 42 == task(21)

    def test_to_another_app(self, app: Celery):
        """A task written as a class goes with the app that took it last."""

        class Double(BatchTask):
            name = "shop.double"

            def run(self, x):
                return double(x)

        other = Celery("other", set_as_current=False)
        other.conf.batch_max_size = 5
        app.register_task(Double())
        task = other.register_task(Double())

        assert 42 == task(21)
        assert 5 == policy_of(task).max_batch_size
        for each in (app, other):
            assert WORKER_STEPS == each.steps["worker"]

    def test_shared(self, app: Celery):
        """A shared task joins every app, each with its own settings."""
        shared_task(base=BatchTask, name="shop.shared", max_wait=0.5)(double)
        other = Celery("other", set_as_current=False)
        other.conf.batch_max_size = 5
        tasks = [each.tasks["shop.shared"] for each in (app, other)]

        assert [42, 42] == [task(21) for task in tasks]
        assert [32, 5] == [policy_of(task).max_batch_size for task in tasks]

    def test_shared_with_a_wrong_option(self, app: Celery):
        """A shared task is checked like any other."""
        shared_task(base=BatchTask, name="shop.shared", max_wiat=0.5)(double)

        assert refusal(lambda: app.tasks).startswith("shop.shared.max_wiat: no such task option")

    def test_worker_s_steps(self, app: Celery):
        """A batch task brings the worker's steps along; without one there are none."""
        app.finalize()

        assert (set(), set()) == (app.steps["worker"], app.steps["consumer"])

        make(app)

        assert WORKER_STEPS == app.steps["worker"]
        assert CONSUMER_STEPS == app.steps["consumer"]


class TestRunBatch:
    """`run_batch` calls the function with lists, as a test of it does."""

    def test_rows_and_columns(self, app: Celery):
        """Of one parameter it takes the rows, of several a list for each."""
        task, many = make(app), make(app, join)

        assert [2, 4, 6] == task.run_batch([1, 2, 3]) == task.run_batch(x=(1, 2, 3))
        assert ["a-!", "b-!"] == many.run_batch(["a", "b"])
        assert ["a+c", "b-d"] == many.run_batch(["a", "b"], ["c", "d"], sep=["+", "-"])

    def test_bound(self, app: Celery):
        """A function that takes the task itself is given it."""
        task = make(app, named, bind=True)

        assert [(task.name, 1), (task.name, 2)] == task.run_batch([1, 2])

    def test_one_call_whatever_the_size(self, app: Celery):
        """All rows go in one call, and what it raises is raised."""
        sizes = []

        def counting(x):
            sizes.append(len(x))
            return [1 / value for value in x]

        task = make(app, counting, max_batch_size=2)
        task.run_batch([1] * 5)
        with pytest.raises(ZeroDivisionError):
            task.run_batch([1, 0, 1])

        assert [5, 3] == sizes

    def test_errors_of_rows_are_returned(self, app: Celery):
        """An exception in place of an output stays there."""
        first, second = make(app, poison).run_batch([1, 2])

        assert isinstance(first, KeyError)
        assert (2,) == second.args

    def test_what_does_not_fit(self, app: Celery):
        """Lists of different lengths, no rows and a wrong count of outputs are named."""
        with pytest.raises(InvalidChunk, match="right: must have 2 rows"):
            make(app, join).run_batch(["a", "b"], ["c"])
        with pytest.raises(InvalidChunk, match="from 1 to"):
            make(app).run_batch([])
        with pytest.raises(WrongResultCount, match="returned 4 outputs for a batch of 2"):
            make(app, twice).run_batch([1, 2])
