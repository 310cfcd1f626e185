"""What the model of colours says of pictures that a person would say the same of."""

from __future__ import annotations

import io

import pytest
from PIL import Image

from workers.colours import NAMED, MainColours


@pytest.fixture(scope="module")
def model():
    """Return the model, loaded on the CPU."""
    loaded = MainColours()
    loaded.load("cpu")
    return loaded


def drawn(*stripes, size=(300, 200), kind="PNG", mode="RGB"):
    """Return the file of a picture of upright stripes."""
    image = Image.new(mode, size)
    width = size[0] // len(stripes)
    for number, colour in enumerate(stripes):
        image.paste(colour, (number * width, 0, (number + 1) * width, size[1]))
    file = io.BytesIO()
    image.save(file, kind)
    return file.getvalue()


def shares(answer):
    """Return an answer as a dict, rounded to what can be counted on."""
    return {each["name"]: round(each["share"], 1) for each in answer}


@pytest.mark.parametrize("name", NAMED)
def test_each_colour_has_its_own_name(model, name):
    """A picture in a shade of the palette is called by that shade's name."""
    answers = model.predict([drawn(shade, size=(7, 5)) for shade in NAMED[name]])

    assert [[{"name": name, "share": 1.0}]] * len(answers) == answers


def test_the_largest_share_comes_first(model):
    """Colours come in the order of their shares, and at most five of them."""
    (answer,) = model.predict([drawn("red", "blue", "red", "lime", "red", "blue")])
    (many,) = model.predict([drawn("red", "lime", "blue", "cyan", "magenta", "yellow", "black")])

    assert ["red", "blue", "lime"] == [each["name"] for each in answer]
    assert 5 == len(many)


def test_a_broken_picture_fails_alone(model):
    """What is no picture, or cut short, has an error; its neighbours have answers."""
    good = drawn("red", size=(3, 2))
    bad = [b"", b"GIF89a", good[:50], "text", None]
    *errors, answer = model.predict([*bad, good])

    assert [{"name": "red", "share": 1.0}] == answer
    assert [ValueError] * len(bad) == [type(each) for each in errors]
    assert isinstance(model.predict([b""])[0], ValueError)


def test_a_picture_with_too_many_pixels_is_refused(model):
    """A small file that claims 64 million pixels is not decoded."""
    (error,) = model.predict([drawn("red", size=(8000, 8000), mode="1")])

    assert "8000 x 8000 pixels are too many" == str(error)
