"""
The Celery app of the tests of Celery's features: batch tasks that do as each item says.

A worker consumes the queue that ``TESTS_QUEUE`` names, so that several workers,
one for each pool, share a broker and keep to themselves.
"""

from __future__ import annotations

import json
import os
import time
from collections import OrderedDict
from typing import Any, NamedTuple

from celery import Celery, Task, shared_task, signals
from celery.exceptions import Ignore, Reject, Retry

from celery_batch import BatchTask, Model
from celery_batch.padding import padded_length
from tests.apps.memory import memory, patient_cache, recall, remember

__all__ = ["app", "memory", "recall", "remember"]


app = Celery("features")
app.conf.update(
    # Its workers live on while other tests ask all workers of the same RabbitMQ.
    control_exchange="features",
    task_default_queue=os.environ.get("TESTS_QUEUE", "celery"),
    task_queue_max_priority=10,
    worker_send_task_events=True,
    result_extended=True,
    result_expires=600,
    broker_connection_retry_on_startup=True,
    batch_cache_url=patient_cache(os.environ.get("CELERY_RESULT_BACKEND", "")),
)
app.conf.update(json.loads(os.environ.get("TESTS_CONF", "{}")))

#: Enough for the items of one test to meet; a batch of one leaves after it as well.
COMPANY = {"max_batch_size": 16, "linger": 0.1, "max_wait": 1.0}


def pass_gate(name, seconds=60.0):
    """Wait until the test opens a gate, and say that somebody waits there."""
    remember("gate", name=name)
    deadline = time.monotonic() + seconds
    # A blocking pop that is cut off and tried again would leave a twin that takes the key.
    with memory() as client:
        while not client.exists(f"shop:open:{name}") and time.monotonic() < deadline:
            time.sleep(0.02)


@app.task(base=BatchTask, name="f.hold", max_batch_size=1)
def hold(gate):
    """Keep the process busy until the test opens the gate."""
    remember("hold", items=gate)
    pass_gate(gate[0])
    return gate


@app.task(base=BatchTask, name="f.hold_many", track_started=True, **COMPANY)
def hold_many(gate, item):
    """Keep a batch of several running until the test opens the gate of the first."""
    remember("hold_many", items=item)
    pass_gate(gate[0])
    return item


@app.task(base=BatchTask, name="f.hold_for", **COMPANY)
def hold_for(gate, item):
    """As `hold_many`, but nobody is told that it has started unless the call asks."""
    remember("hold_for", items=item)
    pass_gate(gate[0])
    return item


@app.task(base=BatchTask, name="f.hold_early", acks_late=False, **COMPANY)
def hold_early(gate, item):
    """As `hold_many`, acknowledged before it runs."""
    remember("hold_early", items=item)
    pass_gate(gate[0])
    return item


@app.task(base=BatchTask, name="f.echo", **COMPANY)
def echo(x):
    """Return every item, and remember the batch."""
    remember("echo", items=x)
    return x


@app.task(base=BatchTask, name="f.double", **COMPANY)
def double(x):
    """Double every item."""
    remember("double", items=x)
    return [2 * each for each in x]


@app.task(base=BatchTask, name="f.rows", max_batch_size=64, linger=0.05, max_wait=1.0)
def rows(x):
    """Double every item, 64 at a time, but no negative one, and nothing beside a -99."""
    remember("rows", size=len(x), items=x)
    if -99 in x:
        raise KeyError(-99)
    return [2 * each if each >= 0 else ValueError(f"no {each}") for each in x]


@app.task(base=BatchTask, name="f.arrays", cost=len, max_batch_cost=100, **COMPANY)
def arrays(x):
    """Return arrays twice as large, and remember their types and shapes."""
    remember("arrays", items=[[type(each).__name__, str(each.dtype), [*each.shape]] for each in x])
    return [2 * each for each in x]


@app.task(base=BatchTask, name="f.ones", **COMPANY)
def ones(x):
    """Return arrays of so many bytes."""
    import numpy as np  # noqa: PLC0415

    return [np.ones(each, "u1") for each in x]


