"""Which options of fixed shapes a task may have, and how its model is warmed up with them."""

from __future__ import annotations

import logging
import sys

import numpy as np
import pytest
from celery import Celery

from celery_batch import BatchTask, ConfigurationError, LoadFailed, Model
from celery_batch.config import policy_of
from celery_batch.runtime import registry
from celery_batch.worker.executor.loader import load_models


@pytest.fixture
def app():
    """An app of its own, whose models are unloaded in the end."""
    with Celery("shapes", set_as_current=False) as app:
        app.conf.task_always_eager = True
        yield app
    registry.unload_all()


@pytest.fixture
def calls():
    """The calls of `task_of`'s function."""
    return []


def task_of(app, calls, name="shop.add", **options):
    """Make a task that remembers its calls."""

    @app.task(base=BatchTask, name=name, **options)
    def add(a, b=0):
        calls.append((a, b))
        return [x + y for x, y in zip(a, b, strict=True)]

    return add


class Counter(Model):
    """A model with fixed shapes that remembers its calls."""

    batch_sizes = (1, 4)
    batch_lengths = (2, 8)

    def load(self, device):  # noqa: ARG002
        """Begin to count."""
        self.calls = []

    @staticmethod
    def example(length):
        """Return a row of this length."""
        return [0] * length

    def padding_row(self):
        """Return a row that no caller has."""
        return [-1]

    def predict(self, rows):
        """Return the sums."""
        self.calls.append(rows)
        return [sum(row) for row in rows]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"batch_sizes": (4, 2)},
            r"shop.add.batch_sizes: must be a list of whole numbers .*\(4, 2\)",
        ),
        ({"batch_sizes": 8}, "shop.add.batch_sizes: must be a list of whole numbers from 1 up"),
        (
            {"batch_sizes": ("8",)},
            "shop.add.batch_sizes: must be a list of whole numbers from 1 up",
        ),
        (
            {"batch_sizes": (1, 8), "max_batch_size": 16},
            "shop.add.max_batch_size: ",
        ),
        (
            {"batch_sizes": (1, 8), "max_batch_size": 1},
            "max_batch_size: is the largest of batch_sizes, 8; leave it out, got 1",
        ),
        ({"batch_sizes": ()}, "shop.add.batch_sizes: has no effect if empty; leave it out"),
        ({"batch_lengths": []}, "shop.add.batch_lengths: has no effect if empty"),
        ({"batch_sizes": (1, 2000)}, "shop.add.max_batch_size: at most"),
        ({"padding_row": 1}, "shop.add.padding_row: has no effect without batch_sizes"),
        ({"example": len}, "shop.add.example: has no effect without batch_lengths"),
        ({"batch_sizes": (1, 8), "padding_row": (1, 2, 3)}, r"shop.add.padding_row: \(1, 2, 3\)"),
        (
            {"batch_sizes": (1, 8), "padding_row": (1, 2), "batch_by": max},
            "shop.add.padding_row: cannot be used with a batch_by function",
        ),
        ({"batch_lengths": (8,), "example": len}, "shop.add.batch_lengths: needs batch_sizes"),
        (
            {"batch_sizes": (1, 8), "batch_lengths": (8,)},
            r"shop.add.batch_lengths: needs example\(length\)",
        ),
        (
            {"batch_sizes": (1, 8), "isolate_failures": False},
            "needs padding_row where isolate_failures is False: .* would see an item twice",
        ),
    ],
    ids=str,
)
def test_contradictions_are_refused(app, calls, options, message):
    """When the app is made, with the way out."""
    with pytest.raises(ConfigurationError, match=message):
        task_of(app, calls, **options).name  # noqa: B018 (the task is bound when it is used)


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        (Counter, {"batch_lengths": (2, 16)}, "belongs into the class Counter"),
        (type("Bare", (Counter,), {"example": Model.example}), {}, r"needs example\(length\)"),
    ],
)
def test_a_model_pads_to_its_own_lengths(app, model, options, message):
    """A task cannot change them, nor do without an example."""
    with pytest.raises(ConfigurationError, match=message):
        model.as_task(app, name="shop.count", **options).name  # noqa: B018 (see above)


