"""How an answer leaves gunicorn's threads: what goes over the socket, and in how many pieces."""

from __future__ import annotations

import time
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from gunicorn.config import Config
from gunicorn.http.message import Request
from gunicorn.http.unreader import IterUnreader

from webapp.messages import Answer
from webapp.parked import Parked
from webapp.parking import _once_a_second
from webapp.turn import Turn


def sent(method: str, answer: Answer) -> list[bytes]:
    """Answer a request that was parked; return what was sent, piece by piece."""
    head = f"{method} / HTTP/1.1\r\nHost: a\r\n\r\n".encode()
    client, server = ("127.0.0.1", 2), ("127.0.0.1", 1)
    cfg, sock = Config(), Mock()
    worker = SimpleNamespace(alive=True, cfg=cfg, log=Mock(), wsgi=lambda *_: Parked(Mock()))
    conn = SimpleNamespace(sock=sock, client=client, server=server)
    turn = Turn(worker, Request(cfg, IterUnreader([head]), client), conn, is_last=False)
    assert turn.begin() is None
    made = SimpleNamespace(cancelled=lambda: False, result=lambda: answer)
    assert turn.end(made) is True
    return [call.args[0] for call in sock.sendall.call_args_list]


@pytest.mark.parametrize(
    ("method", "status", "body"), [("GET", 200, b"hi"), ("HEAD", 200, b""), ("GET", 304, b"")]
)
def test_head_and_body_leave_together(method: str, status: int, body: bytes) -> None:
    """A client is woken once by a short answer."""
    [packet] = sent(method, Answer(body, status, {"Content-Length": "2"}))

    head, _, rest = packet.partition(b"\r\n\r\n")
    assert f"HTTP/1.1 {status} ".encode() in head
    assert b"\r\nContent-Length: 2" in head
    assert body == rest


def test_a_large_body_is_not_copied() -> None:
    """A body that takes more than a packet leaves by itself, as it is."""
    body = bytes(1 << 20)
    pieces = sent("GET", Answer(body, 200, {"Content-Length": str(len(body))}))

    assert pieces[-1] is body


def test_a_date_is_written_once_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """All answers of one second have one date, and those of the next one another."""
    write = Mock(side_effect=str)
    date = _once_a_second(write)
    for now in (10.1, 10.9, 11.0):
        monkeypatch.setattr(time, "time", lambda now=now: now)
        assert str(int(now)) == date()

    assert [10, 11] == [call.args[0] for call in write.call_args_list]
    assert "5" == date(5.5)
