"""The task that caller and worker share: its options, its single-item face."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from weakref import WeakSet

import pytest
from celery import Celery, Task, _state, shared_task
from celery.exceptions import CDeprecationWarning

from celery_batch import BatchTask, ConfigurationError, WrongResultCount
from celery_batch.config import policy_of
from celery_batch.seat import Seat, seat
from celery_batch.serving.runner import Outcome


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Celery gives shared tasks to every app there will be; not from test to test."""
    monkeypatch.setattr(_state, "_on_app_finalizers", set())
    monkeypatch.setattr(_state, "_apps", WeakSet())


@pytest.fixture
def app() -> Celery:
    """An app of the test's own."""
    return Celery("shop", set_as_current=False)


def double(x):
    """Double each number."""
    return [value * 2 for value in x]


def join(left, right="!", *, sep="-"):
    """Take several parameters, one with a default and one by keyword only."""
    return [f"{a}{s}{b}" for a, b, s in zip(left, right, sep, strict=True)]


def poison(x):
    """Fail each item with an error of its own, and the batch if one is zero."""
    return [KeyError(value) for value in x if 1 / value]


def twice(x):
    """Return two outputs per input."""
    return x + x


def named(self, x):
    """Take the task itself before the batch."""
    return [(self.name, value) for value in x]


def no_batch():
    """Take nothing."""


def no_batch_either(self):
    """Take nothing but the task itself."""


def any_number(*rows):
    """Take whatever comes."""
    return rows


def any_name(x, **rest):
    """Take whatever is named."""
    return x, rest


def make(app: Celery, function: Any = double, **options: Any) -> Any:
    """Make a batch task of a function, as the decorator does on first use."""
    task = app.task(base=BatchTask, **options)(function)
    app.finalize()
    return task


def refusal(make_it: Any) -> str:
    """Return what a task that cannot be made is told."""
    with pytest.raises(ConfigurationError) as refused:
        make_it()
    return str(refused.value)


class TestCalls:
    """Without a worker of ours a task is called with one item and runs a batch of one."""

    def test_called_directly(self, app: Celery):
        """A direct call takes an item and returns its output."""
        task = make(app)

        assert 42 == task(21) == task(x=21) == task.run(21)

    def test_applied(self, app: Celery):
        """`apply` runs the task here and has its result."""
        task = make(app)

        assert 42 == task.apply((21,)).get()
        assert 42 == task.apply(kwargs={"x": 21}).get()

    def test_eager(self, app: Celery):
        """In eager mode `delay` and a signature do the same."""
        app.conf.task_always_eager = True
        task = make(app)

        assert 42 == task.delay(21).get()
        assert 42 == task.s(21).delay().get()
        assert 84 == (task.s(21) | task.s()).delay().get()

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

    def test_errors(self, app: Celery):
        """An error in an item's place, or for the batch, is the call's own."""
        task = make(app, poison)

        with pytest.raises(KeyError, match="7"):
            task(7)
        with pytest.raises(ZeroDivisionError):
            task(0)
        assert ["FAILURE", "FAILURE"] == [task.apply((item,)).state for item in (7, 0)]

    def test_wrong_count(self, app: Celery):
        """The error names the task that returned the wrong number of outputs."""
        task = make(app, twice, name="shop.twice")

        with pytest.raises(WrongResultCount, match=r"^shop\.twice returned 2 outputs for a batch"):
            task(1)

    def test_bound(self, app: Celery):
        """With bind=True the task itself comes first and is no item."""
        task = make(app, named, name="b", bind=True)

        assert ("b", 1) == task(1) == task(x=1) == task.apply((1,)).get()

    def test_retried(self, app: Celery):
        """Celery's own rules for errors worth another try apply to the item."""
        tries = []

        def flaky(x):
            tries.append(x)
            return [ConnectionError("gone") if len(tries) < 3 else value for value in x]

        task = make(app, flaky, autoretry_for=(ConnectionError,), max_retries=2)

        assert 7 == task.apply((7,)).get()
        assert [[7], [7], [7]] == tries