@app.task(
    base=BatchTask,
    name="f.weigh",
    autoretry_for=(ConnectionError,),
    default_retry_delay=0,
    max_retries=3,
    **COMPANY,
)
def weigh(x, word):
    """Return the sums of arrays; the first time, fail or end the process as a word says."""
    seen = [each for fact in recall("weigh") for each in fact["items"]]
    remember("weigh", items=word)
    if any(each.startswith("die") and each not in seen for each in word):
        os._exit(9)
    return [
        ConnectionError("try again")
        if each.startswith("retry") and each not in seen
        else float(array.sum())
        for array, each in zip(x, word, strict=True)
    ]


@app.task(base=BatchTask, name="f.echo_value", **COMPANY)
def echo_value(x):
    """Return every item, and remember nothing."""
    return x


@app.task(base=BatchTask, name="f.echo_early", acks_late=False, **COMPANY)
def echo_early(gate, x):
    """As `echo_value`, acknowledged before it runs, and once a gate is open."""
    pass_gate(gate[0])
    return x


@app.task(base=BatchTask, name="f.echo_tensor", **COMPANY)
def echo_tensor(x):
    """Return tensors as tensors."""
    import torch  # noqa: PLC0415

    return [torch.as_tensor(each) for each in x]


#: What a call of `refill` returns rows of.
outputs = []


class Row(NamedTuple):
    """An output with a name."""

    row: Any


@app.task(base=BatchTask, name="f.refill", max_batch_size=4)
def refill(x):
    """Return rows of one array, which each call fills again, in values of several kinds."""
    import numpy as np  # noqa: PLC0415

    outputs[:] = outputs or [np.zeros((4, 500))]
    (buffer,) = outputs
    for row, each in zip(buffer, x, strict=False):
        row[:] = each
    time.sleep(0.005)
    rows = buffer[: len(x)]
    kinds = [
        lambda row: {"row": row},
        lambda row: ("label", row),
        lambda row: [None, {"row": row}],
        lambda row: OrderedDict(number=1, row=row),
        Row,
    ]
    kind = x[0] % (len(kinds) + 1)
    return [kinds[kind](row) for row in rows] if kind < len(kinds) else rows


@app.task(base=BatchTask, name="f.subtract", **COMPANY)
def subtract(x):
    """Subtract 1 from each array where it is, and raise if one is below 0 then."""
    for each in x:
        each.__isub__(1)
    if any(each.min() < 0 for each in x):
        raise ValueError("below 0")
    return [float(each[0]) for each in x]


@app.task(base=BatchTask, name="f.lengths", **COMPANY)
def lengths(x):
    """Return the type and the length of each item."""
    return [[type(each).__name__, len(each)] for each in x]


def _stacked(x):
    import numpy as np  # noqa: PLC0415

    return np.array(x, "f4")[:, None] * np.ones(3, "f4")


@app.task(base=BatchTask, name="f.vectors", **COMPANY)
def vectors(x):
    """Return one array for the whole batch."""
    return _stacked(x)


@app.task(base=BatchTask, name="f.vectors_as_lists", outputs="lists", **COMPANY)
def vectors_as_lists(x):
    """Return one array for the whole batch, whose rows become lists."""
    return _stacked(x)


@app.task(base=BatchTask, name="f.imaginary", **COMPANY)
def imaginary(x):
    """Return one array of complex numbers for the whole batch."""
    import numpy as np  # noqa: PLC0415

    return np.array(x) * 1j


@app.task(base=BatchTask, name="f.imaginary_tensor", **COMPANY)
def imaginary_tensor(x):
    """Return one tensor of complex numbers for the whole batch."""
    import torch  # noqa: PLC0415

    return torch.tensor(x) * 1j


@app.task(base=BatchTask, name="f.matrix", **COMPANY)
def matrix(x):
    """Return one of NumPy's matrices for the whole batch."""
    import numpy as np  # noqa: PLC0415

    return np.matrix([[each, each] for each in x])


@app.task(base=BatchTask, name="f.cached_arrays", cache_ttl=600, dedupe=True, **COMPANY)
def cached_arrays(x):
    """Return arrays, and remember how many."""
    remember("cached_arrays", items=[each.tolist() for each in x])
    return [2 * each for each in x]


