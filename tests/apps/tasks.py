"""
The Celery app of the integration tests: small batch tasks with a memory.

What the models saw is kept in Redis beside the results, so that a test can ask
what really ran, in which process, and in what company.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
import traceback
from functools import partial
from pathlib import Path

from celery import Celery
from celery.exceptions import Retry
from kombu.message import Message

from celery_batch import BatchTask, Model
from celery_batch.processes.managed_process import wait_until
from celery_batch.serialization import decoding
from tests.apps.memory import memory, recall, remember

__all__ = ["app", "memory", "recall", "remember"]

app = Celery("shop")
app.conf.update(
    task_default_queue=os.environ.get("TESTS_QUEUE", "celery"),
    result_expires=600,
    task_routes={
        "shop.clerk": "counter",
        "shop.elsewhere": "elsewhere",
        "shop.translate*": "abroad",
    },
    broker_connection_retry_on_startup=True,
    **json.loads(os.environ.get("TESTS_CONF", "{}")),
)


if _slow_start := float(os.environ.get("TESTS_FORK_SECONDS", "0")):
    # Until then a pool process has the worker's signal handlers.
    os.register_at_fork(after_in_child=partial(time.sleep, _slow_start))


if os.environ.get("TESTS_WITHOUT_BASE"):

    @app.task(name="shop.forgotten", max_batch_size=8, max_wait=0.1)
    def forgotten(x):
        """Run as an ordinary task, since its author forgot the base class."""
        return x


@app.task(base=BatchTask, name="shop.double", max_batch_size=16, max_wait=0.5, linger=0.05)
def double(x):
    """Double each number, and remember the batch."""
    remember("double", items=x)
    return [value * 2 for value in x]


@app.task(base=BatchTask, name="shop.halved", max_batch_size=16, max_wait=0.05)
def halved(x):
    """Return half of each array; a number of zeros for a number."""
    import numpy as np  # noqa: PLC0415 (only this task needs it)

    return [each / 2 if hasattr(each, "dtype") else np.zeros(int(each), "f4") for each in x]


@app.task(base=BatchTask, name="shop.tracers", max_batch_size=8, max_wait=2.0, linger=0.5)
def tracers(x):
    """Count the tracers that this batch runs inside of."""
    depths = [
        sum(frame.f_code is trace_code() for frame, _ in traceback.walk_stack(top))
        for top in sys._current_frames().values()
    ]
    return [[len(x), max(depths)] for _ in x]


def trace_code():
    """Return the code of what Celery's tracers are."""
    return plain.__trace__.__code__


@app.task(base=BatchTask, name="shop.slow", max_batch_size=8, max_wait=0.05)
def slow(x):
    """Take a while over each batch."""
    remember("slow", items=x)
    time.sleep(0.1)
    return x


@app.task(base=BatchTask, name="shop.timed", max_batch_size=8, soft_time_limit=0.5, linger=0.05)
def timed(seconds):
    """Sleep as long as the first item says."""
    time.sleep(seconds[0])
    return seconds


@app.task(base=BatchTask, name="shop.odd", max_batch_size=16, max_wait=0.5, linger=0.05)
def odd(word):
    """Misbehave in the way the first item asks for."""
    match word[0]:
        case "raise":
            raise RuntimeError("the model broke")
        case "short":
            return word[1:]
        case "none":
            return None
        case "exit":
            os._exit(1)
    return [_odd_one(one) for one in word]


def _odd_one(one):
    match one:
        case "bad":
            return ValueError("a bad item")
        case "unserialisable":
            return object()
        case "set":
            return {"of": [{1, 2}]}
        case "ndarray" | "masked":
            import numpy as np  # noqa: PLC0415 (the other tests' workers need none)

            wrong = np.array([{1}]) if one == "ndarray" else np.ma.array([1])
            return {"fine": np.ones(3), "of": [wrong]}
        case "tensor":
            import torch  # noqa: PLC0415 (likewise)

            return {"fine": torch.ones(3), "of": [torch.ones(3).to_sparse()]}
    return one.upper()