class TestOptions:
    """What is written beside the function is checked when the task is made."""

    def test_ours(self, app: Celery):
        """Size and times are the task's own."""
        task = make(app, max_batch_size=4, max_wait=0.5, linger=0.25)
        policy = policy_of(task)

        assert (4, 0.5, 0.25) == (policy.max_batch_size, policy.max_wait, policy.linger)

    def test_the_app_s(self, app: Celery):
        """What the task leaves out is the app's."""
        app.conf.update(batch_max_size=5, batch_max_wait=0.5)
        policy = policy_of(make(app, max_wait=0.25))

        assert (5, 0.25) == (policy.max_batch_size, policy.max_wait)

    def test_the_app_s_with_a_namespace(self, app: Celery):
        """In Django's settings they carry Celery's prefix."""
        app.config_from_object(SimpleNamespace(CELERY_BATCH_MAX_SIZE=5), namespace="CELERY")

        assert 5 == policy_of(make(app)).max_batch_size

    @pytest.mark.parametrize(
        ("option", "hint"),
        [
            ("max_batch_sise", "; did you mean max_batch_size?"),
            ("maxwait", "; did you mean max_wait?"),
            ("lingre", "; did you mean linger?"),
            ("autoretry_far", "; did you mean autoretry_for?"),
            ("rate_limits", "; did you mean rate_limit?"),
            ("something_else_entirely", ""),
        ],
    )
    def test_misspelt(self, app: Celery, option: str, hint: str):
        """An option nobody reads is refused, and the nearest real one named."""
        message = refusal(lambda: make(app, name="shop.t", **{option: 1}))

        assert (
            f"shop.t.{option}: no such task option{hint}"
            f" (declare attributes of your own on a base class)" == message
        )

    @pytest.mark.parametrize(
        "options",
        [
            {"autoretry_for": (KeyError,), "retry_backoff": True, "retry_backoff_max": 9},
            {"retry_kwargs": {"max_retries": 1}, "retry_jitter": False},
            {"dont_autoretry_for": (KeyError,), "max_retries": None, "default_retry_delay": 1},
            {"acks_late": False, "reject_on_worker_lost": True, "ignore_result": True},
            {"rate_limit": "10/s", "time_limit": 9, "soft_time_limit": 8, "expires": 60},
            {"serializer": "json", "compression": "zlib", "typing": False, "track_started": True},
            {"throws": (KeyError,), "store_errors_even_if_ignored": True, "trail": False},
        ],
        ids=lambda options: next(iter(options)),
    )
    def test_celery_s(self, app: Celery, options: dict[str, Any]):
        """Whatever Celery's decorator takes, ours does."""
        task = make(app, **options)

        assert options == {name: getattr(task, name) for name in options}

    @pytest.mark.parametrize(
        "options",
        [{"queue": "gpu"}, {"exchange": "e", "routing_key": "k"}, {"priority": 3}],
        ids=lambda options: next(iter(options)),
    )
    def test_celery_s_that_will_go(self, app: Celery, options: dict[str, Any]):
        """Options that Celery has announced to remove still pass, with its warning alone."""
        with pytest.warns(CDeprecationWarning, match="task attribute is deprecated"):
            task = make(app, **options)

        assert options == {name: getattr(task, name) for name in options}

    def test_your_own_on_a_base_class(self, app: Celery):
        """Attributes declared on a base class may be set like options."""

        class Metered(BatchTask):
            abstract = True
            price = 1.0

        task = app.task(base=Metered, price=2.5, max_batch_size=4)(double)

        assert 2.5 == task.price
        assert 42 == task(21)

    def test_wrong_value(self, app: Celery):
        """The message names the task, the option and the value."""
        message = refusal(lambda: make(app, name="shop.t", max_batch_size=0))

        assert "shop.t.max_batch_size: must be a whole number of at least 1, got 0" == message

    def test_misspelt_setting(self, app: Celery):
        """A misspelt setting of the app is told when its first batch task is made."""
        app.conf.batch_max_sise = 3

        assert "batch_max_sise: no such setting; did you mean batch_max_size?" == refusal(
            lambda: make(app)
        )

    def test_results_are_acknowledged_late(self, app: Celery):
        """What a dying worker held is run elsewhere, unless the task says otherwise."""
        assert make(app).acks_late is True