@app.task(name="f.gathered")
def gathered(values):
    """Return what a chord has gathered."""
    return values


@app.task(name="f.ordinary_array")
def ordinary_array(x):
    """Do in an ordinary task what a batch task does."""
    return x + 1


@app.task(
    base=BatchTask,
    name="f.tokens",
    cost="text",
    max_batch_cost=100,
    max_item_cost=150,
    padded=True,
    linger=0.05,
    max_wait=1.0,
)
def tokens(text, times=1):
    """Count the tokens of texts, which would be padded to the longest."""
    remember("tokens", items=[len(each) for each in text])
    return [len(each) * n for each, n in zip(text, times, strict=True)]


@app.task(
    base=BatchTask, name="f.paced", max_batch_size=16, target_latency=0.4, shed=True, max_wait=0.02
)
def paced(x):
    """Double every item, in 20 ms and 5 ms for each."""
    remember("paced", items=x)
    time.sleep(0.02 + 0.005 * len(x))
    return [2 * each for each in x]


@app.task(
    base=BatchTask, name="f.sizes", batch_sizes=(2, 4, 8), dedupe=True, linger=0.05, max_wait=1.0
)
def sizes(x):
    """Double every item, but no 13."""
    remember("sizes", items=x)
    if 13 in x:
        raise ValueError("told to raise")
    return [2 * each for each in x]


class Shaped(Model):
    """A model that pads texts to a few lengths, and remembers the shapes of its calls."""

    batch_sizes = (1, 2, 4)
    batch_lengths = (8, 16, 32)
    cost = len

    def example(self, length):
        """Return a text of this length."""
        return "x" * length

    def predict(self, texts):
        """Return the length of each text."""
        length = padded_length(max(map(len, texts)), lengths=self.batch_lengths)
        remember("shaped", shape=[len(texts), length], items=texts)
        return [len(text) for text in texts]


shaped = Shaped.as_task(
    app, name="f.shaped", max_batch_cost=64, padded=True, linger=0.05, max_wait=1.0
)


FEW = {"max_batch_size": 4, "linger": 0.05, "max_wait": 1.0}


@app.task(base=BatchTask, name="f.spoken", batch_by="language", **FEW)
def spoken(text, language="en"):
    """Say in which language each text is, which all texts of a call have in common."""
    remember("spoken", items=[language, *text])
    if "bad" in text:
        raise KeyError("bad")
    if "deadly" in text:
        os.kill(os.getpid(), 9)
    return [f"{language}: {each}" for each in text]


@app.task(base=BatchTask, name="f.spoken_hungry", batch_by=("language",), **FEW)
def spoken_hungry(text, language):
    """As `spoken`, with memory for two texts at a time."""
    if len(text) > 2:
        raise MemoryError("out of memory")
    return [f"{language}: {each}" for each in text]


@app.task(base=BatchTask, name="f.sized", batch_by=len, **FEW)
def sized(text):
    """Return texts of one length."""
    remember("sized", items=text)
    return text


if os.environ.get("TESTS_STOCK"):  # as a worker would have it that knows nothing of batches
    rows.Strategy, rows.Request = Task.Strategy, Task.Request


@app.task(base=BatchTask, name="f.hungry", **COMPANY)
def hungry(x):
    """Have memory for four items."""
    remember("hungry", items=x)
    if len(x) > 4:
        raise MemoryError("no room")
    return x


@app.task(base=BatchTask, name="f.add", **COMPANY)
def add(x, y=1):
    """Add two parameters, item by item."""
    return [a + b for a, b in zip(x, y, strict=True)]


@app.task(base=BatchTask, name="f.total", **COMPANY)
def total(numbers):
    """Add up each item, a list, as the body of a chord does."""
    remember("total", items=numbers)
    return [sum(each) for each in numbers]


@app.task(base=BatchTask, name="f.pair", max_batch_size=2, linger=0.1, max_wait=1.0)
def pair(x):
    """Return every item, two at a time."""
    remember("pair", items=x)
    return x


@app.task(base=BatchTask, name="f.quiet", ignore_result=True, **COMPANY)
def quiet(x):
    """Run, and store nothing."""
    remember("quiet", items=x)
    return x


