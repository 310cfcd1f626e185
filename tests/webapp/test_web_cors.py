"""Which other sites' pages may ask, and what a browser is told of the rest."""

from __future__ import annotations

import pytest

from celery_batch.errors import ConfigurationError
from webapp.cors import Hosts, Origins
from webapp.errors import CrossSite, Misdirected
from webapp.messages import Ask

LISTED = "https://friend.example"
ASKS = {"origin": LISTED, "access-control-request-method": "POST"}


def ask(method="POST", **headers):
    """Return a request with these headers."""
    return Ask(method=method, path="/predict", headers=headers)


def test_no_other_site_may_ask_by_default():
    """Without a list nothing is said about other sites, and nothing is repeated."""
    origins = Origins("")

    assert {} == origins.headers(ask(origin=LISTED))
    assert origins.preflight(Ask(method="OPTIONS", path="/", headers=ASKS), ["POST"]) is None


def test_a_listed_site_may_ask():
    """Its pages may read the answer, which caches keep apart; never with credentials."""
    headers = Origins(f"https://other.example {LISTED}").headers(ask(origin=LISTED))

    assert LISTED == headers["Access-Control-Allow-Origin"]
    assert "Origin" == headers["Vary"]
    assert "Access-Control-Allow-Credentials" not in headers


@pytest.mark.parametrize(
    "origin",
    [
        "https://foe.example",
        "http://friend.example",
        "https://friend.example:8443",
        "https://friend.example.foe.example",
        "https://Friend.example",
        "null",
        "*",
        "",
    ],
)
def test_what_is_not_listed_is_not_repeated(origin):
    """Only the exact origin is allowed; other answers still say that they depend on it."""
    origins = Origins(LISTED)

    assert {"Vary": "Origin"} == origins.headers(ask(origin=origin))
    preflight = Ask(method="OPTIONS", path="/", headers={**ASKS, "origin": origin})
    assert origins.preflight(preflight, ["POST"]) is None


def test_a_preflight_is_answered_where_there_is_a_route():
    """A browser hears what it may send; where nothing is, it hears nothing."""
    origins = Origins(LISTED)
    preflight = Ask(method="OPTIONS", path="/predict", headers=ASKS)
    answer = origins.preflight(preflight, ["POST", "GET"])

    assert (204, b"") == (answer.status, answer.body)
    assert "GET, POST" == answer.headers["Access-Control-Allow-Methods"]
    assert "X-Timeout" in answer.headers["Access-Control-Allow-Headers"]
    assert origins.preflight(preflight, []) is None
    assert origins.preflight(ask("OPTIONS", origin=LISTED), ["POST"]) is None


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_a_form_that_another_site_sends_is_refused(site):
    """A browser says whose page sends; an unlisted one may not change anything."""
    origins = Origins(LISTED)
    headers = {"sec-fetch-site": site, "origin": "https://foe.example"}

    with pytest.raises(CrossSite):
        origins.check(ask(**headers))
    origins.check(ask("GET", **headers))
    origins.check(ask(**{**headers, "origin": LISTED}))


@pytest.mark.parametrize("site", [None, "same-origin", "none"])
def test_programs_and_our_own_page_may_send(site):
    """Who is no browser says nothing of sites, and our own page is no other."""
    Origins("").check(ask(**({"sec-fetch-site": site} if site else {})))


@pytest.mark.parametrize(
    "listed", ["*", "https://friend.example/", "friend.example", "null", "https://*.example"]
)
def test_a_wrong_origin_stops_the_start(listed):
    """What no browser would send, or everybody, is no origin."""
    with pytest.raises(ConfigurationError, match=r"WEBAPP_CORS_ORIGINS: .* is not an origin"):
        Origins(listed)


@pytest.mark.parametrize("host", ["model.example", "MODEL.example:8000", "[::1]:80", "local:81"])
def test_a_service_goes_by_its_names(host):
    """Without a port in the list, any port is meant."""
    Hosts("model.example, [::1] local:81").check(ask(host=host))


@pytest.mark.parametrize("host", ["", "foe.example", "model.example.foe", "local:82", "local"])
def test_another_name_is_not_this_service(host):
    """A page whose own name points here does not get in by it."""
    with pytest.raises(Misdirected):
        Hosts("model.example, [::1] local:81").check(ask(host=host))


def test_any_name_will_do_by_default():
    """Without a list nothing is compared."""
    Hosts("").check(ask(host="foe.example"))
    Hosts("*").check(ask())