def _note_decoding():
    """Remember which process decodes long texts."""
    from celery_batch.worker.dispatch import payload  # noqa: PLC0415 (callers need no worker)

    kombu_s = Message._decode

    def decode(message):
        _note_length(message.body)
        return kombu_s(message)

    Message._decode = decode
    for place, name in ((decoding, "_scan"), (payload, "loads")):
        setattr(place, name, partial(_note_and_decode, getattr(place, name)))


def _note_and_decode(decode, text, *args, **options):
    _note_length(text)
    return decode(text, *args, **options)


def _note_length(text):
    if len(text) > 100_000:
        remember("decoded", pid=os.getpid())


if os.environ.get("TESTS_DECODED"):
    _note_decoding()


class Shown:
    """An output that counts how often its text is made, and is stored as a number."""

    texts = 0

    def __init__(self, number):
        self.number = number

    def __json__(self):
        """Return what is stored."""
        return self.number

    def __repr__(self):
        Shown.texts += 1
        return f"<Shown {self.number}>"


@app.task(base=BatchTask, name="shop.shown", max_batch_size=8, max_wait=1.0, linger=0.1)
def shown(x):
    """Say how often the text of an output has been made in this process."""
    return [Shown(Shown.texts) for _ in x]


@app.task(base=BatchTask, name="shop.join", max_batch_size=16, max_wait=0.5, linger=0.05)
def join(left, right="!", *, sep="-"):
    """Take several parameters, one with a default and one by keyword only."""
    return [f"{a}{s}{b}" for a, b, s in zip(left, right, sep, strict=True)]


@app.task(
    base=BatchTask,
    bind=True,
    name="shop.flaky",
    max_batch_size=16,
    autoretry_for=(ConnectionError,),
    retry_backoff=False,
    default_retry_delay=0,
    max_retries=5,
)
def flaky(self, x):
    """Fail each item on its first try."""
    seen = {fact["item"] for fact in recall("flaky")}
    for item in x:
        remember("flaky", item=item, task=self.name)
    return [item if item in seen else ConnectionError(f"first try of {item}") for item in x]


@app.task(base=BatchTask, bind=True, name="shop.again", linger=0.05, max_wait=0.5)
def again(self, x):
    """Ask for another try, in the way the first item says, until every item was seen twice."""
    seen = [fact["item"] for fact in recall("again")]
    for item in x:
        remember("again", item=item)
    if all(item in seen for item in x):
        return x
    match x[0]:
        case "replace":
            self.replace(plain.s(1))
        case "item":
            return [Retry("not yet", when=0) if item not in seen else item for item in x]
        case "never":
            raise self.retry(exc=KeyError("gave up"), countdown=0, max_retries=0)
    raise self.retry(countdown=0)


@app.task(base=BatchTask, bind=True, name="shop.about", max_batch_size=16)
def about(self, x):
    """Say what the request in whose name the batch runs knows of itself."""
    request = self.request
    return [[request.get("request_id"), request.headers, request.expires] for _ in x]


@app.task(name="shop.plain")
def plain(x):
    """Add one, as any Celery task would."""
    return x + 1


@app.task(name="shop.size")
def size(x):
    """Measure something, as any Celery task would."""
    return len(x)


@app.task(name="shop.doze")
def doze():
    """Keep the process, as any Celery task can, until it is told to wake up."""
    remember("doze")
    wait_until(lambda: "" if recall("wake") else "asleep", [], what="call", timeout=120)


@app.task(name="shop.total")
def total(numbers):
    """Add up what a chord has gathered."""
    return sum(numbers)


@app.task(base=BatchTask, name="shop.elsewhere")
def elsewhere(x):
    """Belong to a queue that the workers of most tests do not consume."""
    return x