@app.task(base=BatchTask, name="f.act", **COMPANY)
def act(what):
    """Do as each item says; the others are answered in capitals."""
    remember("act", items=what)
    return [_act(one) for one in what]


def _act(one):
    match one.partition("-")[0]:
        case "fail":
            return ValueError("told to fail")
        case "ignore":
            return Ignore()
        case "reject":
            return Reject("told to reject", requeue=False)
        case "requeue" if _first_time(one):
            return Reject("not this time", requeue=True)
        case "retry" if _first_time(one):
            return Retry("not this time", when=0.2)
    return one.upper()


def _first_time(one):
    return [one] == [x for fact in recall("act") for x in fact["items"] if x == one]


@app.task(base=BatchTask, name="f.raises", max_batch_size=16, linger=0.1, max_wait=1.0)
def raises(what):
    """Raise for the whole batch, as its first item says, the first time it is seen."""
    seen = [x for fact in recall("raises") for x in fact["items"]]
    remember("raises", items=what)
    if not set(what) <= set(seen):
        match what[0].partition("-")[0]:
            case "ignore":
                raise Ignore
            case "reject":
                raise Reject("told to reject", requeue=False)
            case "requeue":
                raise Reject("not this time", requeue=True)
    return [one.upper() for one in what]


@app.task(base=BatchTask, name="f.raises_on", **COMPANY)
def raises_on(what):
    """Raise for the whole batch as long as one of its items is bad."""
    remember("raises_on", items=what)
    if "bad" in what:
        raise ValueError("told to raise")
    return what


@app.task(base=BatchTask, bind=True, name="f.patient", max_retries=2, **COMPANY)
def patient(self, word, wanted):
    """Retry the whole batch until the last of its items is on its wanted try."""
    remember("patient", items=word, wanted=wanted)
    tries = len([1 for fact in recall("patient") if word[0] in fact["items"]])
    if tries < wanted[0]:
        raise self.retry(exc=KeyError(f"try {tries}"), countdown=0)
    return word


@app.task(
    base=BatchTask,
    name="f.stubborn",
    autoretry_for=(ConnectionError,),
    max_retries=2,
    retry_backoff=0.2,
    retry_jitter=False,
    **COMPANY,
)
def stubborn(word, failures):
    """Fail each item as often as it asks for, with an error that is tried again."""
    remember("stubborn", items=word, at=time.time())
    return [_stubborn(*each) for each in zip(word, failures, strict=True)]


def _stubborn(word, failures):
    tries = len([1 for fact in recall("stubborn") if word in fact["items"]])
    return ConnectionError(f"{word}: try {tries}") if tries <= failures else [word, tries]


@app.task(
    base=BatchTask,
    name="f.takes_out",
    autoretry_for=(ConnectionError,),
    retry_kwargs={"countdown": 0},
    **COMPANY,
)
def takes_out(word):
    """Take the word out of each item's list, and fail each item once."""
    words = [each.pop() for each in word]
    remember("stubborn", items=words)
    return [_stubborn(each, 1) for each in words]


@app.task(base=BatchTask, bind=True, name="f.replaces", **COMPANY)
def replaces(self, x):
    """Try to replace itself inside the batch function, which is refused."""
    return self.replace(echo.s(x))


@app.task(bind=True, name="f.replaced_by_batch")
def replaced_by_batch(self, x):
    """An ordinary task that is replaced by a batch task."""
    return self.replace(double.s(x))


@app.task(bind=True, name="f.replaced_by_chunk")
def replaced_by_chunk(self, numbers):
    """An ordinary task that is replaced by a chunk of what it was given."""
    return self.replace(rows.rows_signature(numbers))


@app.task(name="f.plain_add")
def plain_add(x, y=1):
    """Add, as an ordinary task."""
    return x + y


@app.task(name="f.plain_total")
def plain_total(numbers):
    """Add up, as an ordinary task."""
    return sum(numbers)


@app.task(name="f.note")
def note(x):
    """Remember what was linked, as an ordinary task."""
    remember("note", x=x)
    return x


@app.task(name="f.note_error")
def note_error(request, error, _traceback):
    """Remember what an errback hears."""
    remember("note_error", id=request.id, error=repr(error))


