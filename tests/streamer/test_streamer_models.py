"""A streamer's model in a Celery worker."""

from __future__ import annotations

import pytest

from celery_batch import ConfigurationError
from celery_batch.streamer.redis_worker import model_class_of
from celery_batch.testing import EchoModel


def test_arrays_are_answered_as_lists(in_python):
    """What numpy and models make of numbers is JSON once the model is loaded."""
    pytest.importorskip("numpy")
    said = in_python(
        "import numpy\n"
        "from kombu.utils.json import dumps\n"
        "from celery_batch.streamer.redis_worker import model_class_of\n"
        "model = model_class_of(lambda batch: [numpy.float32(x) / 2 for x in batch])()\n"
        "model.load('cpu')\n"
        "print(dumps([model.predict([1, 3]), {'box': numpy.arange(2)}]))"
    )

    assert '[[0.5, 1.5], {"box": [0, 1]}]' == said


def test_a_class_is_made_of_whatever_predicts():
    """Its name is that of what was given, and it lives as any model does."""
    kind = model_class_of(EchoModel)
    model = kind()
    model.load("cpu")

    assert "EchoModel" == kind.__name__
    assert [1, 2] == list(model.predict([1, 2]))
    model.unload()


def test_what_cannot_predict_is_refused():
    """A text is no model."""
    with pytest.raises(ConfigurationError, match="predict function"):
        model_class_of("bert")
