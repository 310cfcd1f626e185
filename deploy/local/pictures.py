"""
The page's pictures in ``docs/img``, taken anew: ``python -m deploy.local.pictures``.

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

from deploy.local.servers import Servers

__all__ = ["chromium", "keep", "main"]

_FOLDER = Path(__file__).parents[2] / "docs" / "img"

#: Seconds for a burst, and for a worker that is gone to be forgotten.
_PATIENCE = 120.0

#: Bytes of a picture in this repository.
_LARGEST = 200_000

_DESKTOP = (1280, 1290)
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
    page.set_default_timeout(_PATIENCE * 1000)
    page.goto(url)
    expect(page.locator("#line")).to_contain_text("Live", timeout=10_000)
    yield page
    page.close()


def _light(browser: Browser, url: str) -> None:
    with _visit(browser, url, _DESKTOP, "light") as page:
        _ask(page)
        _burst(page, total="1500")
        expect(page.locator("#burst-go")).to_be_enabled(timeout=_PATIENCE * 1000)
        keep("page-light.png", _seen(page, "header", "#burst"))


def _dark(browser: Browser, url: str) -> None:
    with _visit(browser, url, _DESKTOP, "dark") as page:
        _ask(page)
        _burst(page, total="4000")
        expect(page.locator("#burst-said")).to_contain_text(
            "Sending 4,000 sentences: one by one", timeout=_PATIENCE * 1000
        )
        page.wait_for_timeout(8_000)  # for the charts to have something of both to show
        keep("page-dark.png", _seen(page, "#burst", "#live"))
        page.click("#burst-stop")


def _phone(browser: Browser, url: str) -> None:
    with _visit(browser, url, _PHONE, "light") as page:
        _ask(page)
        page.evaluate("document.getElementById('sentence').scrollIntoView()")
        asked = page.screenshot()
        _burst(page, total="1500")
        expect(page.locator("#burst-go")).to_be_enabled(timeout=_PATIENCE * 1000)
        page.wait_for_timeout(2_500)
        page.locator("#chart-rate").evaluate("chart => chart.scrollIntoView()")
        keep("page-phone.png", asked, page.screenshot())


def _error(browser: Browser, url: str) -> None:
    with _visit(browser, url, (1280, 800), "light") as page:
        expect(page.locator("#fleet")).to_have_text("no worker", timeout=_PATIENCE * 1000)
        page.click("#sentence .primary")
        expect(page.locator("#sentence-answer .trouble")).to_be_visible(timeout=_PATIENCE * 1000)
        keep("page-error.png", page.screenshot())


def _ask(page: Page) -> None:
    page.get_by_role("button", name="the answer to life").click()
    expect(page.locator("#sentence-answer mark")).to_be_visible(timeout=_PATIENCE * 1000)
    page.set_input_files(
        "#file", {"name": "evening.png", "mimeType": "image/png", "buffer": _evening()}
    )
    expect(page.locator(".swatches")).to_be_visible(timeout=_PATIENCE * 1000)


def _evening() -> bytes:
    """Return a picture of the sun over the sea, which has colours that everybody can name."""
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
    page.click("#burst-go")


def _seen(page: Page, first: str, last: str) -> bytes:
    """Return a picture from the top of one part to the bottom of another, below the header."""
    page.mouse.move(0, 0)
    place = "(part, end) => part.getBoundingClientRect()[end] + scrollY"
    top = page.locator(first).first.evaluate(place, "top")
    bottom = page.locator(last).evaluate(place, "bottom")
    header = page.locator("header").evaluate("header => header.offsetHeight") if top else 0
    height = int(bottom - top + header) + 24
    page.set_viewport_size({"width": _DESKTOP[0], "height": height})
    page.evaluate("top => scrollTo(0, top)", top - header)
    page.wait_for_timeout(200)
    return page.screenshot()


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
