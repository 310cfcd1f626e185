"""
The page's picture in ``docs/img``, taken anew: ``python -m demo.pictures``.

It shows the real page on real servers, so its numbers are this machine's.
"""

from __future__ import annotations

import io
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from PIL import Image, ImageDraw
from playwright.sync_api import Browser, Page, ViewportSize, expect, sync_playwright

from demo.servers import Servers

__all__ = ["chromium", "keep", "main"]

_FOLDER = Path(__file__).parents[1] / "docs" / "img"

#: Seconds for a burst, and for a worker that is gone to be forgotten.
_TIMEOUT = 120.0

#: Bytes of a picture in this repository.
_LARGEST = 200_000

_SIZE: ViewportSize = {"width": 1280, "height": 900}


def main() -> None:
    """Start everything, take the picture, stop everything."""
    os.environ["WEBAPP_TIMEOUT"] = "20"
    with Servers() as servers, chromium() as browser:
        servers.start(print)
        _page(browser, servers.web_url)


@contextmanager
def chromium() -> Iterator[Browser]:
    """Run a headless browser."""
    path = os.environ.get("CHROMIUM") or shutil.which("chromium")
    if path is None:
        sys.exit("no Chromium: apt install chromium, or name one in CHROMIUM")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


def _page(browser: Browser, url: str) -> None:
    page = browser.new_page(viewport=_SIZE, color_scheme="light", reduced_motion="reduce")
    page.set_default_timeout(_TIMEOUT * 1000)
    page.goto(url)
    expect(page.locator("#status")).to_contain_text("worker", timeout=10_000)
    _ask(page)
    _burst(page, total="1500")
    expect(page.locator("#start")).to_be_enabled(timeout=_TIMEOUT * 1000)
    expect(page.locator("[data-stat=waiting]")).to_have_text("0", timeout=_TIMEOUT * 1000)
    keep("page-light.png", _whole(page))
    page.close()


def _ask(page: Page) -> None:
    page.get_by_role("button", name="the answer to life").click()
    expect(page.locator("#answer .output")).to_be_visible(timeout=_TIMEOUT * 1000)
    page.set_input_files(
        "#file", {"name": "evening.png", "mimeType": "image/png", "buffer": _evening()}
    )
    expect(page.locator("#picture-answer .output")).to_be_visible(timeout=_TIMEOUT * 1000)


def _evening() -> bytes:
    """Return a picture of the sun over the sea."""
    image = Image.new("RGB", (320, 320), "skyblue")
    draw = ImageDraw.Draw(image)
    draw.rectangle((0, 120, 320, 200), fill="orange")
    draw.ellipse((190, 60, 290, 160), fill="yellow")
    draw.rectangle((0, 200, 320, 320), fill="navy")
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


def _burst(page: Page, total: str) -> None:
    page.fill("[name=total]", total)
    page.click("#start")


def _whole(page: Page) -> bytes:
    page.mouse.move(0, 0)
    page.evaluate("scrollTo(0, 0)")  # the header is at the top of what is shown
    return page.screenshot(full_page=True)


def keep(name: str, shot: bytes) -> None:
    """Write a picture with a palette: a page has few colours."""
    image = Image.open(io.BytesIO(shot)).convert("RGB")
    image.quantize(256, dither=Image.Dither.NONE).save(_FOLDER / name, optimize=True)
    size = (_FOLDER / name).stat().st_size
    print(f"{name}: {size / 1000:.0f} kB")  # noqa: T201 (a command says what it has done)
    if size > _LARGEST:
        sys.exit(f"{name} has {size} bytes, at most {_LARGEST}")


if __name__ == "__main__":
    main()