@app.task(base=BatchTask, name="f.note_batch", **COMPANY)
def note_batch(x):
    """Remember what was linked, as a batch task."""
    remember("note", x=x)
    return x


@app.task(base=BatchTask, name="f.rated", rate_limit="5/s", **COMPANY)
def rated(x):
    """Be limited in how often it starts."""
    remember("rated", items=x, at=time.time())
    return x


@app.task(base=BatchTask, name="f.nap_soft", soft_time_limit=0.5, **COMPANY)
def nap_soft(seconds):
    """Sleep as long as each item says, longer than the soft limit if asked for."""
    remember("nap_soft", items=seconds)
    time.sleep(sum(seconds))
    return seconds


@app.task(base=BatchTask, name="f.nap_hard", time_limit=1.0, **COMPANY)
def nap_hard(seconds):
    """Sleep as long as each item says, longer than the hard limit if asked for."""
    remember("nap_hard", items=seconds)
    time.sleep(sum(seconds))
    return seconds


@app.task(base=BatchTask, name="f.nap", **COMPANY)
def nap(seconds):
    """Sleep as long as each item says."""
    remember("nap", items=seconds)
    time.sleep(sum(seconds))
    return seconds


@app.task(base=BatchTask, name="f.kills", **COMPANY)
def kills(what):
    """End the process where an item says so."""
    remember("kills", items=what)
    if "die" in what:
        os._exit(9)
    return [one.upper() for one in what]


@app.task(base=BatchTask, name="f.kills_early", acks_late=False, **COMPANY)
def kills_early(what):
    """As `kills`, acknowledged before it runs."""
    remember("kills", items=what)
    if "die" in what:
        os._exit(9)
    return [one.upper() for one in what]


@app.task(base=BatchTask, name="f.kills_rejected", reject_on_worker_lost=True, **COMPANY)
def kills_rejected(what):
    """As `kills`, with a message that Celery would deliver again and again."""
    remember("kills", items=what)
    if "die" in what:
        os._exit(9)
    return [one.upper() for one in what]


def rejected(outcome):
    """Return the option that has messages with an outcome rejected; Celery 5.6 has one for all."""
    option = f"acks_on_{outcome}"
    return {option if hasattr(Task, option) else "acks_on_failure_or_timeout": False}


@app.task(base=BatchTask, name="f.keeps_failed", **rejected("failure"), **COMPANY)
def keeps_failed(what):
    """As `act`, but what fails is rejected rather than acknowledged."""
    return [_act(one) for one in what]


@app.task(
    base=BatchTask,
    name="f.again_after_timeout",
    time_limit=1.0,
    **rejected("timeout"),
    **COMPANY,
)
def again_after_timeout(word):
    """Take too long the first time each item is seen."""
    seen = {x for fact in recall("again_after_timeout") for x in fact["items"]}
    remember("again_after_timeout", items=word)
    if not set(word) <= seen:
        time.sleep(30)
    return word


class Hooked(BatchTask):
    """A base class whose hooks remember which item they were called for."""

    abstract = True

    def before_start(self, task_id, args, _kwargs):
        """Remember."""
        remember("signal", name="before_start", id=task_id, args=args)

    def on_success(self, retval, task_id, _args, _kwargs):
        """Remember."""
        remember("signal", name="on_success", id=task_id, result=retval)

    def on_failure(self, exc, task_id, _args, _kwargs, _einfo):
        """Remember."""
        remember("signal", name="on_failure", id=task_id, error=repr(exc))

    def on_retry(self, exc, task_id, _args, _kwargs, _einfo):
        """Remember."""
        remember("signal", name="on_retry", id=task_id, error=repr(exc))

    def after_return(self, status, _retval, task_id, _args, _kwargs, _einfo):
        """Remember."""
        remember("signal", name="after_return", id=task_id, status=status)


@app.task(base=Hooked, name="f.hooked", **COMPANY)
def hooked(what):
    """As `act`, with hooks and signals."""
    remember("signal", name="MODEL")
    remember("act", items=what)
    return [_act(one) for one in what]


