"""The pure steps of the web tier: routes, deadlines, tickets, and one code for two ways."""

from __future__ import annotations

import asyncio
import time
from unittest.mock import Mock

import pytest

from celery_batch.errors import ConfigurationError
from webapp import service
from webapp.asgi import ContractApp
from webapp.deadlines import Deadline, deadline_of
from webapp.errors import InvalidInput, MethodNotAllowed, NotFound
from webapp.messages import Answer, Ask, Stream
from webapp.routes import Route, Routes
from webapp.straight import straight
from webapp.task_news import news_of
from webapp.thread_way import ThreadWay
from webapp.tickets import Ticket, Tickets


async def view(_visit):
    """Answer nothing."""
    return Answer(body=None)


ROUTES = Routes(
    [
        Route("GET", "/", view),
        Route("POST", "/things", view, 9),
        Route("GET", "/things/{name}", view),
        Route("DELETE", "/things/{name}", view, 3),
    ]
)


@pytest.mark.parametrize(
    ("method", "path", "found", "parameters"),
    [
        ("GET", "/", "/", {}),
        ("HEAD", "/", "/", {}),
        ("POST", "/things", "/things", {}),
        ("GET", "/things/a.b", "/things/{name}", {"name": "a.b"}),
        ("DELETE", "/things/{name}", "/things/{name}", {}),
    ],
)
def test_a_route_is_found(method, path, found, parameters):
    """A path leads to its route, and its last part to the route's name for it."""
    route, told = ROUTES.find(method, path)

    assert (found, parameters) == (route.path, told)


@pytest.mark.parametrize("path", ["", "//", "/things/", "/things/a/b", "/other", "things"])
def test_other_paths_lead_nowhere(path):
    """What is not in the table is not found, and has no room for a body."""
    with pytest.raises(NotFound):
        ROUTES.find("GET", path)

    assert 0 == ROUTES.limit("GET", path)


def test_another_method_is_told_which_there_are():
    """A path that is there for others says for whom."""
    with pytest.raises(MethodNotAllowed) as refused:
        ROUTES.find("PUT", "/things/a")

    assert "DELETE, GET, HEAD" == refused.value.answer().headers["Allow"]
    assert 3 == ROUTES.limit("DELETE", "/things/a")


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({}, Deadline(10.0)),
        ({"x-timeout": "2.5"}, Deadline(2.5)),
        ({"x-timeout": "99"}, Deadline(10.0)),
        ({"prefer": "respond-async"}, Deadline(10.0, lives_on=True)),
        ({"prefer": "Respond-Async, wait=3"}, Deadline(3.0, lives_on=True)),
        ({"prefer": 'wait="4"; x=y, handling=lenient'}, Deadline(4.0)),
        ({"prefer": "wait=soon, respond-asynchronously"}, Deadline(10.0)),
        ({"prefer": "wait=3, respond-async", "x-timeout": "1"}, Deadline(1.0, lives_on=True)),
    ],
)
def test_a_client_names_its_deadline(headers, expected):
    """Both headers count, up to what is set, and a preference without sense does not."""
    assert expected == deadline_of(Ask(method="POST", path="/", headers=headers), 10.0)


@pytest.mark.parametrize("text", ["soon", "0", "-1", "nan", "inf"])
def test_a_timeout_that_is_none_is_refused(text):
    """A timeout that is no number of seconds is the client's mistake, not the default."""
    with pytest.raises(InvalidInput, match="X-Timeout must be a number of seconds"):
        deadline_of(Ask(method="POST", path="/", headers={"x-timeout": text}), 10.0)


def test_a_ticket_is_read_by_who_knows_the_secret():
    """A ticket leads back to its task, in every process with the secret and in no other."""
    ticket = Tickets("secret", 60).write("some-id")

    assert ticket == Tickets("secret", 60).read(ticket.text)
    with pytest.raises(NotFound, match="no such task"):
        Tickets("another", 60).read(ticket.text)


@pytest.mark.parametrize(("within", "seconds"), [(None, None), (0.1, 1), (90.0, 90)])
def test_a_ticket_tells_how_long_its_task_may_wait(within, seconds):
    """A task with a time of its own has it in its ticket, sealed as the rest."""
    ticket = Tickets("secret", 60).write("some-id", within)

    assert seconds == Tickets("secret", 60).read(ticket.text).within
    with pytest.raises(NotFound, match="no such task"):
        Tickets("secret", 60).read(ticket.text.replace(".", ".1", 1))


