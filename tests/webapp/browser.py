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
    Open a page, and fail if it logs errors or warnings, or loads anything from elsewhere.

    What its Content-Security-Policy refuses is such an error.

    Args:
        browser: Of `chromium`.
        url: The page's address.
        options: For the browser's context, such as its color_scheme.
    """
    complaints = []

    def on_console(message):
        # Chromium logs each answer that is no success by itself.
        is_status = message.text.startswith("Failed to load resource")
        if message.type in {"error", "warning"} and not is_status:
            complaints.append(message.text)

    def on_request(request):
        if not request.url.startswith((url, f"blob:{urlsplit(url).scheme}")):
            complaints.append(f"requested {request.url}")

    with browser.new_context(**options) as context:
        page = context.new_page()
        page.set_default_timeout(_TIMEOUT)
        page.on("console", on_console)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", on_request)
        policy = page.goto(url).headers["content-security-policy"]
        assert policy.startswith("default-src 'none';")
        yield page
    assert not complaints, complaints
