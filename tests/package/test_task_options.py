"""What may stand beside a batch function, and which functions can be one."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any
from weakref import WeakSet

import pytest
from celery import Celery, Task, _state
from celery.exceptions import CDeprecationWarning

from celery_batch import BatchTask, ItemTooLarge, Model
from celery_batch.config import policy_of
from tests.services.making import double, make, refusal


@pytest.fixture
def app(monkeypatch: pytest.MonkeyPatch) -> Celery:
    """An app of the test's own; Celery gives shared tasks to every app there will be."""
    monkeypatch.setattr(_state, "_on_app_finalizers", set())
    monkeypatch.setattr(_state, "_apps", WeakSet())
    return Celery("shop", set_as_current=False)


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


class Doubles(Model):
    """Doubles numbers."""

    def predict(self, rows):
        """Return the doubles."""
        return [2 * row for row in rows]


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
            ("batch_size", "; did you mean max_batch_size?"),
            ("batch_max_size", "; did you mean max_batch_size?"),
            ("flush_every", "; did you mean max_batch_size?"),
            ("flush_interval", "; did you mean max_wait?"),
            ("timeout", "; did you mean time_limit?"),
            ("maxwait", "; did you mean max_wait?"),
            ("lingre", "; did you mean linger?"),
            ("autoretry_far", "; did you mean autoretry_for?"),
            ("rate_limits", "; did you mean rate_limit?"),
            ("something_else_entirely", ""),
            ("channel", ""),
        ],
    )
    def test_misspelt(self, app: Celery, option: str, hint: str):
        """An unknown option is refused, and the nearest known one named."""
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

    def test_misspelt_in_annotations(self, app: Celery, caplog: pytest.LogCaptureFixture):
        """A setting gives options, too; what is for all tasks may be an option of another."""
        app.conf.task_annotations = {"shop.t": {"max_batchsize": 3}, "*": {"batch_size": 3}}
        message = refusal(lambda: make(app, name="shop.t"))
        make(app, name="shop.u")

        said = "shop.t.max_batchsize: no such task option; did you mean max_batch_size?"
        assert f"task_annotations: {said}" == message
        said = "task_annotations: shop.u.batch_size: no such task option; did you mean"
        assert [said] == [record[: len(said)] for record in caplog.messages]

    def test_other_annotations(self, app: Celery):
        """Options, attributes and decorators of methods are left alone."""
        given = {"max_batch_size": 3, "rate_limit": "9/s", "channel": "#ops", "@run": lambda f: f}
        app.conf.task_annotations = {"*": given}
        task = make(app, name="shop.t")

        assert (3, "9/s", "#ops") == (task.max_batch_size, task.rate_limit, task.channel)

    @pytest.mark.parametrize(
        ("option", "value", "expected"),
        [
            ("time_limit", "10", "seconds as a number from 0 up"),
            ("soft_time_limit", -1, "seconds as a number from 0 up"),
            ("time_limit", math.inf, "seconds as a number from 0 up"),
            ("queue", 5, "a name or a Queue"),
            ("priority", "high", "a whole number from 0 to 255"),
            ("priority", 2.5, "a whole number from 0 to 255"),
            ("priority", 256, "a whole number from 0 to 255"),
            ("acks_late", "no", "True or False"),
            ("priority", True, "a whole number from 0 to 255"),
            ("rate_limit", "abc", 'a number of items, by the second, minute or hour, such as "1'),
            ("rate_limit", "10/d", 'a number of items, by the second, minute or hour, such as "1'),
            ("throws", "KeyError", "a tuple of exception classes"),
            ("throws", (KeyError, 1), "a tuple of exception classes"),
            ("rate_limit", [1], 'a number of items, by the second, minute or hour, such as "1'),
        ],
    )
    @pytest.mark.filterwarnings("ignore::celery.exceptions.CDeprecationWarning")
    def test_celery_s_that_no_worker_takes(
        self, app: Celery, option: str, value: Any, expected: str
    ):
        """A worker would end, or refuse each call, and name no task."""
        message = refusal(lambda: make(app, name="shop.t", **{option: value}))

        assert message.startswith(f"shop.t.{option}: must be {expected}")
        assert message.endswith(f", got {value!r}")

    @pytest.mark.parametrize(
        ("option", "expected"),
        [
            ("compression", "a method that kombu knows, such as 'gzip'"),
            ("expires", "seconds as a number, a datetime or its text in ISO 8601"),
        ],
    )
    def test_celery_s_that_no_call_takes(self, app: Celery, option: str, expected: str):
        """Each call would fail, by an error that names neither the task nor the option."""
        message = refusal(lambda: make(app, name="shop.t", **{option: "zippy"}))

        assert f"shop.t: {option}: must be {expected}, got 'zippy'" == message

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

    @pytest.mark.parametrize(
        ("attributes", "message"),
        [
            (
                {"cost": len, "max_batch_cost": 10},
                "A.max_batch_cost: is an option of the task: give it to as_task(...)",
            ),
            ({"dedupe": True}, "A.dedupe: is an option of the task: give it to as_task(...)"),
            ({"batchby": "x"}, "A.batchby: is no option of a model; did you mean batch_by?"),
            (
                {"un_collate": len},
                "A.un_collate: is no option of a model; did you mean uncollate?",
            ),
            ({"costs": len}, "A.costs: is no option of a model; did you mean cost?"),
            (
                {"batch_size": 8},
                (
                    "A.batch_size: is no option of a model; did you mean batch_sizes or, as an"
                    " option of the task, max_batch_size?"
                ),
            ),
            (
                {"maxwait": 1},
                (
                    "A.maxwait: is no option; did you mean max_wait, which is an option of the"
                    " task: give it to as_task(...)?"
                ),
            ),
        ],
    )
    def test_in_a_model_s_class(self, app: Celery, attributes: dict[str, Any], message: str):
        """Those of the task have no effect there, nor have misspelt ones."""
        kind = type("A", (Doubles,), attributes)
        heir = type("A", (kind,), {})

        assert message == refusal(lambda: kind.as_task(app, name="shop.t"))
        assert message == refusal(lambda: heir.as_task(app, name="shop.t"))

    @pytest.mark.parametrize(
        ("name", "near"),
        [
            ("colate", "collate"),
            ("uncolate", "uncollate"),
            ("exampel", "example"),
            ("exampels", "examples"),
            ("unlod", "unload"),
            ("preditc", "predict"),
            ("laod", "load"),
            ("unlaod", "unload"),
        ],
    )
    def test_misspelt_method_of_a_model(self, app: Celery, name: str, near: str):
        """It would never be called, so the model is refused."""
        parent = Model if near == "predict" else Doubles
        kind = type("A", (parent,), {name: lambda _self, *_: None})

        assert (
            f"A.{name}: is no method of a model; did you mean {near}?  Give a method of your own"
            f" another name, such as _{name}"
        ) == refusal(lambda: kind.as_task(app, name="shop.t"))

    @pytest.mark.parametrize(
        "method", ["collate", "example", "examples", "load", "predict", "uncollate", "unload"]
    )
    def test_a_method_that_is_none(self, app: Celery, method: str):
        """What a model has in place of a method is refused by name."""
        kind = type("A", (Doubles,), {method: 3})

        assert f"A.{method}: must be a method, got 3" == refusal(
            lambda: kind.as_task(app, name="shop.t")
        )

    @pytest.mark.parametrize(
        "attributes",
        [
            {"_colate": len, "reload": len, "upload": len, "collate_fn": len, "predict_one": len},
            {"unload": len, "unlod": len, "loaded": property(len), "unloaded": property(len)},
            {"colate": 3, "__len__": len, "sample": len, "loads": len, "predictor": len},
            {"tokenizer": None, "BATCH_SIZE": 8, "name": "x", "max_retries": 3, "batch": 4},
            {"padded": lambda _self, rows: rows, "linger": property(len), "_max_wait": 1},
            {"version": "2", "versions": ["1", "2"], "cost": len, "timeout": 5},
        ],
    )
    def test_a_model_s_own_attributes(self, app: Celery, attributes: dict[str, Any]):
        """It may have any, if they are not called almost like an option."""
        task = type("A", (Doubles,), attributes).as_task(app, name="shop.t", cache_ttl=9)

        assert "shop.t" == task.name

    @pytest.mark.parametrize("option", ["autoretry_for", "dont_autoretry_for"])
    @pytest.mark.parametrize("kinds", ["ValueError", ("ValueError",), [ValueError(1)], KeyError, 3])
    def test_no_classes_to_retry_for(self, app: Celery, option: str, kinds: Any):
        """Celery would take the letters of a text for classes, and fail at the first error."""
        assert (
            f"shop.t.{option}: must be a tuple of exception classes, such as (ValueError,), got"
            f" {kinds!r}"
        ) == refusal(lambda: make(app, name="shop.t", **{option: kinds}))

    @pytest.mark.parametrize("function", [Doubles, Doubles().predict], ids=["class", "method"])
    def test_a_model_as_a_function(self, app: Celery, function: Any):
        """A model, or its method, is refused as a task's function, and `as_task` named."""
        assert refusal(lambda: make(app, function)).startswith(
            "Doubles is a Model, not a function: make its task by Doubles.as_task(app, ...)"
        )

    def test_no_app(self):
        """A name in the place of the app is refused."""
        assert (
            "Doubles.as_task: takes the Celery app itself, as in Doubles.as_task(app), got 'x'"
            == (refusal(lambda: Doubles.as_task("x")))
        )

    def test_as_task_of_an_instance(self, app: Celery):
        """The arguments of the instance would be lost, as workers make others."""
        assert refusal(lambda: Doubles().as_task(app)).startswith("as_task is called on the class")

    def test_as_task_with_a_base_class(self, app: Celery):
        """Its hooks are called for each item; one that takes no batches is refused."""
        seen = []

        class Hooks(Task):
            abstract = True

            def before_start(self, task_id, args, kwargs):
                seen.append((task_id, args, kwargs))

        class BatchHooks(Hooks, BatchTask):
            abstract = True

        app.conf.task_always_eager = True
        task = Doubles.as_task(app, name="shop.t", base=BatchHooks)
        results = task.delay_many([1, 2])

        assert [2, 4] == [each.get() for each in results]
        assert [(results[0].id, [1], {}), (results[1].id, [2], {})] == [
            (task_id, [*args], kwargs) for task_id, args, kwargs in seen
        ]
        assert (
            f"shop.u.base: must be a class that derives from BatchTask, got {Hooks!r}"
            == refusal(lambda: Doubles.as_task(app, name="shop.u", base=Hooks))
        )

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
        """A misspelt setting of the app is an error when its first batch task is made."""
        app.conf.batch_max_sise = 3

        assert "batch_max_sise: no such setting; did you mean batch_max_size?" == refusal(
            lambda: make(app)
        )

    def test_an_option_as_a_setting(self, app: Celery):
        """Options that depend on the task have no setting, and the error says so."""
        app.conf.batch_target_latency = 1

        assert (
            "batch_target_latency: no such setting; target_latency is an option of the task"
            == refusal(lambda: make(app))
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
        assert f"shop.named: **rest {tail}" == named

    def test_no_argument(self, app: Celery):
        """Without a parameter there is no batch; the task itself is none."""
        none = refusal(lambda: make(app, no_batch, name="shop.none"))
        bound = refusal(lambda: make(app, no_batch_either, name="shop.self", bind=True))

        model = type("Selfless", (Model,), {"predict": lambda batch: batch})
        method = refusal(lambda: model.as_task(app, name="shop.selfless"))

        start = "must take at least one parameter"
        assert f"shop.none: {start}, the batch" == none
        assert f"shop.self: {start} besides self (bind=True), the batch" == bound
        assert f"shop.selfless: {start} besides self, the batch" == method

    def test_pydantic(self, app: Celery):
        """Celery's argument models check one call, not a batch of them."""
        message = refusal(lambda: make(app, double, name="shop.t", pydantic=True))

        assert message.startswith("shop.t: pydantic=True checks one call at a time")
        assert message.endswith("leave it out and validate inside the function")

    def test_async_function(self, app: Celery):
        """Celery's pools run plain functions; a coroutine would never be awaited."""

        async def later(x):
            """Come back later."""
            return x

        message = refusal(lambda: make(app, later, name="shop.later"))

        assert "shop.later: an async function cannot run in Celery's pool" in message

    @pytest.mark.parametrize("stage", ["collate", "predict", "uncollate"])
    def test_async_model(self, app: Celery, stage: str):
        """The same holds for a model."""

        async def later(_, batch):
            """Come back later."""
            return batch

        kind = type("Later", (Model,), {"predict": lambda _, batch: batch, stage: later})
        message = refusal(lambda: kind.as_task(app, name="shop.later"))

        assert f"shop.later: Later.{stage} is an async function" in message


def test_expected_errors_are_logged_without_a_traceback(
    app: Celery, caplog: pytest.LogCaptureFixture
):
    """Of the errors in `throws`, ours among them, Celery logs one line at INFO."""
    app.conf.update(task_always_eager=True)
    options = {"cost": "x", "max_item_cost": 2}
    task = make(app, throws=(ItemTooLarge,), **options)
    with caplog.at_level("INFO", "celery.app.trace"):
        result = task.delay("long")
    (record,) = (each for each in caplog.records if each.name == "celery.app.trace")

    assert isinstance(result.result, ItemTooLarge)
    assert ("INFO", None) == (record.levelname, record.exc_info)
    assert "raised expected: ItemTooLarge" in record.getMessage()
