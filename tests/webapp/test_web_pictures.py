"""Uploads of pictures over real HTTP, through each of the doors."""

from __future__ import annotations

import socket

import pytest
from celery import Celery
from test_web_uploads import JPEG, PNG, bomb, form, listed, part

from celery_batch import BatchTask, ConfigurationError
from webapp.contract import Contract
from webapp.settings import Settings
from webapp.uploads import largest_upload


def upload(door, ask):
    """Send an upload through a door."""
    headers = {"Content-Type": ask.headers["content-type"]}
    return door.ask("POST", "/pictures", ask.body, headers)


def size(picture):
    """Return the sizes of files."""
    return [len(each) for each in picture]


@pytest.mark.parametrize("kind", ["form", "json"])
def test_pictures_are_answered_in_order(door, kind):
    """Either form of an upload reaches the model byte for byte."""
    asked = {"form": form(part(PNG), part(JPEG, "image/jpeg")), "json": listed(PNG, JPEG)}
    reply = upload(door, asked[kind])
    expected = [["image/png", len(PNG)], ["image/jpeg", len(JPEG)]]

    assert (200, {"outputs": expected}) == (reply.status, reply.body)


def test_a_picture_of_ten_megabytes_is_answered(door):
    """The largest picture fits through every server and its limits."""
    data = PNG + b"\0" * (10 * 1024 * 1024 - len(PNG))
    reply = upload(door, form(part(data)))

    assert (200, {"outputs": [["image/png", 10 * 1024 * 1024]]}) == (reply.status, reply.body)


@pytest.mark.parametrize(
    ("ask", "status", "kind"),
    [
        (form(part(bomb(20_000, 20_000))), 413, "TooLarge"),
        (form(*[part(PNG)] * 17), 413, "TooLarge"),
        (form(part(PNG, "image/tiff")), 415, "UnsupportedMediaType"),
        (form(part(PNG, "image/gif")), 415, "UnsupportedMediaType"),
        (listed(b"%PDF-1.7"), 415, "UnsupportedMediaType"),
        (form(part(PNG[:20])), 422, "UnreadablePicture"),
        (listed("?"), 422, "UnreadablePicture"),
        (form(part(PNG, field="file")), 400, "InvalidInput"),
        (form(), 400, "InvalidInput"),
    ],
)
def test_a_bad_upload_is_told_what_is_wrong(door, ask, status, kind):
    """Each kind of bad upload has its status, through every door."""
    reply = upload(door, ask)

    assert (status, kind) == (reply.status, reply.error)


def test_a_picture_that_the_model_refuses_fails_alone(door):
    """What the model says of one picture stands under its index."""
    refused = PNG + b"refuse me"
    reply = upload(door, form(part(refused), part(PNG)))

    assert [None, ["image/png", len(PNG)]] == reply.body["outputs"]
    assert "ValueError" == reply.body["errors"]["0"]["type"]


def test_an_upload_may_be_explained(door):
    """Each picture has a place among the batches if that is asked for."""
    ask = form(part(PNG), part(PNG))
    headers = {"Content-Type": ask.headers["content-type"]}
    reply = door.ask("POST", "/pictures?explain=true", ask.body, headers)

    assert 2 == len(reply.body["batches"])
    assert 1 <= reply.body["batches"][0]["size"] <= 4


def test_an_upload_has_a_deadline_like_any_other(door):
    """What a client says of its time is heard; here it is a time that makes no sense."""
    headers = {"Content-Type": listed(PNG).headers["content-type"], "X-Timeout": "soon"}
    reply = door.ask("POST", "/pictures", listed(PNG).body, headers)

    assert (400, "InvalidInput") == (reply.status, reply.error)


def test_an_upload_that_breaks_off_harms_nobody(door):
    """A client that hangs up in the midst of its picture leaves a server that answers others."""
    with socket.create_connection(("127.0.0.1", door.port), timeout=30) as client:
        client.sendall(
            b"POST /pictures HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n"
            b"Content-Type: multipart/form-data; boundary=x\r\n\r\n" + part(PNG)
        )
    reply = upload(door, listed(PNG))

    assert [["image/png", len(PNG)]] == reply.body["outputs"]


def test_the_description_of_a_task_has_nothing_of_its_picture(servers, door):
    """What those who watch tasks are shown, in Flower for example, is that there were bytes."""
    with servers.client().monitor() as monitor:
        upload(door, listed(PNG))
        commands = (each["command"] for each in monitor.listen())
        message = next(each for each in commands if each.startswith("LPUSH"))

    assert r"\"argsrepr\": \"(<bytes>,)\"" in message or '"argsrepr": "(<bytes>,)"' in message


@pytest.mark.parametrize(("limit", "starts"), [(12_000_000, True), (13_000_000, False)])
def test_workers_have_to_let_the_largest_picture_in(limit, starts):
    """A limit that ends in refused messages stops the start, and names both settings."""
    url = "redis://127.0.0.1:1"
    app = Celery("away", broker=url, backend=url, set_as_current=False)
    task = app.task(base=BatchTask, name="away.size")(size)
    settings = Settings(max_picture_bytes=limit)

    if starts:
        routes = Contract(task, task, settings, pictured=task).routes
        assert largest_upload(settings) == routes.limit("POST", "/pictures")
        assert settings.max_body_bytes == routes.limit("POST", "/predict")
        return
    with pytest.raises(ConfigurationError) as refused:
        Contract(task, task, settings, pictured=task)
    assert "WEBAPP_MAX_PICTURE_BYTES" in str(refused.value)
    assert "batch_max_message_size (16777216)" in str(refused.value)
