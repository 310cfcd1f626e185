"""What a streamer can be given, and how it is loaded."""

from __future__ import annotations

import os
import pickle

import pytest

import celery_batch
from celery_batch import streamer
from celery_batch.errors import ConfigurationError
from celery_batch.runtime import registry
from celery_batch.runtime.model import Model
from celery_batch.streamer.model_adapters import ManagedModel, as_model, device_names
from celery_batch.testing import PoisonModel


def double(batch):
    """Answer twice each number."""
    return [2 * each for each in batch]


class Scaled(ManagedModel):
    """A model whose `init_model` takes the factor to multiply by."""

    def init_model(self, factor, *, offset=0):
        """Keep the numbers."""
        self.model = (factor, offset)

    def predict(self, batch):
        """Answer with the GPU, too."""
        factor, offset = self.model
        return [(factor * each + offset, self.gpu_id) for each in batch]


def test_both_doors_lead_to_one_class():
    """The names are the same from the package and from its front door."""
    assert celery_batch.ManagedModel is streamer.ManagedModel is ManagedModel


@pytest.mark.parametrize("given", [double, [2].__mul__, Scaled, Scaled(), PoisonModel])
def test_str_names_what_was_given(given):
    """A model says what it was made of, for error messages."""
    name = getattr(given, "__qualname__", type(given).__qualname__)

    assert name in str(as_model(given))


def test_function_is_called_as_it_is():
    """A function has nothing to load and is called without a detour."""
    model = as_model(double)
    model.load("cpu")

    assert double is model.predict
    assert ([], None) == (list(model.examples()), model.unload())


def test_managed_model_is_made_on_its_gpu(monkeypatch):
    """A ManagedModel class is made where it is loaded, with its GPU and its arguments."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    model = pickle.loads(pickle.dumps(as_model(Scaled, (10,), {"offset": 1})))  # noqa: S301
    model.load("cuda:0")

    assert [(21, "3")] == model.predict([2])


def test_managed_model_without_gpu():
    """On the CPU there is no GPU to name, and the environment stays as it is."""
    before = os.environ.get("CUDA_VISIBLE_DEVICES")
    model = as_model(Scaled(), [10])
    model.load("cpu")

    assert [(20, None)] == model.predict([2])
    assert before == os.environ.get("CUDA_VISIBLE_DEVICES")


def test_our_model_class_takes_arguments():
    """A Model class is constructed with the arguments, loaded, and asked for its examples."""
    model = as_model(PoisonModel, (), {"poison": "x"})
    model.load("cpu")

    assert ["y"] == model.predict(["y"])
    with pytest.raises(ValueError, match="cannot digest 'x'"):
        model.predict(["x"])


@pytest.mark.parametrize("given", [None, dict, 3], ids=["none", "class", "number"])
def test_what_cannot_predict_is_refused(given):
    """Anything else is refused at once, by a message that says what would do."""
    with pytest.raises(ConfigurationError, match="predict function, a ManagedModel class"):
        as_model(given)


@pytest.mark.parametrize(
    ("given", "names"),
    [
        (None, None),
        ((0, 1), ["cuda:0", "cuda:1"]),
        (2, ["cuda:2"]),
        ("0,cuda:1", ["cuda:0", "cuda:1"]),
        (["cpu"], ["cpu"]),
        (["GPU-8932f937"], ["cuda:GPU-8932f937"]),
    ],
    ids=str,
)
def test_device_names(given, names, monkeypatch):
    """Devices may be given as service-streamer took them, or by our names."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    assert names == device_names(given)


@pytest.mark.parametrize(
    ("visible", "given", "names"),
    [
        ("4,5", (5, 4), ["cuda:1", "cuda:0"]),
        ("1,2", (1, 2), ["cuda:0", "cuda:1"]),
        ("1,2", (0, 1), ["cuda:0", "cuda:1"]),
        ("2,1,0", "0,1,2", ["cuda:2", "cuda:1", "cuda:0"]),
        ("4,5", (5, 0), ["cuda:5", "cuda:0"]),
        ("GPU-8932f937,GPU-1", (1, "GPU-8932f937"), ["cuda:1", "cuda:GPU-8932f937"]),
        ("", (0,), ["cuda:0"]),
    ],
)
def test_device_names_among_visible_ones(visible, given, names, monkeypatch):
    """Numbers that are all visible under those numbers are those GPUs; else they count them."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)

    assert names == device_names(given)


def test_no_device_at_all_is_refused():
    """An empty choice of devices leaves nothing to choose from."""
    with pytest.raises(ConfigurationError, match="cuda_devices: is empty"):
        device_names([])


def test_a_model_of_several_parameters_is_refused():
    """A streamer has one list to give; a parameter with a default may be left out."""

    class Two(Model):
        def predict(self, text, lang):
            return [one + into for one, into in zip(text, lang, strict=True)]

    class Optional(Model):
        def predict(self, text, lang="en"):
            return [one + lang for one in text]

    with pytest.raises(ConfigurationError, match=r"Two\.predict takes \(text, lang\)"):
        as_model(Two)
    model = as_model(Optional)
    registry.warm(lambda: model, str(model), "cpu")

    assert ["aen"] == model.predict(["a"])