def test_a_task_that_waits_longer_than_it_may_has_expired():
    """Its own time counts, and not that of all others, which may be much longer."""
    waits = Mock(state="PENDING", **{"ready.return_value": False})
    task = Mock(**{"AsyncResult.return_value": waits})
    sent = int(time.time()) - 20

    states = [
        news_of(task, Ticket("some-id", sent, "", within), 600.0).state for within in (1, 60, None)
    ]

    assert ["expired", "queued", "queued"] == states


def test_an_old_ticket_is_told_so():
    """Once nothing can be known of a task any more, that is said."""
    ticket = Tickets("secret", 60).write("some-id")

    with pytest.raises(NotFound, match="too long ago"):
        Tickets("secret", -2).read(ticket.text)


@pytest.mark.parametrize("text", ["", ".", "..", "a.b", "ü.1.ü", "a.zz." + "0" * 16, "\ud800.1.0"])
def test_nonsense_is_no_ticket(text):
    """Whatever a client makes up is not found."""
    with pytest.raises(NotFound, match="no such task"):
        Tickets("secret", 60).read(text)


def test_a_coroutine_that_suspends_cannot_run_straight():
    """Code that wants an event loop is found out in a thread."""
    with pytest.raises(RuntimeError, match="suspended"):
        straight(asyncio.sleep(0))


def test_a_stream_can_be_read_both_ways():
    """What comes bit by bit comes to threads and to loops, and is closed by both."""
    closed = []

    async def chunks():
        """Give two chunks."""
        try:
            yield "a"
            await ThreadWay().call(len, "")
            yield "b"
            yield "c"
        finally:
            closed.append(True)

    async def all_of(stream):
        """Read a stream on a loop."""
        return [chunk async for chunk in stream]

    begun = iter(Stream(chunks()))
    first = next(begun)
    begun.close()

    assert ["a", "b", "c"] == list(Stream(chunks())) == asyncio.run(all_of(Stream(chunks())))
    assert ("a", [True] * 3) == (first, closed)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("", "must be module:function"),
        ("webapp.service", "must be module:function, such as my_service:contract, got 'webapp.ser"),
        ("webbapp:it", "there is no module webbapp; did you mean webapp?"),
        ("webapp.servce:it", r"there is no module webapp.servce; did you mean webapp.service\?"),
        ("webapp.service.x:it", r"there is no module webapp.service.x; a file"),
        ("webapp.service:infiling", r"has no function infiling; did you mean infilling\?"),
        ("webapp.service:_NAME", "has a _NAME that is no function"),
        ("builtins:dikt", r"\(built in\) has no function dikt; did you mean dict\?"),
    ],
)
def test_a_contract_that_is_none_is_named(name, why, monkeypatch):
    """A contract that cannot be found stops the start; it says which part of its name is wrong."""
    monkeypatch.setenv("WEBAPP_CONTRACT", name)
    with pytest.raises(ConfigurationError, match=f"WEBAPP_CONTRACT: .*{why}"):
        service.service_contract.__wrapped__()


def test_what_a_contracts_module_lacks_is_no_matter_of_its_name(tmp_path, monkeypatch):
    """An import that fails inside the module keeps its trace, which says where."""
    (tmp_path / "my_lacking.py").write_text("import surely_not_there\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("WEBAPP_CONTRACT", "my_lacking:contract")
    with pytest.raises(ModuleNotFoundError, match="surely_not_there"):
        service.service_contract.__wrapped__()


def test_what_makes_no_contract_is_named(monkeypatch):
    """A function that returns something else does as well."""
    monkeypatch.setenv("WEBAPP_CONTRACT", "builtins:dict")
    with pytest.raises(ConfigurationError, match="returned no Contract"):
        service.service_contract.__wrapped__()


def test_a_web_socket_is_closed():
    """Where a server knows of web sockets, ours is none, and no error either."""
    told = []

    async def send(message):
        """Note what is said."""
        told.append(message)

    asyncio.run(ContractApp(None)({"type": "websocket", "path": "/"}, None, send))

    assert [{"type": "websocket.close"}] == told