class HookedPlain(Task):
    """An ordinary task with the same hooks, to compare with."""

    name = "f.hooked_plain"
    before_start, on_success = Hooked.before_start, Hooked.on_success
    on_failure, on_retry, after_return = Hooked.on_failure, Hooked.on_retry, Hooked.after_return

    def run(self, what):
        """Do to itself what the item says, as an ordinary task would."""
        remember("act", items=[what])
        outcome = _act(what)
        if isinstance(outcome, Retry):
            raise self.retry(countdown=outcome.when)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome


hooked_plain = app.register_task(HookedPlain())


def _on(signal, name):
    def receiver(sender=None, task_id=None, request=None, **_):
        names = {getattr(sender, "name", None), getattr(request, "name", None)}
        if names & {"f.hooked", "f.hooked_plain"}:
            remember("signal", name=name, id=task_id or request.id)

    signal.connect(receiver, weak=False)


for _name in (
    "task_received",
    "task_prerun",
    "task_postrun",
    "task_success",
    "task_failure",
    "task_retry",
    "task_revoked",
):
    _on(getattr(signals, _name), _name)


@shared_task(base=BatchTask, name="f.shared", **COMPANY)
def shared(x):
    """Belong to no app until one is finalized."""
    remember("shared", items=x)
    return [[each, shared.app.main] for each in x]


@app.task(base=BatchTask, bind=True, name="f.who", **COMPANY)
def who(self, x):
    """Tell the process, and what the task knows of itself."""
    return [[each, os.getpid(), self.name] for each in x]


class Stamped(Task):
    """An ordinary task that tells how it was stamped."""

    name = "f.stamped_plain"

    def run(self, _previous=None):
        """Return the stamps of this request."""
        return {"headers": self.request.stamped_headers, "stamps": self.request.stamps}


stamped_plain = app.register_task(Stamped())


class TellsStamps(BatchTask):
    """A batch task whose items keep their stamps."""

    abstract = True

    def before_start(self, task_id, _args, _kwargs):
        """Remember the stamps of each item's request."""
        remember("stamps", id=task_id, stamps=self.request.stamps)


@app.task(base=TellsStamps, name="f.stamped", **COMPANY)
def stamped(x):
    """Return every item."""
    return x


@app.task(base=TellsStamps, name="f.act_stamped", **COMPANY)
def act_stamped(what):
    """As `act`, telling the stamps."""
    remember("act", items=what)
    return [_act(one) for one in what]


@app.task(base=BatchTask, name="f.cached", cache_ttl=600, version="1", **COMPANY)
def cached(x, unit="m"):
    """Answer with a pair for each item, but none for a negative one, and remember the batch."""
    remember("cached", items=x)
    for each in x:
        if isinstance(each, str):
            pass_gate(each)
    return [
        (each, one) if isinstance(each, str) or each >= 0 else ValueError(f"no {each}")
        for each, one in zip(x, unit, strict=True)
    ]


@app.task(
    base=BatchTask,
    name="f.deduped",
    dedupe=True,
    max_batch_size=4,
    linger=0.1,
    max_wait=1.0,
    autoretry_for=(KeyError,),
    retry_backoff=False,
    default_retry_delay=0.05,
    max_retries=1,
)
def deduped(x, unit="m"):
    """Answer each item, but fail for a negative one, and end the process for "exit"."""
    remember("deduped", items=x)
    if "exit" in x:
        os._exit(1)
    if "raise" in x:
        raise RuntimeError("raise")
    return [
        (each, one) if isinstance(each, str) or each >= 0 else KeyError(f"no {each}")
        for each, one in zip(x, unit, strict=True)
    ]


@app.task(
    base=BatchTask,
    name="f.reused",
    dedupe=True,
    cache_ttl=600,
    batch_by="unit",
    cost=lambda x, unit: len(x),  # noqa: ARG005 (a parameter of the function)
    max_batch_cost=8,
    padded=True,
    batch_sizes=(1, 2, 4),
    linger=0.1,
    max_wait=1.0,
)
def reused(x, unit):
    """Answer with the number of characters in a unit; batches are keyed, padded and filled up."""
    remember("reused", items=x, unit=unit)
    return [f"{len(each)} {unit}" for each in x]
