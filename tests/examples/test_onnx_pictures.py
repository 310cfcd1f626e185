"""Pictures from requests: read, refused, cut and fitted as the networks have learnt to see."""

from __future__ import annotations

import base64
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from examples.serving.pictures import BadPicture, centre_crop, channels_first, decode, letterbox
from tests.apps.models.onnx_files import picture


def in_base64(content):
    """Return bytes as a request carries them."""
    return base64.b64encode(content).decode()


def claiming(width, height):
    """Return the beginning of a PNG file that says it has this size."""
    header = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunk = struct.pack(">I", len(header) - 4) + header + struct.pack(">I", zlib.crc32(header))
    return b"\x89PNG\r\n\x1a\n" + chunk + struct.pack(">I", 0) + b"IDAT"


def striped(width, height, middle):
    """Return a black picture with a white stripe down its middle."""
    picture = Image.new("RGB", (width, height))
    picture.paste("white", ((width - middle) // 2, 0, (width + middle) // 2, height))
    return picture


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "BMP"])
def test_decode_reads_pictures(kind):
    """A picture's file in base64 becomes that picture, in three channels."""
    read = decode(in_base64(picture("white", (40, 30), kind)))

    assert ((40, 30), "RGB") == (read.size, read.mode)
    assert (255, 255, 255) == read.getpixel((20, 15))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "must be the picture's file in base64"),
        (["x"], "must be the picture's file in base64"),
        ("not base64!", "no base64"),
        (in_base64(b"no picture"), "no picture that can be read"),
        (in_base64(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n"), "no picture"),
        (in_base64(picture("red", (640, 480), "JPEG")[:-200]), "no picture that can be read"),
        (in_base64(claiming(8001, 8000)), "8001 x 8000 pixels"),
    ],
    ids=["missing", "list", "text", "bytes", "program", "half", "huge"],
)
def test_decode_refuses_what_is_no_picture(text, words):
    """What cannot be read, should not be run or would fill the memory is refused in words."""
    with pytest.raises(BadPicture, match=words):
        decode(text)


@pytest.mark.parametrize("upright", [False, True], ids=["lying", "upright"])
def test_centre_crop_cuts_the_middle(upright):
    """The cut is the middle of the scaled picture: 224 of the 256 that its short edge becomes."""
    striped_picture = striped(1024, 512, middle=452)
    turned = striped_picture.transpose(Image.Transpose.ROTATE_90)
    square = centre_crop(turned if upright else striped_picture, edge=256, side=224)
    corner = centre_crop(striped(1024, 512, middle=436), edge=256, side=224)

    assert (224, 224) == square.size
    assert ((255, 255),) * 3 == square.getextrema()
    assert (0, 255) == corner.getextrema()[0]


@pytest.mark.parametrize("size", [(1, 1), (1, 50_000), (50_000, 1)])
def test_thinnest_pictures_are_cut_and_fitted(size):
    """A picture of one line costs no more than any other, and comes out in the right size."""
    line = Image.new("RGB", size, "red")

    assert (224, 224) == centre_crop(line, edge=256, side=224).size
    assert (416, 416) == letterbox(line, 416).size


def test_letterbox_keeps_the_proportions():
    """The picture fills the square one way, lies in the middle the other, with grey beside it."""
    square = letterbox(Image.new("RGB", (800, 400), "red"), 416)
    rows = np.asarray(square)[:, 200]

    assert [104, 208, 104] == [
        int((rows[part] == colour).all(axis=1).sum())
        for part, colour in (
            (slice(0, 104), (128, 128, 128)),
            (slice(104, 312), (255, 0, 0)),
            (slice(312, 416), (128, 128, 128)),
        )
    ]


def test_channels_come_first():
    """The network gets red, green and blue one after another, from 0 to 1."""
    values = channels_first(Image.new("RGB", (4, 2), (255, 51, 0)))

    assert ((3, 2, 4), np.float32) == (values.shape, values.dtype)
    assert np.float32([1, 0.2, 0]).tolist() == values[:, 0, 0].tolist()
