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


@pytest.mark.parametrize(
    ("shade", "name"),
    [
        ((12, 12, 14), "black"),
        ((250, 248, 250), "white"),
        ((210, 30, 45), "red"),
        ((50, 140, 60), "green"),
        ((40, 80, 190), "blue"),
        ((250, 200, 40), "yellow"),
        ((240, 130, 30), "orange"),
        ((100, 65, 40), "brown"),
    ],
)
def test_a_colour_near_by_is_called_the_same(model, shade, name):
    """What is not quite a named colour is called what people call it."""
    assert [[{"name": name, "share": 1.0}]] == model.predict([drawn(shade)])


@pytest.mark.parametrize("kind", ["GIF", "JPEG", "PNG", "WEBP"])
def test_a_flag_has_the_shares_of_its_stripes(model, kind):
    """In each format, three stripes are a third each; a lossy one does not blur that away."""
    (answer,) = model.predict([drawn("blue", "white", "red", kind=kind)])

    assert {"blue": 0.3, "white": 0.3, "red": 0.3} == shares(answer)


def test_the_largest_share_comes_first(model):
    """Colours come in the order of their shares, and at most five of them."""
    (answer,) = model.predict([drawn("red", "blue", "red", "lime", "red", "blue")])
    (many,) = model.predict([drawn("red", "lime", "blue", "cyan", "magenta", "yellow", "black")])

    assert ["red", "blue", "lime"] == [each["name"] for each in answer]
    assert 5 == len(many)


def test_pictures_of_any_sizes_share_a_batch(model):
    """What a picture is told does not depend on its neighbours, nor on its own size."""
    files = [
        drawn("red", "blue", size=size) for size in [(2, 1), (64, 64), (900, 3), (20, 700)]
    ] + [drawn("white", size=(1, 1))]

    assert [model.predict([file])[0] for file in files] == model.predict(files)
    assert {"red": 0.5, "blue": 0.5} == shares(model.predict(files)[3])


def test_what_cannot_be_seen_does_not_count(model):
    """Transparent pixels have no colour, whatever is written in them."""
    clear, seen = (255, 0, 0, 0), (0, 128, 0, 255)
    answers = model.predict([drawn(clear, seen, mode="RGBA"), drawn(clear, mode="RGBA")])

    assert [{"name": "green", "share": 1.0}] == answers[0]
    assert isinstance(answers[1], ValueError)
    assert "transparent" in str(answers[1])


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "CMYK", "I;16"])
def test_pictures_of_other_kinds_are_read_too(model, mode):
    """Grey ones, palettes, print colours: all are turned into what is on the screen."""
    image = Image.new("L", (4, 4), 255).convert("I" if mode == "I;16" else mode)
    file = io.BytesIO()
    if mode == "I;16":
        image = Image.new(mode, (4, 4), 65535)
    image.save(file, "JPEG" if mode == "CMYK" else "PNG")

    assert [[{"name": "white", "share": 1.0}]] == model.predict([file.getvalue()])


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
