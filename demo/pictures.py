"""
The page's pictures in ``docs/img``, taken anew: ``python -m demo.pictures``.

They show the real page on real servers, so their numbers are this machine's.
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
from playwright.sync_api import Browser, Page, expect, sync_playwright

from demo.servers import Servers

__all__ = ["chromium", "keep", "main"]

_FOLDER = Path(__file__).parents[1] / "docs" / "img"

#: Seconds for a burst, and for a worker that is gone to be forgotten.
_TIMEOUT = 120.0

#: Bytes of a picture in this repository.
_LARGEST = 200_000

_DESKTOP = (1280, 900)
_PHONE = (360, 780)

#: Between pictures side by side.
_GAP = (255, 255, 255)


def main() -> None:
    """Start everything, take the pictures, stop everything."""
    os.environ["WEBAPP_TIMEOUT"] = "20"
    with Servers() as servers, chromium() as browser:
        servers.start(print)
        _light(browser, servers.web_url)
        _dark(browser, servers.web_url)
        _phone(browser, servers.web_url)
        next(child for child in servers.children if child.name == "worker").stop()
        _error(browser, servers.web_url)


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


@contextmanager
def _visit(browser: Browser, url: str, size: tuple[int, int], scheme: str) -> Iterator[Page]:
    page = browser.new_page(
        viewport={"width": size[0], "height": size[1]},
        color_scheme="dark" if scheme == "dark" else "light",
        device_scale_factor=2 if size is _PHONE else 1,
        reduced_motion="reduce",
    )
    page.set_default_timeout(_TIMEOUT * 1000)
    page.goto(url)
    expect(page.locator("#status")).to_contain_text("worker", timeout=10_000)
    yield page
    page.close()


def _light(browser: Browser, url: str) -> None:
    with _visit(browser, url, _DESKTOP, "light") as page:
        _ask(page)
        _burst(page, total="1500")
        expect(page.locator("#start")).to_be_enabled(timeout=_TIMEOUT * 1000)
        expect(page.locator("[data-stat=waiting]")).to_have_text("0", timeout=_TIMEOUT * 1000)
        keep("page-light.png", _whole(page))


def _dark(browser: Browser, url: str) -> None:
    with _visit(browser, url, _DESKTOP, "dark") as page:
        _ask(page)
        _burst(page, total="4000")
        # The second half of the burst is served one by one.
        expect(page.locator("[data-row=answered] .naive")).to_contain_text(
            "of", timeout=_TIMEOUT * 1000
        )
        keep("page-dark.png", _whole(page))
        page.click("#stop")


def _phone(browser: Browser, url: str) -> None:
    with _visit(browser, url, _PHONE, "light") as page:
        _ask(page)
        asked = page.screenshot()
        _burst(page, total="1500")
        expect(page.locator("#start")).to_be_enabled(timeout=_TIMEOUT * 1000)
        expect(page.locator("[data-stat=waiting]")).to_have_text("0", timeout=_TIMEOUT * 1000)
        page.locator("#burst-title").evaluate("title => title.scrollIntoView()")
        keep("page-phone.png", asked, page.screenshot())


def _error(browser: Browser, url: str) -> None:
    with _visit(browser, url, (1280, 800), "light") as page:
        expect(page.locator("#status")).to_have_text("no worker", timeout=_TIMEOUT * 1000)
        page.click("#ask-form .primary")
        expect(page.locator("#answer .error")).to_be_visible(timeout=_TIMEOUT * 1000)
        keep("page-error.png", page.screenshot())


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


def keep(name: str, *shots: bytes) -> None:
    """Write pictures side by side into one file, with a palette: a page has few colours."""
    images = [Image.open(io.BytesIO(shot)).convert("RGB") for shot in shots]
    gap = 40 if len(images) > 1 else 0
    width = sum(image.width + gap for image in images) - gap
    whole = Image.new("RGB", (width, images[0].height), _GAP)
    left = 0
    for image in images:
        whole.paste(image, (left, 0))
        left += image.width + gap
    whole.quantize(256, dither=Image.Dither.NONE).save(_FOLDER / name, optimize=True)
    size = (_FOLDER / name).stat().st_size
    print(f"{name}: {size / 1000:.0f} kB")  # noqa: T201 (a command says what it has done)
    if size > _LARGEST:
        sys.exit(f"{name} has {size} bytes, at most {_LARGEST}")


if __name__ == "__main__":
    main()