def test_the_largest_size_is_that_of_the_batch(app, calls):
    """Whatever the app's setting says; an operator may choose a smaller one of them."""
    app.conf.batch_max_size = 100
    task = task_of(app, calls, batch_sizes=[1, 4, 16])

    assert (16, (1, 4, 16)) == (policy_of(task).max_batch_size, policy_of(task).batch_sizes)
    assert 4 == policy_of(task, {"max_batch_size": 4}).max_batch_size
    with pytest.raises(ConfigurationError, match="must be one of batch_sizes"):
        policy_of(task, {"max_batch_size": 5})


def test_calls_without_a_worker_are_filled_up(app, calls):
    """Single calls, chunks, and those that run in place; `run_batch` calls as it is told."""
    task = task_of(app, calls, batch_sizes=(2, 4))

    assert 3 == task.delay(1, b=2).get()
    assert [1, 2, 3] == task.delay_rows([1, 2, 3]).get()
    assert [7] == task.run_batch([3], [4])
    assert [([1, 1], [2, 2]), ([1, 2, 3, 3], [0, 0, 0, 0]), ([3], [4])] == calls


@pytest.mark.parametrize("row", [(8, 9), lambda: (8, 9), {"a": 8, "b": 9}])
def test_the_padding_row_has_a_value_for_each_parameter(app, calls, row):
    """It may be a function that returns them."""
    task = task_of(app, calls, batch_sizes=(2, 4), padding_row=row)

    assert 3 == task.delay(1, b=2).get()
    assert [([1, 8], [2, 9])] == calls


def test_a_model_is_warmed_up_with_every_shape(app, caplog):
    """The largest first, then with its padding row; each task of it adds its own sizes."""
    caplog.set_level(logging.INFO, "celery_batch.items.shapes")
    Counter.as_task(app, name="shop.count")
    Counter.as_task(app, name="shop.few", batch_sizes=(2,))
    load_models(app, ["shop.count", "shop.few"])
    seen = [(len(call), len(call[0])) for call in registry.instance_of(Counter).calls]

    assert [(4, 8), (4, 2), (1, 8), (1, 2), (1, 1)] == seen[:5]
    assert [(2, 8), (2, 2), (2, 1)] == seen[5:]
    assert "shop.count: warmed up with 4 shapes" in caplog.text


@pytest.mark.parametrize(("method", "says"), [
    ("example", r"shop\.none\.example: must return an input, example\(8\) returned None"),
    ("examples", r"None\.examples: must return a list of inputs, got None"),
])  # fmt: skip
@pytest.mark.parametrize("cost", [{}, {"cost": "item", "max_batch_cost": 64, "padded": True}])
def test_an_example_that_is_none_is_named(app, method, says, cost):
    """A forgotten return statement is not taken for an input without a cost."""
    kind = type("None", (Counter,), {method: lambda *_: None})
    kind.as_task(app, name="shop.none", **cost)

    with pytest.raises(LoadFailed, match=says):
        load_models(app, ["shop.none"])


def test_examples_run_in_calls_of_the_sizes(app):
    """Also if there are fewer or more of them than a call has rows, with the padding row."""

    class Exemplary(Counter):
        batch_lengths = None

        def examples(self):
            """Return three."""
            return [[1], [2], [3]]

    Exemplary.as_task(app, name="shop.exemplary")
    load_models(app, ["shop.exemplary"])
    calls = registry.instance_of(Exemplary).calls

    assert [[[1], [2], [3], [1]], [[1]], [[1], [2], [3], [-1]]] == calls


def test_a_model_may_change_its_examples(app):
    """Where they are, as a list that it appends to: each shape is prepared with them as written."""

    class Appending(Counter):
        padding_row = [-1]  # noqa: RUF012 (which a model must not change)

        def predict(self, rows):
            """Remember the rows, and append to them."""
            outputs = super().predict([[*row] for row in rows])
            for row in rows:
                row.append(0)
            return outputs

    class Exemplary(Appending):
        batch_lengths = None
        own = ([1], [2])

        def examples(self):
            """Return always the same."""
            return self.own

    for model, expected in (
        (Appending, [[[0] * 8] * 4, [[0] * 2] * 4, [[0] * 8], [[0] * 2], [[-1]]]),
        (Exemplary, [[[1], [2], [1], [2]], [[1]], [[1], [2], [-1], [-1]]]),
    ):
        model.as_task(app, name=f"shop.{model.__name__}")
        load_models(app, [f"shop.{model.__name__}"])

        assert expected == registry.instance_of(model).calls


