"""What counts as an upload of pictures, and what a bad one is told."""

from __future__ import annotations

import base64
import io
import json
import struct
import zlib

import pytest
from PIL import Image

from webapp.errors import InvalidInput, Refused, TooLarge, UnreadablePicture, UnsupportedMediaType
from webapp.messages import Ask
from webapp.picture import KINDS, kind_of
from webapp.settings import Settings
from webapp.uploads import largest_upload, pictures

SETTINGS = Settings(max_picture_bytes=3000, max_pictures=3, max_pixels=1000)


def drawn(kind="PNG", size=(3, 2)):
    """Return the file of a small picture."""
    file = io.BytesIO()
    Image.new("RGB", size, "red").save(file, kind)
    return file.getvalue()


PNG, JPEG = drawn(), drawn("JPEG")


def part(data, kind="image/png", field="picture"):
    """Return one part of a form."""
    head = f'--x\r\nContent-Disposition: form-data; name="{field}"; filename="a b.png"\r\n'
    return f"{head}Content-Type: {kind}\r\n\r\n".encode() + data + b"\r\n"


def form(*parts, end=b"--x--\r\n"):
    """Return an upload as browsers send it."""
    headers = {"content-type": "multipart/form-data; boundary=x"}
    return Ask(method="POST", path="/pictures", headers=headers, body=b"".join(parts) + end)


def document(value):
    """Return an upload as programs send it; a string is a body as it is."""
    body = value if isinstance(value, str) else json.dumps(value)
    headers = {"content-type": "application/json; charset=utf-8"}
    return Ask(method="POST", path="/pictures", headers=headers, body=body.encode())


def listed(*files):
    """Return an upload of texts or files as JSON."""
    return document(
        {"pictures": [text(each) if isinstance(each, bytes) else each for each in files]}
    )


def text(data):
    """Return the base64 of a file."""
    return base64.b64encode(data).decode()


def bomb(width, height):
    """Return a PNG of a few bytes that claims to be of a size."""
    header = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        PNG[:8] + struct.pack(">I", 13) + header + struct.pack(">I", zlib.crc32(header)) + PNG[33:]
    )


def files(ask, settings):
    """Return the files of an upload."""
    return pictures(ask, settings).inputs


@pytest.mark.parametrize("kind", KINDS.values())
def test_each_format_is_read_in_both_forms(kind):
    """The files come out as they went in, whichever way and in whichever format."""
    data, media_type = drawn(kind), next(name for name, each in KINDS.items() if each == kind)

    assert media_type == kind_of(data)
    assert [data] == files(form(part(data, media_type)), SETTINGS)
    assert [data] == files(listed(data), SETTINGS)
    assert [data] == files(listed(f"data:{media_type};base64,{text(data)}"), SETTINGS)


def test_several_pictures_come_out_in_order():
    """A field that is repeated gives a list, as JSON does."""
    assert [PNG, JPEG] == files(form(part(PNG), part(JPEG, "image/jpeg")), SETTINGS)
    assert [JPEG, PNG] == files(listed(JPEG, PNG), SETTINGS)


def test_bytes_that_look_like_a_boundary_stay_in_the_picture():
    """Only a boundary on a line of its own ends a part."""
    data = PNG + b"--x--\r\n--\r\n-x"

    assert [data] == files(form(part(data)), SETTINGS)


def test_a_data_url_may_have_parameters():
    """What stands between the media type and base64 is nobody's business here."""
    assert [PNG] == files(listed(f"DATA:image/PNG;name=a.png;base64,{text(PNG)}"), SETTINGS)


def test_an_upload_may_ask_to_be_explained():
    """The query says, or a field of JSON, that what is known of the batches is to be told."""
    whole = form(part(PNG))
    asked = [
        *(whole._replace(query=query) for query in ("explain=true", "x=1&explain=true")),
        document({"pictures": [text(PNG)], "explain": True}),
        listed(PNG)._replace(query="explain=true"),
        *(whole._replace(query=query) for query in ("", "explain=false", "explain=", "%%%&=")),
        document({"pictures": [text(PNG)], "explain": False}),
        listed(PNG),
    ]

    assert [True] * 4 + [False] * 6 == [pictures(ask, SETTINGS).explain for ask in asked]
    with pytest.raises(InvalidInput, match='"explain" must be a boolean, not a string'):
        pictures(document({"pictures": [text(PNG)], "explain": "true"}), SETTINGS)


@pytest.mark.parametrize("content_type", [None, "", "image/png", "text/plain", "multipart/mixed"])
def test_an_upload_is_a_form_or_json(content_type):
    """Any other content type is refused by its name, before the body is read."""
    headers = {} if content_type is None else {"content-type": content_type}
    ask = Ask(method="POST", path="/pictures", headers=headers, body=PNG)

    with pytest.raises(UnsupportedMediaType, match="multipart/form-data or application/json"):
        pictures(ask, SETTINGS)


