"""A real browser for the tests of the page, and what it complains about."""

from __future__ import annotations

import os
import shutil
from contextlib import contextmanager
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import expect, sync_playwright

#: Milliseconds that something on the page may take; other tests use this machine, too.
_TIMEOUT = 30_000

expect.set_options(timeout=_TIMEOUT)


@contextmanager
def chromium():
    """Run a headless Chromium; where there is none, skip, or under CI fail."""
    path = os.environ.get("CHROMIUM") or shutil.which("chromium")
    if path is None:
        message = "no Chromium: apt install chromium, or name one in CHROMIUM"
        if os.environ.get("CI") == "true":
            raise AssertionError(message)
        pytest.skip(message)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def visit(browser, url, **options):
    """
    Open a page in a new context, and fail on errors, warnings and loads from elsewhere.

    What its Content-Security-Policy refuses is such an error.

    Args:
        browser: Of `chromium`.
        url: The page's address.
        options: For the browser's context, such as its color_scheme.
    """
    with browser.new_context(**options) as context, visited(context.new_page(), url) as page:
        yield page


@contextmanager
def visited(page, url):
    """Open an address in an empty page, and fail as `visit` does."""
    complaints = []

    def on_console(message):
        # Chromium logs each answer that is no success by itself.
        is_status = message.text.startswith("Failed to load resource")
        if message.type in {"error", "warning"} and not is_status:
            complaints.append(message.text)

    def on_request(request):
        if not request.url.startswith((url, f"blob:{urlsplit(url).scheme}")):
            complaints.append(f"requested {request.url}")

    def on_error(error):
        complaints.append(str(error))

    heard = {"console": on_console, "pageerror": on_error, "request": on_request}
    page.set_default_timeout(_TIMEOUT)
    for event, listener in heard.items():
        page.on(event, listener)
    try:
        policy = page.goto(url).headers["content-security-policy"]
        assert policy.startswith("default-src 'none';")
        yield page
    finally:  # other tests use the page, too
        for event, listener in heard.items():
            page.remove_listener(event, listener)
    assert not complaints, complaints
