"""A door with keys, a rate, listed sites and a proxy before it, on each kind of server."""

from __future__ import annotations

import hashlib
import json

import pytest

KEY, OTHER = "a-secret-of-some-length", "another-secret-of-that-length"
SITE = "https://friend.example"
BROWSER = {"Origin": SITE, "Sec-Fetch-Site": "cross-site"}


@pytest.fixture(scope="module", params=["flask", "flask-parking", "django-asgi", "fastapi"])
def guarded(request, servers, tmp_path_factory):
    """A door with all of that; no worker is needed."""
    file = tmp_path_factory.mktemp("keys") / "keys"
    file.write_text(f"bob=sha256:{hashlib.sha256(OTHER.encode()).hexdigest()}")
    with servers.door(
        request.param,
        WEBAPP_API_KEYS=f"ann={KEY}",
        WEBAPP_API_KEYS_FILE=str(file),
        WEBAPP_CORS_ORIGINS=SITE,
        WEBAPP_HSTS="600",
        WEBAPP_LOG="json",
        WEBAPP_RATE="3/day",
        WEBAPP_RATE_STORE=f"redis+unix://{servers.redis.directory}/redis.sock",
        WEBAPP_TRUSTED_PROXIES="127.0.0.1",
    ) as door:
        yield door
    servers.client().delete(*servers.client().keys("webapp-rate*"))


def asked(door, address, **headers):
    """Ask for a task that cannot be, from an address behind the proxy."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return door.ask("GET", "/tasks/none", headers={"X-Forwarded-For": address, **named})


def test_a_key_opens_the_door(guarded):
    """Without a key it is 401, with one it is the route's own answer."""
    refused = asked(guarded, "192.0.2.1")
    known = [
        asked(guarded, "192.0.2.1", Authorization=f"Bearer {KEY}"),
        asked(guarded, "192.0.2.1", X_API_Key=OTHER),
    ]

    assert (401, "Unauthorized") == (refused.status, refused.error)
    assert refused.headers["WWW-Authenticate"].startswith("Bearer ")
    assert [404, 404] == [reply.status for reply in known]
    assert "max-age=600" == refused.headers["Strict-Transport-Security"]


def test_each_client_has_its_rate(guarded):
    """Counted are addresses as the proxy tells them; who invents one before it gains nothing."""
    statuses = [asked(guarded, f"198.51.100.{number}, 192.0.2.2").status for number in range(4)]
    over = asked(guarded, "192.0.2.2")

    assert [401, 401, 401, 429] == statuses
    assert (429, "TooManyRequests") == (over.status, over.error)
    assert 0 < int(over.headers["Retry-After"]) <= 86_400
    assert over.headers["RateLimit"].startswith('"requests";r=0;t=')
    assert 401 == asked(guarded, "192.0.2.3").status
    assert 200 == guarded.ask("GET", "/healthz").status


def test_a_listed_site_may_ask(guarded):
    """A browser that asks first hears yes, without a key, and then may read the answer."""
    first = guarded.ask(
        "OPTIONS", "/predict", headers={**BROWSER, "Access-Control-Request-Method": "POST"}
    )
    then = guarded.ask("POST", "/predict", "{}", {**BROWSER, "X-Forwarded-For": "192.0.2.4"})

    assert (204, "POST") == (first.status, first.headers["Access-Control-Allow-Methods"])
    assert 401 == then.status
    assert [SITE, SITE] == [r.headers["Access-Control-Allow-Origin"] for r in (first, then)]
    assert "X-Request-ID" in then.headers["Access-Control-Expose-Headers"]


def test_another_site_may_not(guarded):
    """It is told nothing, and a form that it sends is refused."""
    foe = {"Origin": "https://foe.example", "Sec-Fetch-Site": "cross-site"}
    first = guarded.ask(
        "OPTIONS", "/predict", headers={**foe, "Access-Control-Request-Method": "POST"}
    )
    then = guarded.ask("POST", "/stream", "s=a", foe)

    assert (403, "CrossSite") == (then.status, then.error)
    assert [None, None] == [r.headers["Access-Control-Allow-Origin"] for r in (first, then)]
    assert "Origin" == then.headers["Vary"]


def test_the_log_has_one_object_a_line_and_no_secret(guarded):
    """Each answer is one line of JSON that names client and request."""
    asked(guarded, "192.0.2.5", X_API_Key=KEY, X_Request_ID="logged-1")
    text = guarded.child.log.read_text()
    (line,) = [json.loads(line) for line in text.splitlines() if "logged-1" in line]

    assert ("key:ann", "192.0.2.5", "logged-1") == (
        line["client"],
        line["address"],
        line["request_id"],
    )
    assert line["status"] in {404, 429}
    assert KEY not in text
    assert OTHER not in text
