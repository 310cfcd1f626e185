"""What the tests' streamers predict with, in processes of their own."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path

from celery_batch.errors import ConfigurationError
from celery_batch.processes.managed_process import wait_until
from celery_batch.runtime.model import Model
from celery_batch.streamer.model_adapters import ManagedModel


class Odd(Exception):
    """An error that cannot be made from what it keeps."""

    def __init__(self, first, second):
        super().__init__(f"{first} and {second}")


class Unpickled:
    """An output that cannot be pickled."""

    def __reduce__(self):
        raise TypeError("not me")


def play(batch):
    """Answer each item with what it asks for; see `_answer`."""
    return [_answer(item, batch) for item in batch]


def count(batch):
    """Answer each item with the number of those in its batch, slowly."""
    time.sleep(0.4)
    return [len(batch)] * len(batch)


def measure(batch):
    """Answer each text with its length, that of the longest in its batch, and their number."""
    time.sleep(1.0 if "pause" in batch else 0.0)
    longest = max(map(len, batch))
    return [(len(text), longest, len(batch)) for text in batch]


def slow_measure(batch):
    """Do the same in 2 ms for a call, and 0.2 ms for each letter with its padding."""
    answers = measure(batch)
    _, longest, rows = answers[0]
    time.sleep(0.002 + 0.0002 * longest * rows)
    return answers


class Measure(Model):
    """The same as a class, which says what a text costs."""

    cost = "text"

    def load(self, device):
        """Nothing is to be loaded."""

    def predict(self, text):
        """Answer as `measure` does."""
        return measure(text)


class Staged(Model):
    """Answers a text that names another with whether that was collated meanwhile."""

    def load(self, device):  # noqa: ARG002 (the model's signature)
        """Nothing has been collated."""
        self.collated = {}

    def collate(self, batch):
        """Note the texts."""
        for text in batch:
            if text == "odd":
                raise ValueError("cannot collate this")
            if text == "leave":
                sys.exit("collate has had enough")
            self._of(text).set()
        return tuple(batch)

    def predict(self, batch):
        """Wait for the texts that are named."""
        assert isinstance(batch, tuple)
        return batch, [self._of(text.removeprefix("after ")).wait(10) for text in batch]

    def uncollate(self, output):
        """Return the answers."""
        texts, met = output
        return [*zip(texts, met, strict=True)]

    def _of(self, text):
        return self.collated.setdefault(text, threading.Event())


def refill(batch):
    """Return rows of one array, which each call fills again, alone and in tuples."""
    import numpy as np  # noqa: PLC0415 (the other models need none)

    rows = buffers.setdefault("rows", np.zeros((4, 1000)))[: len(batch)]
    for row, item in zip(rows, batch, strict=True):
        row[:] = item
    return [("label", row) if row[0] % 2 else row for row in rows]


buffers = {}


def drop(batch):
    """Lose an output."""
    return batch[1:]


def _answer(item, batch):  # noqa: C901 (a word is a case)
    match item:
        case "die":
            os.kill(os.getpid(), signal.SIGKILL)
        case "leave":
            raise SystemExit(3)
        case "raise":
            raise ValueError("cannot digest this")
        case "odd":
            raise Odd(1, 2)
        case "unpickled":
            return Unpickled()
        case "pid":
            return os.getpid()
        case "size":
            return len(batch)
        case ("sleep", seconds):
            time.sleep(seconds)
        case ("gate", path):
            wait_until(lambda: "" if Path(path).exists() else "shut", [], what=path, timeout=60)
        case ("env", name):
            return os.environ.get(name)
        case ("die once", path):
            _die_once(path)
    return item


def _die_once(path):
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return
    os.kill(os.getpid(), signal.SIGKILL)


class Told(ManagedModel):
    """A ManagedModel that returns its arguments, and its environment at that time."""

    threads = os.environ.get("OMP_NUM_THREADS")

    def init_model(self, *args, **kwargs):
        """Keep what there is to say."""
        self.model = (args, kwargs, self.gpu_id, self.threads)

    def predict(self, batch):
        """Say it for each item."""
        return [self.model for _ in batch]


class Failing(Model):
    """A model that cannot be loaded."""

    def load(self, device):
        """Raise."""
        raise ConfigurationError(f"no weights for {device}")

    def predict(self, batch):
        """Never get here."""
        return batch


class Exiting(Failing):
    """A model whose loading gives up as programs do."""

    def load(self, device):  # noqa: ARG002
        """Exit."""
        raise SystemExit("no weights")


class Leaving(Failing):
    """A model whose loading ends the process."""

    def load(self, device):  # noqa: ARG002
        """End it."""
        os._exit(7)


class Lost(Model):
    """A model whose weights may be lost after it was loaded."""

    def __init__(self, weights):
        self.weights = weights

    def load(self, device):
        """Raise when they are not there."""
        if not os.path.exists(self.weights):  # noqa: PTH110 (a text is what crosses the pipe)
            raise OSError(f"no weights for {device}")

    def predict(self, batch):
        """Answer as `play` does."""
        return play(batch)
