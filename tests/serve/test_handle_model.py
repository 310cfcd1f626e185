"""Handles of both kinds as models, in this process."""

from __future__ import annotations

import sys

import pytest
from billiard.exceptions import SoftTimeLimitExceeded

from celery_batch.errors import ConfigurationError, WrongResultCount
from celery_batch.runtime.runner import Runner
from celery_batch.serve.handle import BaseHandle, Handle, registry
from celery_batch.serve.handle_model import HandleModel, find_handle


class Listed(Handle):
    """Doubles numbers, a list at a time."""

    def __init__(self, gpu):
        super().__init__(gpu)
        self.sizes = []

    def preprocess(self, data):
        """Take the number out, so that a second look would not find it."""
        return data["task_info"].pop("x") + 0

    def forward(self, batch):
        """Fail for all where one is 13."""
        self.sizes.append(len(batch))
        if 13 in batch:
            raise ArithmeticError("13")
        return [2 * x for x in batch]

    def postprocess(self, data):
        """Refuse one output."""
        if data == 8:
            raise ValueError("no eights")
        return {"result": data}


@registry.reg()
class Single(BaseHandle):
    """As easy-serve's: one envelope in each step, changed in place."""

    def __init__(self, gpu):
        self.gpu = int(gpu)

    def preprocess(self, data):
        """Read the number."""
        data["task_info"]["x"] = int(data["task_info"]["x"])
        return data

    def forward(self, data):
        """Double it."""
        data["task_info"]["result"] = 2 * data["task_info"]["x"]
        return data

    def postprocess(self, data):
        """Leave it."""
        return data

    def __call__(self, data):
        """Do all three."""
        return self.postprocess(self.forward(self.preprocess(data)))


class Uncalled:
    """A plain class without ``__call__``."""

    def __init__(self, gpu):
        self.preprocess = self.forward = self.postprocess = lambda data: [data, gpu]


class Idle(Handle):
    """Has nothing to run."""


class Short(Handle):
    """Loses outputs."""

    def forward(self, batch):
        """Return what the test says."""
        return self.outputs(batch)


def loaded(kind, device="cpu"):
    """Return a model of a handle of this module."""
    model = type("Served", (HandleModel,), {"handle_name": f"{__name__}:{kind.__name__}"})()
    model.load(device)
    return model


def envelope(x):
    """Return what the web server sends."""
    return {"task_id": "id", "task_info": {"x": x}}


def outcomes(model, *values):
    """Run a batch as a worker does; return values, and the words of errors."""
    batch = [envelope(value) for value in values]
    return [
        outcome.value if outcome.error is None else repr(outcome.error)
        for outcome in Runner(model.predict, "Served").run(batch)
    ]


def test_forward_takes_a_list():
    """A batch is one call of forward."""
    model = loaded(Listed)

    assert [{"result": 2}, {"result": 4}] == outcomes(model, 1, 2)
    assert [2] == model._handle.sizes


def test_a_list_that_fails_is_tried_in_parts_as_it_came():
    """Halves start from what the clients have sent, whatever the first try did to it."""
    assert [{"result": 2}, "ArithmeticError('13')", {"result": 6}] == outcomes(
        loaded(Listed), 1, 13, 3
    )


@pytest.mark.parametrize(
    "outputs", [lambda _: None, lambda _: "ab", lambda batch: batch[1:], lambda _: {1: 2, 3: 4}]
)
def test_forward_must_return_one_output_for_each(outputs):
    """Anything else is an error that says so, and no request gets another's answer."""
    model = loaded(Short)
    model._handle.outputs = outputs

    with pytest.raises(WrongResultCount, match=r"Short\.forward returned .* for a batch of 2"):
        model.predict([envelope(1), envelope(2)])


def test_a_handle_without_forward_is_refused_when_it_is_loaded():
    """Before a request comes, which it could not serve."""
    with pytest.raises(ConfigurationError, match=r"Handle: Idle must define forward\(batch\)"):
        loaded(Idle)


def test_easy_serves_handles_answer_one_by_one_with_a_warning(caplog):
    """They work unchanged; what batching would gain is said once."""
    model = loaded(Single)

    first, second = outcomes(model, "1", "x")

    assert {"task_id": "id", "task_info": {"x": 1, "result": 2}} == first
    assert second.startswith("ValueError")
    assert "Single takes one request at a time" in caplog.text


def test_a_class_without_call_goes_through_the_three_steps():
    """As easy-serve's `__call__` is written."""
    assert [[[[envelope(1), "-1"], "-1"], "-1"]] == outcomes(loaded(Uncalled), 1)


@pytest.mark.parametrize(("device", "gpu"), [("cpu", -1), ("cuda:0", 0)])
def test_a_handle_is_made_with_the_id_of_its_gpu(device, gpu):
    """A text that is a number, as in easy-serve."""
    assert gpu == loaded(Single, device)._handle.gpu
    assert device == loaded(Listed, device)._handle.device


def test_a_handle_can_be_called_with_one_envelope():
    """In tests of its own, say."""
    assert {"result": 6} == Listed("-1")(envelope(3))


def test_examples_become_envelopes():
    """A handle is warmed up with what clients would post."""
    model = loaded(Listed)
    model._handle.examples = lambda: [{"x": 1}]

    assert [{"task_id": "warm-up", "task_info": {"x": 1}}] == model.examples()
    assert [] == loaded(Uncalled).examples()


def test_a_class_is_found_in_the_module_named_handle(monkeypatch):
    """By the registry, or as an attribute where a handle brings its own registry."""
    module = type(sys)("handle")
    module.Own = Uncalled
    monkeypatch.setitem(sys.modules, "handle", module)

    assert Uncalled is find_handle("Own")
    assert Single is find_handle("Single")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("Lost", "no module handle for Lost; put handle.py into"),
        ("no.such:Lost", "no module no.such for no.such:Lost"),
        (f"{__name__}:Listet", "has no class Listet; did you mean Listed?"),
    ],
)
def test_an_error_says_where_a_missing_class_was_looked_for(name, said):
    """The message names the module, and the nearest class."""
    with pytest.raises(ConfigurationError) as refused:
        find_handle(name)

    assert said in str(refused.value)


def test_a_time_limit_leaves_hanging_threads_behind():
    """The limit is the batch's, and the next one has threads that are free."""
    model = loaded(Short)
    before = model._threads

    def strike(_batch):
        raise SoftTimeLimitExceeded

    model._handle.outputs = strike
    with pytest.raises(SoftTimeLimitExceeded):
        model.predict([envelope(1)])
    model._handle.outputs = list

    assert before is not model._threads
    assert [envelope(1)] == model.predict([envelope(1)])


@pytest.mark.parametrize("error", [SoftTimeLimitExceeded(), RuntimeError("CUDA error: gone")])
def test_what_ends_a_process_or_a_batch_is_no_requests_own(error):
    """A handle that is called one by one raises it, too."""
    model = loaded(Uncalled)

    def strike(_data):
        raise error

    model._handle.preprocess = strike
    with pytest.raises(type(error)):
        model.predict([envelope(1), envelope(2)])
