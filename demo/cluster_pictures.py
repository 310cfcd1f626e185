"""
Pictures of a cluster in ``docs/img``, taken anew: ``python -m demo.cluster_pictures``.

They show `celery batch top` and Flower beside a real worker under load, so their
numbers are this machine's.
"""

from __future__ import annotations

import io
import json
import os
import random
import re
import subprocess
import sysconfig
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Browser, FloatRect, Page, ViewportSize
from rich.console import Console
from rich.text import Text

from demo.pictures import chromium, keep
from demo.servers import Servers

__all__ = ["main"]

#: Columns of the terminal.
_COLUMNS = 120

_SIZE: ViewportSize = {"width": 1280, "height": 900}

#: Seconds for Flower to have asked the workers about themselves.
_TIMEOUT = 60.0

_SENTENCES = ("twinkle twinkle [MASK] star.", "Happy birthday to [MASK].")


def main() -> None:
    """Start everything, keep it busy, take the pictures, stop everything."""
    with Servers(flower_port=0) as servers, chromium() as browser:
        servers.start(print)
        with _busy(servers.web_url):
            _top(browser, servers.redis.url)
        _flower(browser, servers.flower_url)


@contextmanager
def _busy(web: str) -> Iterator[None]:
    """Ask for bursts of sentences, of sizes by chance, while the context lasts."""
    stop, chance = threading.Event(), random.Random(7)  # noqa: S311 (no secret)

    def ask() -> None:
        while not stop.wait(chance.random() / 5):
            count = chance.choice((1, 3, 10, 30, 60, 128))
            body = json.dumps({"inputs": [chance.choice(_SENTENCES) for _ in range(count)]})
            request = urllib.request.Request(  # noqa: S310 (our own server)
                f"{web}/predict", body.encode(), {"Content-Type": "application/json"}
            )
            with urllib.request.urlopen(request, timeout=60):  # noqa: S310 (likewise)
                pass

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    yield
    stop.set()
    for thread in threads:
        thread.join()


def _top(browser: Browser, broker: str) -> None:
    """Take one frame, drawn as a terminal would."""
    command = [str(Path(sysconfig.get_path("scripts")) / "celery"), "-A", "workers", "batch", "top"]
    env = {
        **os.environ,
        "FORCE_COLOR": "1",
        "CELERY_BROKER_URL": broker,
        "CELERY_RESULT_BACKEND": broker,
    }
    done = subprocess.run(  # noqa: S603 (our own command)
        [*command, "--once", "--interval", "8"], env=env, capture_output=True, text=True, check=True
    )
    console = Console(record=True, width=_COLUMNS, file=io.StringIO())
    console.print(Text.from_ansi(done.stdout))
    drawn = console.export_svg(title="celery -A workers batch top")
    # The font is asked for at a server elsewhere; what this machine has will do.
    drawn = re.sub(r"@font-face \{.*?\}", "", drawn, flags=re.DOTALL)
    page = browser.new_page(viewport=_SIZE)
    page.set_content(f"<style>body{{margin:0}} svg{{width:1180px}}</style>{drawn}")
    keep("top.png", page.locator("svg").screenshot())
    page.close()


def _flower(browser: Browser, url: str) -> None:
    page = browser.new_page(viewport=_SIZE)
    page.set_default_timeout(_TIMEOUT * 1000)
    page.goto(f"{url}/tasks")
    page.wait_for_selector("#tasks-table tbody tr:nth-child(10)")
    keep("flower-tasks.png", page.screenshot())
    page.goto(url)
    page.click("#workers-table tbody a")
    page.wait_for_selector("#workername")
    page.wait_for_timeout(3_000)  # what it shows is what it heard before; now it asks anew
    page.reload()
    page.click("#worker-tab-other")
    page.wait_for_selector("#tab-other.active.show")
    page.wait_for_function("getComputedStyle(document.querySelector('#tab-other')).opacity === '1'")
    keep("flower-worker.png", page.screenshot(clip=_in_words(page)))
    page.close()


def _in_words(page: Page) -> FloatRect:
    """Return the part of the page above the worker's values for programs."""
    row = page.locator("#tab-other tr").filter(has=page.locator("td", has_text="{'"))
    box = row.first.bounding_box()
    assert box is not None, "Flower has no row for programs"  # noqa: S101 (the row was found)
    return {"x": 0, "y": 0, "width": _SIZE["width"], "height": box["y"] - 1}


if __name__ == "__main__":
    main()