@pytest.mark.parametrize(
    ("ask", "kind", "message"),
    [
        (form(), InvalidInput, 'there is no field "picture"'),
        (
            form(part(PNG, field="file")),
            InvalidInput,
            'unknown field "file"; the only field is',
        ),
        (form(part(PNG), end=b""), InvalidInput, "not a valid form"),
        (form(b"--x\r\n\r\nno header\r\n"), InvalidInput, "not a valid form"),
        (form(*[part(PNG)] * 4), TooLarge, "4 pictures are more than the limit of 3: send"),
        (form(*[part(PNG)] * 6), TooLarge, "far more parts than the limit of 3"),
        (form(part(PNG, "text/plain")), UnsupportedMediaType, "picture[0] must have a content"),
        (form(part(PNG, "")), UnsupportedMediaType, "picture[0] must have a content type"),
        (form(part(PNG), part(PNG, "image/svg+xml")), UnsupportedMediaType, "picture[1] must"),
        (form(part(JPEG)), UnsupportedMediaType, "is called image/png, but is image/jpeg"),
        (form(part(b"<svg/>")), UnsupportedMediaType, "picture[0] begins like none of image/gif"),
        (form(part(b"")), UnreadablePicture, "picture[0] is empty"),
        (form(part(PNG[:20])), UnreadablePicture, "picture[0] is damaged"),
        (form(part(PNG + b"x" * 3000)), TooLarge, "bytes, the limit is 3000: send a smaller"),
        (form(part(drawn(size=(40, 40)))), TooLarge, "picture[0] has more than 1000 pixels"),
        (form(part(bomb(20_000, 20_000))), TooLarge, "picture[0] has more than 1000 pixels"),
        (form(part(b"x" * 80_000)), TooLarge, "the body is larger than the limit of 69536 bytes"),
        (document("{"), InvalidInput, "not valid JSON"),
        (document("[" * 60_000), InvalidInput, "nested too deeply"),
        (document([text(PNG)]), InvalidInput, 'must be an object, {"pictures"'),
        (document({"pictures": [text(PNG)], "x": 1}), InvalidInput, "must be an object"),
        (document({"picture": [text(PNG)]}), InvalidInput, 'must be an object, {"pictures"'),
        (document({"pictures": text(PNG)}), InvalidInput, '"pictures" must be a list'),
        (listed(), InvalidInput, "a list of at least one string"),
        (listed(PNG, 7), InvalidInput, "pictures[1] must be a string"),
        (listed(PNG, PNG, PNG, PNG), TooLarge, "4 pictures are more than the limit of 3"),
        (listed("no base64!"), UnreadablePicture, "pictures[0] is not base64"),
        (listed(text(PNG) + "\n"), UnreadablePicture, "no line breaks"),
        (listed("é"), UnreadablePicture, "pictures[0] is not base64"),
        (listed(""), UnreadablePicture, "pictures[0] is empty"),
        (listed(b"GIF89a"), UnreadablePicture, "pictures[0] is damaged"),
        (listed(b"%PDF-1.7"), UnsupportedMediaType, "pictures[0] begins like none of"),
        (listed("data:image/png," + text(PNG)), InvalidInput, "data:<media type>;base64,"),
        (listed("data:text/html;base64," + text(PNG)), UnsupportedMediaType, 'not "text/html"'),
        (listed("data:image/png;base64," + text(JPEG)), UnsupportedMediaType, "but is image/jpeg"),
        (listed(bomb(2**31 - 1, 2**31 - 1)), TooLarge, "pictures[0] has more than 1000 pixels"),
    ],
)
def test_a_bad_upload_is_told_what_is_wrong(ask, kind, message):
    """Each kind of bad upload has its status, and words that name the field and the way out."""
    with pytest.raises(Refused) as refused:
        pictures(ask, SETTINGS)

    assert kind is refused.type
    assert message in str(refused.value)


def test_a_picture_of_the_largest_size_fits_in_either_form():
    """The limit of the whole body follows from that of one picture."""
    data = PNG + b"\0" * (SETTINGS.max_picture_bytes - len(PNG))

    assert [data] == files(form(part(data)), SETTINGS)
    assert [data] == files(listed(data), SETTINGS)
    assert len(listed(data).body) < largest_upload(SETTINGS)


@pytest.mark.parametrize("garbage", [b"", b"\xff\r\n", b"\r\n--x\r\n"])
def test_an_upload_that_is_cut_off_is_refused(garbage):
    """Wherever it ends, and whatever comes then, it is refused in words, not answered in part."""
    whole = form(part(PNG), part(JPEG, "image/jpeg"))
    for end in range(0, len(whole.body) - 6, 7):
        body = whole.body[:end] + garbage
        with pytest.raises(Refused, match=r"\w"):
            pictures(Ask(method="POST", path="/", headers=whole.headers, body=body), SETTINGS)


def test_whatever_is_wrong_within_is_a_refusal():
    """With some bytes turned over, the client is told or the picture passes; nothing breaks."""
    whole, seen = form(part(PNG), part(JPEG, "image/jpeg")), set()
    for at in range(0, len(whole.body), 5):
        body = whole.body[:at] + b"\xff\r\n" + whole.body[at + 3 :]
        ask = Ask(method="POST", path="/", headers=whole.headers, body=body)
        try:
            seen.add(len(files(ask, SETTINGS)))
        except Refused as refused:
            seen.add(type(refused))

    assert {2, InvalidInput, UnsupportedMediaType} <= seen
