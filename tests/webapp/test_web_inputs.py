"""What counts as a request, and what a bad one is told."""

from __future__ import annotations

import json
from urllib.parse import urlencode

import pytest

from webapp.bodies import check_size
from webapp.errors import InvalidInput, TooLarge, UnsupportedMediaType
from webapp.inputs import form_inputs, json_inputs
from webapp.messages import Ask
from webapp.settings import Settings

SETTINGS = Settings(max_inputs=3, max_characters=20)
#: Of a multipart form.
PARTS = [("s", "bü"), ("other", "c"), ("s", "a")]
FORM = "application/x-www-form-urlencoded"


def asking(body, content_type):
    """Return a request with a body."""
    headers = {} if content_type is None else {"content-type": content_type}
    return Ask(method="POST", path="/", headers=headers, body=body)


def read(document, content_type="application/json", settings=SETTINGS):
    """Read a document, given as text or as what JSON makes of it."""
    body = document if isinstance(document, bytes) else json.dumps(document).encode()
    return json_inputs(asking(body, content_type), settings).inputs


def form(*values):
    """Return a form that repeats its field."""
    return urlencode([("s", value) for value in values]).encode()


def test_inputs_come_out_in_order():
    """A well-formed document gives its inputs, untouched."""
    assert ["b [MASK]", " a\n", "ünï"] == read({"inputs": ["b [MASK]", " a\n", "ünï"]})


@pytest.mark.parametrize(
    ("document", "message"),
    [
        (b"", "the body is not valid JSON"),
        (b"{'inputs': []}", "the body is not valid JSON"),
        (b'{"inputs": ["a"]} more', "the body is not valid JSON"),
        (b'{"inputs": ["\xff\xfe"]}', "the body is not valid JSON"),
        (b"[" * 900, "the body is not valid JSON"),
        (["a"], 'the body must be an object, {"inputs": ["..."]}, not a list'),
        ("a", 'the body must be an object, {"inputs": ["..."]}, not a string'),
        (None, 'the body must be an object, {"inputs": ["..."]}, not null'),
        ({}, 'the field "inputs" is missing'),
        ({"input": ["a"]}, 'unknown field "input"; there is only "inputs" and "explain"'),
        ({"inputs": ["a"], "x": 1}, 'unknown field "x"; there is only "inputs" and "explain"'),
        ({"inputs": "a"}, '"inputs" must be a list of strings, not a string'),
        ({"inputs": {"a": 1}}, '"inputs" must be a list of strings, not an object'),
        ({"inputs": []}, '"inputs" is empty: send at least one input'),
        ({"inputs": ["a", 7]}, "inputs[1] must be a string, not a number"),
        ({"inputs": [1.5]}, "inputs[0] must be a string, not a number"),
        ({"inputs": [True]}, "inputs[0] must be a string, not a boolean"),
        ({"inputs": ["a", None]}, "inputs[1] must be a string, not null"),
        ({"inputs": [["a"]]}, "inputs[0] must be a string, not a list"),
        ({"inputs": ["a", ""]}, "inputs[1] is blank"),
        ({"inputs": ["\t \n"]}, "inputs[0] is blank"),
        ({"inputs": ["a\ud800"]}, "inputs[0] is not text"),
        ({"inputs": ["a"], "explain": 1}, '"explain" must be a boolean, not a number'),
        ({"inputs": ["a"] * 4}, "4 inputs are more than the limit of 3"),
        ({"inputs": ["a", "b" * 21]}, "inputs[1] has 21 characters, the limit is 20"),
    ],
)
def test_a_bad_document_is_told_what_is_wrong(document, message):
    """Each kind of bad document is refused in words that name the thing."""
    with pytest.raises((InvalidInput, TooLarge)) as refused:
        read(document)

    assert message in str(refused.value)
    assert ("limit" in message) == (refused.type is TooLarge)


def test_deep_nesting_is_refused_not_a_crash():
    """A body that overflows the JSON reader's stack is bad input like any other."""
    with pytest.raises(InvalidInput, match="not valid JSON"):
        read(b"[" * 10**6)


def test_a_huge_number_is_refused_not_a_crash():
    """A number that Python will not convert is bad input like any other."""
    with pytest.raises(InvalidInput, match="not valid JSON"):
        read(b'{"inputs": [' + b"9" * 10**5 + b"]}")


def test_a_quoted_field_name_is_cut_and_escaped():
    """What a client named a field comes back short and printable."""
    with pytest.raises(InvalidInput) as refused:
        read({"\n" * 400: 1})

    assert len(str(refused.value)) < 200
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("content_type", ["application/json", "Application/JSON; charset=utf-8"])
def test_the_media_type_may_have_parameters(content_type):
    """Case and parameters of the content type make no difference."""
    assert ["a"] == read({"inputs": ["a"]}, content_type)


@pytest.mark.parametrize("content_type", [None, "", "text/plain", FORM, "application/jsonp"])
def test_json_wants_its_media_type(content_type):
    """Anything but JSON is refused by its name, before it is read."""
    with pytest.raises(UnsupportedMediaType, match="must be application/json"):
        read(b"", content_type)


def test_a_form_gives_its_values_in_order():
    """The values of the repeated field are the inputs, in both encodings of a form."""
    parts = [
        f'--x\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{text}\r\n'
        for name, text in PARTS
    ]
    multipart = asking("".join([*parts, "--x--\r\n"]).encode(), "multipart/form-data; boundary=x")

    assert ["bü", "a"] == form_inputs(asking(form("bü", "a"), FORM), SETTINGS).inputs
    assert ["bü", "a"] == form_inputs(multipart, SETTINGS).inputs


@pytest.mark.parametrize(
    ("values", "content_type", "message"),
    [
        ([], FORM, '"s" is empty'),
        (["a", " "], FORM, r"s\[1\] is blank"),
        (["a"] * 4, FORM, "4 inputs are more than the limit of 3"),
        (["a"], "application/json", "must be application/x-www-form-urlencoded or multipart"),
        (["a"], "multipart/form-data", "must name its boundary"),
        (["a"], "multipart/form-data; boundary=x", "not a valid multipart form"),
    ],
)
def test_a_bad_form_is_told_what_is_wrong(values, content_type, message):
    """A form is held to the same limits, and its field called by its name."""
    with pytest.raises((InvalidInput, TooLarge, UnsupportedMediaType), match=message):
        form_inputs(asking(form(*values), content_type), SETTINGS)


def test_a_cut_body_is_refused():
    """A body over the limit is refused even where its beginning makes a good form."""
    with pytest.raises(TooLarge, match="larger than the limit of 1000 bytes"):
        check_size(asking(b"s=a" * 400, FORM), 1000)