class TestFunctions:
    """A function that cannot be called with lists is refused by name."""

    def test_any_number_of_arguments(self, app: Celery):
        """*args and **kwargs have no list per parameter."""
        many = refusal(lambda: make(app, any_number, name="shop.many"))
        named = refusal(lambda: make(app, any_name, name="shop.named"))

        tail = "cannot become a list per parameter; name the parameters"
        assert f"shop.many: *rows {tail}" == many
        assert f"shop.named: *rest {tail}" == named

    def test_no_argument(self, app: Celery):
        """Without a parameter there is no batch; the task itself is none."""
        message = "must take at least one parameter, the batch"

        assert f"shop.none: {message}" == refusal(lambda: make(app, no_batch, name="shop.none"))
        assert f"shop.self: {message}" == refusal(
            lambda: make(app, no_batch_either, name="shop.self", bind=True)
        )

    def test_pydantic(self, app: Celery):
        """Celery's argument models check one call, not a batch of them."""
        pytest.importorskip("pydantic")
        message = refusal(lambda: make(app, double, name="shop.t", pydantic=True))

        assert message.startswith("shop.t: pydantic=True checks one call at a time")
        assert message.endswith("validate inside the function instead")


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
            assert {"celery_batch.worker.steps:BatchWorker"} == each.steps["worker"]

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

        assert {"celery_batch.worker.steps:BatchWorker"} == app.steps["worker"]
        assert {"celery_batch.worker.steps:BatchConsumer"} == app.steps["consumer"]


class TestSeat:
    """The worker's side leaves an answer for exactly one call of `run`."""

    def test_taken_once(self):
        """An answer is had once, by the task it was left for."""
        seat = Seat()
        seat.take("a", str)

        assert str is seat.leave("a")
        assert seat.leave("a") is None

    @pytest.mark.parametrize("task_id", ["b", None])
    def test_not_by_others(self, task_id: str | None):
        """A task that happens to run in between does not take it."""
        seat = Seat()
        seat.take("a", str)

        assert seat.leave(task_id) is None
        assert str is seat.leave("a")

    def test_last_one_counts(self):
        """An answer that nobody fetched gives way to the next."""
        seat = Seat()
        seat.take("a", str)
        seat.take("b", int)

        assert seat.leave("a") is None
        assert int is seat.leave("b")

    def test_one_per_thread(self, in_thread: Any):
        """On the threads pool each thread has its own."""
        seat = Seat()
        seat.take("a", str)

        assert in_thread(lambda: seat.leave("a")) is None
        assert str is seat.leave("a")

    def test_run_takes_the_answer_that_was_left(self, app: Celery):
        """The row of arguments goes to the answer, and what it returns is the task's result."""
        task = make(app, join)
        seat.take("some-id", lambda row: Outcome(("answer", row)))
        result = task.apply(("a",), {"sep": "+"}, task_id="some-id")

        assert ("answer", ("a", "!", "+")) == result.get()

    def test_run_of_another_task_leaves_it_alone(self, app: Celery):
        """A hook may call the task itself, and gets a batch of one."""
        task = make(app)
        seat.take("some-id", lambda row: Outcome(("answer", row)))

        assert 42 == task(21)
        assert 42 == task.apply((21,), task_id="other-id").get()
        assert ("answer", (21,)) == task.apply((21,), task_id="some-id").get()

    def test_answer_that_raises_is_the_task_s_error(self, app: Celery):
        """An item's error comes out of its `run`."""

        def answer(_: tuple[Any, ...]) -> Any:
            return Outcome(error=KeyError("this item"))

        task = make(app)
        seat.take("some-id", answer)

        with pytest.raises(KeyError, match="this item"):
            task.apply((21,), task_id="some-id", throw=True)


@pytest.fixture
def in_thread() -> Any:
    """Call a function on another thread and return what it returned."""
    from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415

    with ThreadPoolExecutor(1) as pool:
        yield lambda function: pool.submit(function).result(timeout=5)
