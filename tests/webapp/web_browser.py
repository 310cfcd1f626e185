"""A real browser for the tests of the page, and what it has to say about what it was shown."""

from __future__ import annotations

import os
import shutil
from contextlib import contextmanager
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import expect, sync_playwright

#: Milliseconds for what is to be seen on the page; other tests use this machine, too.
_PATIENCE = 45_000

expect.set_options(timeout=_PATIENCE)

#: Counts how far things have moved by themselves; asked for when the page is left.
_WATCH_SHIFTS = """
window.shifts = [];
new PerformanceObserver((list) => {
  for (const shift of list.getEntries()) if (!shift.hadRecentInput) window.shifts.push(shift.value);
}).observe({ type: "layout-shift", buffered: true });
"""


def find_chromium():
    """Return Chromium's path; where there is none, skip, or under CI fail."""
    path = (
        os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
    )
    if path is None:
        message = "no Chromium: apt install chromium, or name one in CHROMIUM"
        if os.environ.get("CI") == "true":
            raise AssertionError(message)
        pytest.skip(message)
    return path


@contextmanager
def browsing():
    """Run a headless Chromium."""
    path = find_chromium()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        try:
            yield browser
        finally:
            browser.close()


class Visitor:
    """
    Somebody who looks at the page, and notes what a developer would frown at.

    Args:
        browser: Of `browsing`.
        url: Where the page is.
        options: For the browser's context.
    """

    def __init__(self, browser, url, **options):
        self.url = url
        self.complaints = []
        self._origin = urlsplit(url).netloc
        self._context = browser.new_context(**options)
        self._context.add_init_script(_WATCH_SHIFTS)
        self.page = self._context.new_page()
        self.page.set_default_timeout(_PATIENCE)
        self.page.on("console", self._said)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", self._asked)

    def __enter__(self):
        self.page.goto(self.url)
        return self.page

    def __exit__(self, kind, *_error):
        if kind is None:
            shifted = sum(self.page.evaluate("window.shifts"))
            if shifted > 0.01:
                self.complaints.append(f"the layout shifted by {shifted}")
        self._context.close()
        if kind is None:
            assert [] == self.complaints

    def _said(self, message):
        # The browser notes each refusal of a server by itself, and that is no fault of the page.
        is_status = message.text.startswith("Failed to load resource")
        if message.type in {"error", "warning"} and not is_status:
            self.complaints.append(message.text)

    def _asked(self, request):
        address = urlsplit(request.url)
        if address.scheme != "blob" and address.netloc != self._origin:
            self.complaints.append(f"asked {request.url}")
