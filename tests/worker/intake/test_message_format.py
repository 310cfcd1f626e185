"""What a message may look like: what Celery sends passes, what it would stumble over does not."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
from celery import Celery
from hypothesis import given
from hypothesis import strategies as st
from kombu.transport.virtual import Channel

from celery_batch.worker.intake.message_format import (
    Malformed,
    check_content,
    check_envelope,
    check_headers,
    check_payload,
    check_size,
    is_flat,
    is_small,
)
from tests.services.hostile import HOSTILE, encoded, nested, valid

CODECS = Channel.codecs

anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


def fields(**headers) -> dict:
    """Return the headers of a valid message, some of them changed."""
    return {**valid()["headers"], **headers}


def complaint_of(check, *args) -> str:
    """Return what a check says; nothing if it is content."""
    try:
        check(*args)
    except Malformed as complaint:
        return str(complaint)
    return ""


def test_what_celery_sends_is_well_formed():
    """Headers and body made by Celery itself, with every option that adds to them, pass."""
    app = Celery(set_as_current=False)
    message = app.amqp.as_task_v2(
        "3a6b",
        "shop.double",
        args=(1, "x" * 100_000),
        kwargs={"y": None},
        countdown=3,
        expires=10,
        retries=2,
        time_limit=3.5,
        soft_time_limit=2,
        group_id="g",
        group_index=3,
        root_id="r",
        parent_id="p",
        shadow="other name",
        stamped_headers=["by"],
        by="me",
        replaced_task_nesting=1,
        ignore_result=True,
    )

    check_headers(message.headers, {**message.properties, "priority": 9})
    check_payload(message.body)
    check_size([message.headers, message.properties])


def test_an_object_is_arguments_where_celery_reads_it_so():
    """As a body of the older protocol, or beside headers if it has args; else it is refused."""
    check_payload({"args": [1], "task": "shop.double", "id": "x"})
    check_payload({"task": "shop.double", "id": "x"}, is_current=False)
    with pytest.raises(Malformed, match="its body is not arguments"):
        check_payload({"a": 1, "b": 2, "c": 3})


def test_an_envelope_of_kombu_is_well_formed():
    """A message as it lies in Redis passes."""
    check_envelope(json.loads(encoded(valid())), CODECS)
    check_content(SimpleNamespace(content_type="application/json", content_encoding="utf-8"))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("id", None),
        ("id", 7),
        ("id", "x" * 256),
        ("id", "two\nlines"),
        ("task", ["shop.double"]),
        ("shadow", "\x1b[31mred"),
        ("retries", "3"),
        ("retries", True),
        ("retries", -1),
        ("retries", 10**400),
        ("timelimit", [1]),
        ("timelimit", [float("nan"), None]),
        ("timelimit", [None, -1]),
        ("timelimit", "ab"),
        ("stamps", {"by": {}}),
        ("stamps", {"by": [[]]}),
        ("stamped_headers", [[]]),
        ("stamped_headers", "by"),
        ("batch_losses", 1.5),
        ("batch_rows", 1.5),
        ("batch_rows", 0),
        ("batch_rows", "3"),
        ("batch_rows", True),
        ("batch_rows", 1_000_001),
    ],
)
def test_header_of_a_wrong_type_is_named(name: str, value: object):
    """The complaint says which header it is, on one short line."""
    with pytest.raises(Malformed, match=f"^{name} cannot be [ -~]{{1,80}}$"):
        check_headers(fields(**{name: value}), {})


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (["10", None], "['10', None]"),
        (["x" * 99, None], "['" + "x" * 58),
        ([1, 2, 3], "a list"),
        ([{}], "a list"),
    ],
)
def test_a_pair_of_limits_is_shown(value: object, shown: str):
    """Which of two time limits is wrong can be read, and nothing long is printed."""
    with pytest.raises(Malformed) as refused:
        check_headers(fields(timelimit=value), {})

    assert f"timelimit cannot be {shown}" == str(refused.value)


@pytest.mark.parametrize("value", [nested(51), {"x": list(range(10_001))}, ["x" * 300_000]])
def test_large_or_deep_headers_are_refused(value: object):
    """Levels, values and characters are all bounded."""
    with pytest.raises(Malformed, match=r"too large|too deeply"):
        check_size(value)


def test_small_is_a_promise():
    """What is called small passes the count, whatever it is; what is not may be anything."""
    dense = json.dumps([0] * 3000).encode()
    deep = json.dumps(nested(49)).encode()

    assert is_small(dense)
    assert is_small(deep)
    check_size(json.loads(dense))
    check_size(json.loads(deep))
    assert not is_small(json.dumps(nested(51)).encode())
    assert not is_small(b" " * 10_001)


def test_no_depth_is_too_deep_to_be_counted():
    """Ten thousand levels are refused, not recursed into."""
    with pytest.raises(Malformed, match="too deeply"):
        check_size(nested(10_000))


@given(anything)
def test_any_value_is_judged(value: object):
    """Whatever a decoder returns, the checks pass or say what is wrong, and raise nothing else."""
    content = SimpleNamespace(content_type=value, content_encoding=value)
    complaints = [
        complaint_of(check_envelope, value, CODECS),
        complaint_of(check_payload, value),
        complaint_of(check_size, value),
        complaint_of(check_content, content),
    ]

    assert all(complaint.isprintable() for complaint in complaints)


@given(st.sampled_from(sorted(valid()["headers"])), anything)
def test_any_header_is_judged(name: str, value: object):
    """The same for each header, which the complaint names."""
    complaint = complaint_of(check_headers, fields(**{name: value}), {})

    assert not complaint or name in complaint


@given(st.sampled_from(["body", "headers", "properties", "content-type"]), anything)
def test_any_part_of_an_envelope_is_judged(name: str, value: object):
    """The same for each part of a message in Redis."""
    envelope = json.loads(encoded(valid()))

    assert complaint_of(check_envelope, {**envelope, name: value}, CODECS).isprintable()


def test_the_catalogue_is_not_valid_by_accident():
    """Most of the hostile messages of the tests are refused by these checks alone."""
    refused = [
        message
        for message in (make() for make in HOSTILE.values())
        if complaint_of(check_size, [message["headers"], message["properties"]])
        or complaint_of(check_headers, message["headers"], message["properties"])
    ]

    assert len(refused) > 120


def test_flat_is_a_promise():
    """What is called flat passes the count, and what may not pass is not called so."""
    message = valid()
    headers, properties = message["headers"], {**message["properties"], "application": {"x": 1}}

    assert is_flat(headers)
    assert is_flat({"a": "x" * 9_000, "none": None, "limits": [None, None], "empty": {}})
    assert is_flat({"known": headers, "priority": 1}, headers)
    assert not is_flat(properties)
    for table in ({"a": [1]}, {"a": "x" * 20_000}, {"x" * 20_000: 1}, {1: 1}, {"a": (1,)}):
        assert not is_flat(table)
    assert not is_flat({str(n): n for n in range(200)})