class Clerk(Model):
    """A model with a life cycle that takes its time, and fails when told to."""

    def load(self, device):
        """Be slow, remember who loaded where."""
        time.sleep(float(os.environ.get("TESTS_LOAD_SECONDS", "0")))
        self.device = device
        remember(
            "load",
            device=device,
            visible=os.environ.get("CUDA_VISIBLE_DEVICES"),
            pipes=os.environ.get("CUDA_MPS_PIPE_DIRECTORY"),
        )
        if Path(os.environ.get("TESTS_CLERK_SLOW", "/nonexistent")).exists():
            time.sleep(3)
        if Path(os.environ.get("TESTS_CLERK_FLAG", "/nonexistent")).exists():
            raise OSError("the device is gone")
        match os.environ.get("TESTS_CLERK"):
            case "broken":
                raise FileNotFoundError("no weights at /nowhere/weights.bin")
            case "dies":
                os._exit(3)

    def examples(self):
        """Warm up with two items, one of which can be made to fail."""
        return ["bad"] if os.environ.get("TESTS_CLERK") == "cold" else [1, 2]

    def predict(self, batch):
        """Name the process that answered."""
        remember("clerk", items=batch)
        if "slow" in batch:
            time.sleep(600)
        return [ValueError("cannot") if x == "bad" else [x, os.getpid()] for x in batch]

    def unload(self):
        """Say goodbye."""
        remember("unload")


clerk = Clerk.as_task(app, name="shop.clerk", max_batch_size=8, max_wait=0.2, linger=0.02)


class Translator(Model):
    """A model that takes two values with each request."""

    def load(self, device):
        """Remember who loaded it."""
        remember("load_translator", device=device)

    def examples(self):
        """Return a request to warm up with."""
        return [("bread", "de")]

    def predict(self, text, lang="fr"):
        """Remember the batch, and put each text into its language."""
        remember("translator", text=text, lang=lang)
        return [f"{one} ({into})" for one, into in zip(text, lang, strict=True)]


translate = Translator.as_task(app, name="shop.translate", max_batch_size=8, linger=0.2)
translate_alone = Translator.as_task(app, name="shop.translate_alone", max_batch_size=1)


class Mute(Exception):
    """An error whose text cannot be had."""

    def __str__(self):
        """Fail."""
        raise RuntimeError("no text")


@app.task(
    base=BatchTask,
    name="shop.deadly",
    max_batch_size=8,
    max_wait=0.5,
    linger=0.1,
    track_started=True,
)
def deadly(word):
    """Take the process down in the way that any item asks for."""
    remember("deadly", items=word)
    if "exit" in word:
        os._exit(1)
    if "kill" in word:
        os.kill(os.getpid(), signal.SIGKILL)
    if "leave" in word:
        raise SystemExit(3)
    if "cancel" in word:
        raise asyncio.CancelledError("told to stop")
    if "mute" in word:
        raise Mute
    if "cuda" in word:
        raise RuntimeError("CUDA error: device-side assert triggered")
    return [one.upper() for one in word]


@app.task(base=BatchTask, name="shop.sluggish", max_batch_size=8, linger=0.1, max_wait=0.5)
def sluggish(seconds):
    """Sleep as long as all items say together."""
    remember("sluggish", items=seconds)
    time.sleep(sum(seconds))
    return seconds


@app.task(base=BatchTask, name="shop.drowsy", max_batch_size=8, linger=0.1, max_wait=0.5)
def drowsy(word):
    """Remember the batch; for "doze" wait until it is told to wake up."""
    remember("drowsy", items=word)
    if "doze" in word:
        wait_until(lambda: "" if recall("wake") else "asleep", [], what="call", timeout=120)
    return word


@app.task(base=BatchTask, name="shop.hungry", max_batch_size=16, linger=0.1, max_wait=0.5)
def hungry(x):
    """Have memory for four items, as torch would put it."""
    import torch  # noqa: PLC0415 (the other tests' workers need none)

    remember("hungry", items=x)
    if len(x) > 4 or "huge" in x:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB.")
    return x


@app.task(
    base=BatchTask,
    name="shop.once",
    max_batch_size=8,
    linger=0.1,
    max_wait=0.5,
    isolate_failures=False,
)
def once(x):
    """Have side effects, so that no item may be seen twice."""
    remember("once", items=x)
    if "bad" in x:
        raise ValueError("cannot digest it")
    return x


@app.task(base=BatchTask, name="shop.nap", max_batch_size=4, max_wait=0.2, linger=0.02)
def nap(x):
    """Take longer over each batch than a short visibility timeout, or until it is told to wake."""
    remember("nap", items=x)
    seconds = os.environ.get("TESTS_NAP_SECONDS", "1.3")
    if seconds == "until woken":
        wait_until(lambda: "" if recall("wake") else "asleep", [], what="call", timeout=120)
    else:
        time.sleep(float(seconds))
    return x
