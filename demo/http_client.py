"""Requests to our own web servers on loopback, whatever proxy the environment names."""

from __future__ import annotations

import json
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError
from urllib.request import ProxyHandler, Request, build_opener

__all__ = ["post_json", "why_not"]

#: Seconds to wait for one answer.
_TIMEOUT = 30.0

_opener = build_opener(ProxyHandler({}))


def why_not(url: str) -> str:
    """Return "" where a GET is answered with 200, else the error."""
    try:
        with _opener.open(url, timeout=_TIMEOUT):
            return ""
    except HTTPError as refusal:
        return _description(refusal)
    except (OSError, HTTPException) as error:
        return str(error)


def post_json(url: str, data: Any) -> Any:
    """
    Post JSON and return the JSON that comes back.

    Raises:
        ValueError: The answer is not a 200; with its status and text.
        OSError: There is no answer.
    """
    headers = {"Content-Type": "application/json"}
    request = Request(url, json.dumps(data).encode(), headers)  # noqa: S310 - our own server
    try:
        with _opener.open(request, timeout=_TIMEOUT) as answer:
            return json.load(answer)
    except HTTPError as refusal:
        raise ValueError(f"{url}: {_description(refusal)}") from refusal


def _description(refusal: HTTPError) -> str:
    with refusal:
        return f"{refusal.code} {refusal.read(500).decode(errors='replace').strip()}"