def test_each_key_is_warmed_up_by_itself(app):
    """A call has rows of one key, however it is filled up."""

    class Keyed(Counter):
        batch_lengths = padding_row = None
        batch_by = staticmethod(len)

        def examples(self):
            """Return rows of two lengths."""
            return [[1], [2, 2], [3]]

    task = Keyed.as_task(app, name="shop.keyed")
    load_models(app, ["shop.keyed"])
    calls = list(registry.instance_of(Keyed).calls)

    assert [[[1], [3], [1], [3]], [[2, 2]] * 4, [[1]], [[2, 2]]] == calls[:4]
    assert [[[1], [3], [3], [3]], [[2, 2]]] == calls[4:]
    assert [10, 10] == task.delay_rows([[5, 5], [4, 6]]).get()
    assert {2} == {len(row) for row in registry.instance_of(Keyed).calls[-1]}


def test_the_key_of_a_call_is_that_of_its_rows(app):
    """The padding row has another one, which the function does not see."""
    calls = []

    @app.task(
        base=BatchTask,
        name="shop.translate",
        batch_by="lang",
        batch_sizes=(2, 4),
        padding_row=("", "?"),
    )
    def translate(text, lang):
        calls.append((text, lang))
        return text

    load_models(app, ["shop.translate"])
    calls.clear()

    assert ["a", "b", "c"] == translate.delay_rows(["a", "b", "c"], lang="de").get()
    assert [(["a", "b", "c", ""], "de")] == calls


def test_a_model_that_is_loaded_again_is_warmed_up_again(app):
    """Before it takes the place of the other, so that no request meets a new shape."""
    task = Counter.as_task(app, name="shop.count")
    load_models(app, ["shop.count"])
    first = registry.instance_of(Counter)
    registry.load_again(Counter)
    registry.swap_in(Counter)
    second = registry.instance_of(Counter)

    assert first is not second
    assert first.calls == second.calls
    assert 3 == task.delay([1, 2]).get()
    assert [-1] not in second.calls[-1]
    assert [3, 3] == task.delay_rows([[1, 2]] * 2).get()
    assert [[1, 2], [1, 2], [-1], [-1]] == second.calls[-1]


def test_a_function_is_warmed_up_with_its_own_example(app, calls):
    """Which is an option of the task, as its lengths are."""
    shapes = {"batch_sizes": (1, 2), "batch_lengths": (4, 8)}
    task_of(app, calls, **shapes, example=lambda length: ("x" * length, ""))
    load_models(app, ["shop.add"])

    assert [["x" * 8] * 2, ["x" * 4] * 2, ["x" * 8], ["x" * 4]] == [a for a, _ in calls]


def test_without_lengths_the_padding_row_is_an_example(app, calls, caplog):
    """Of a function; without one there is nothing to warm up with, and the log says so."""
    caplog.set_level(logging.INFO, "celery_batch.items.shapes")
    task_of(app, calls, batch_sizes=(1, 2), padding_row=(5, 6))
    task_of(app, calls, "shop.bare", batch_sizes=(1, 2))
    load_models(app, ["shop.add", "shop.bare"])

    assert [([5, 5], [6, 6]), ([5], [6]), ([5], [6])] == calls
    assert "shop.bare: no examples and no padding_row to warm up with" in caplog.text


@pytest.mark.parametrize(
    ("example", "message"),
    [
        ("ab", "shop.add with 2 rows of length 4: TypeError: "),
        ((1, 2, 3), r"shop.add.example: \(1, 2, 3\) does not fit"),
    ],
)
def test_a_shape_that_fails_is_a_failed_start(app, calls, example, message):
    """As any other warm-up that fails."""
    task_of(app, calls, batch_sizes=(1, 2), batch_lengths=(4,), example=lambda _: example)

    with pytest.raises(LoadFailed, match=message):
        load_models(app, ["shop.add"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"padding_row": lambda: {}["pad"]},
            r"shop\.add\.padding_row: raised KeyError: 'pad'",
        ),
        (
            {"batch_lengths": (4,), "example": ["a" * 4]},
            r"shop\.add\.example: must be a function that returns an input of a length, got \['aa",
        ),
    ],
    ids=["padding_row", "example"],
)
def test_an_option_that_cannot_be_called_is_named(app, calls, options, message):
    """An error of a function that is an option, or a value in its place, names the option."""
    task_of(app, calls, batch_sizes=(1, 2), **options)

    with pytest.raises(LoadFailed, match=message):
        load_models(app, ["shop.add"])


@pytest.mark.parametrize(
    "padding_row",
    [("long", 0), lambda: ("long", 0), (5, 0)],
    ids=["row", "function", "no cost"],
)
def test_a_padding_row_that_costs_too_much_is_a_failed_start(app, calls, padding_row):
    """Else each call that it fills up would fail."""
    cost = {"cost": "a", "max_item_cost": 3}
    task_of(app, calls, batch_sizes=(1, 2), padding_row=padding_row, **cost)

    with pytest.raises(
        LoadFailed, match=r"shop\.add\.padding_row: must have a cost that items may"
    ):
        load_models(app, ["shop.add"])
    assert not calls


def test_a_shape_that_does_not_fit_into_memory_is_named(app):
    """So that it can be left out."""

    class Hungry(Counter):
        def predict(self, rows):
            """Have memory for one row."""
            if len(rows) > 1:
                raise MemoryError("full")
            return [0]

    Hungry.as_task(app, name="shop.hungry")

    with pytest.raises(LoadFailed, match=r"shop\.hungry with 4 rows of length 8: 4 items do"):
        load_models(app, ["shop.hungry"])


def test_a_shape_that_fails_is_named(app):
    """Whatever the model raises, and whether it does so with a shape or with an example."""

    class Weak(Counter):
        def predict(self, rows):
            """Take no two rows."""
            if len(rows) > 1:
                raise ValueError("no two")
            sys.exit(f"no {rows[0]}")

    class Alone(Weak):
        batch_sizes = (1,)

    Weak.as_task(app, name="shop.weak")
    Alone.as_task(app, name="shop.alone")

    with pytest.raises(
        LoadFailed,
        match=r"Weak on cpu: shop.weak with 4 rows of length 8: ValueError: no two"
        r" .in the warm-up with 4 examples, the first \[0, 0, 0, 0, 0, 0, \.\.\.\]",
    ) as caught:
        load_models(app, ["shop.weak"])
    assert str(caught.value).endswith("; it is the model of the task shop.weak")
    with pytest.raises(LoadFailed, match=r"shop.alone with 1 rows of length 8: SystemExit: no \[0"):
        load_models(app, ["shop.alone"])


@pytest.mark.parametrize(
    ("example", "options", "message"),
    [
        (lambda _: [0] * 5, {}, r"shop.l.example: example\(2\) has a len\(\) of 5"),
        (lambda length: [0] * (length + 1), {}, r"example\(2\) has a len\(\) of 3"),
        (lambda _: "text", {}, r"example\(2\) and example\(8\) are equal"),
        (
            lambda _: "text",
            {"cost": len, "max_batch_cost": 99, "padded": True},
            r"example\(2\) has a cost of 4, so the warm-up would not prepare the length 2",
        ),
    ],
)
def test_an_example_that_has_another_length_is_a_failed_start(app, example, options, message):
    """Else a request would be the first with that length."""

    class Careless(Counter):
        def predict(self, rows):
            """Return the rows."""
            return rows

    Careless.example = staticmethod(example)
    Careless.as_task(app, name="shop.l", **options)

    with pytest.raises(LoadFailed, match=message):
        load_models(app, ["shop.l"])


@pytest.mark.parametrize(
    ("example", "options"),
    [
        (lambda length: [0] * (length - 1), {}),
        (lambda length: "word " * length, {}),
        (lambda length: [[0] * length], {}),
        (lambda length: np.zeros(length + 1), {}),
        (
            lambda length: [0] * length,
            {"cost": len, "max_batch_cost": 99, "max_item_cost": 7, "padded": True},
        ),
        (lambda length: [0] * length, {"cost": lambda _: 1, "max_batch_cost": 99}),
    ],
)
def test_examples_whose_length_cannot_be_told_are_taken(app, example, options):
    """A model may count words, and pads what is shorter."""

    class Careful(Counter):
        padding_row = None

        def predict(self, rows):
            """Count the rows."""
            return [0] * len(rows)

    Careful.example = staticmethod(example)
    Careful.as_task(app, name="shop.l", **options)

    assert "cpu" == load_models(app, ["shop.l"])
