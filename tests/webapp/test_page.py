"""The page in a real browser: inputs, pictures, bursts, errors, keyboard, phone, dark and light."""

from __future__ import annotations

import http.client
import os
import re
import socket
import sys
import tempfile
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from playwright.sync_api import expect

from celery_batch.errors import ConfigurationError
from celery_batch.processes.managed_process import ManagedProcess, wait_until
from celery_batch.processes.redis_server import RedisServer
from tests.services.forked import start
from tests.services.setup import CELERY, emptied
from tests.webapp.browser import chromium, visit, visited

ROOT = Path(__file__).parents[2]
TASKS = "tests.webapp.page_tasks"
EXAMPLES = ["twinkle", "happy birthday"]


@pytest.fixture(scope="module")
def browser():
    """One browser for all tests here."""
    with chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def lasting_tab(browser):
    """A page for all tests here: a new one takes a second of a processor."""
    with browser.new_context() as context:
        yield context.new_page()


@pytest.fixture
def tab(lasting_tab):
    """The same, empty."""
    yield lasting_tab
    lasting_tab.context.set_offline(False)
    lasting_tab.unroute_all()
    lasting_tab.goto("about:blank")


def environ(broker, **more):
    """Return the environment of a worker or web server."""
    urls = {"CELERY_BROKER_URL": broker.url, "CELERY_RESULT_BACKEND": broker.url}
    ours = {"PYTHONPATH": str(ROOT), "WEBAPP_TASK": f"{TASKS}:answer"}
    return {**os.environ, **urls, **ours, **more}


@contextmanager
def web_server(log, ready, env, *options):
    """Run the FastAPI app, and yield its address once a path answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=256) as listener:
        port = listener.getsockname()[1]
        line = [sys.executable, "-m", "uvicorn", f"--fd={listener.fileno()}", *options]
        with ManagedProcess(line, log, env=env, pass_fds=[listener.fileno()]) as child:
            wait_until(lambda: why_not(port, ready), [child], what=ready, timeout=60)
            yield f"http://127.0.0.1:{port}/"


def why_not(port, path):
    """Return why a path does not answer 200 yet, "" when it does."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", path)
        status = connection.getresponse().status
    except OSError as error:
        return repr(error)
    finally:
        connection.close()
    return "" if status == 200 else str(status)


@pytest.fixture(scope="module")
def url(tmp_path_factory):
    """The address of a web server with a worker behind it."""
    logs = tmp_path_factory.mktemp("logs")
    with RedisServer() as broker:
        env = environ(
            broker,
            WEBAPP_NAIVE_TASK=f"{TASKS}:answer_one",
            WEBAPP_IMAGE_TASK=f"{TASKS}:size",
            WEBAPP_EXAMPLES="|".join(EXAMPLES),
        )
        worker = [CELERY, "-A", TASKS, "worker", "--pool=threads", "-c4"]
        with (
            start(worker, logs / "worker.log", env=env),
            web_server(logs / "web.log", "/readyz", env, "webapp.fastapi_app:app") as address,
        ):
            yield address


@pytest.fixture(scope="module")
def idle_broker():
    """A broker without workers, which may be stopped and started again."""
    with tempfile.TemporaryDirectory() as folder, RedisServer(folder) as broker:
        yield broker


@pytest.fixture(scope="module")
def idle_server(tmp_path_factory, idle_broker):
    """The address, under a path, of a web server for one task that no worker serves."""
    env = environ(idle_broker, WEBAPP_NAIVE_TASK="", WEBAPP_IMAGE_TASK="", WEBAPP_TIMEOUT="3")
    log = tmp_path_factory.mktemp("logs") / "web.log"
    with web_server(log, "/demo/healthz", env, "tests.webapp.page_prefix:site") as address:
        yield f"{address}demo/"


@pytest.fixture
def idle_url(idle_broker, idle_server):
    """The same, with nothing in the broker."""
    with suppress(ConfigurationError):
        idle_broker.start()  # where a test that failed has stopped it
    emptied(idle_broker)
    return idle_server


def send_burst(page, **numbers):
    """Send a burst with these numbers, and wait for its end."""
    for name, value in numbers.items():
        page.fill(f"[name={name}]", str(value))
    page.get_by_role("button", name="Send the burst").click()
    expect(page.get_by_role("button", name="Cancel")).to_be_disabled()


def test_an_input_gets_its_output(tab, url):
    """What is typed and submitted stands above its output, with the time that it took."""
    with visited(tab, url) as page:
        page.get_by_label("Input", exact=True).fill("word")
        page.keyboard.press("Enter")

        expect(page.locator("#answer p")).to_have_text(
            ["word", "WORD", re.compile(r"^[\d.,]+ ms$")]
        )
        expect(page.locator("#task")).to_have_text("page.answer")


def test_an_example_is_sent_at_once(tab, url):
    """A click on an example sends it, and an output that is no text is shown as JSON."""
    with visited(tab, url) as page:
        expect(page.get_by_role("group", name="Examples").get_by_role("button")).to_have_text(
            EXAMPLES
        )
        page.get_by_role("button", name="happy birthday").click()

        expect(page.get_by_label("Input", exact=True)).to_have_value("happy birthday")
        expect(page.locator("#answer pre")).to_contain_text('"length": 14')


def test_only_the_last_output_is_shown(tab, url):
    """An output that comes after a newer input's is dropped."""
    held = []

    def hold_first(route):
        return route.continue_() if held else held.append(route)

    with visited(tab, url) as page:
        page.route("**/predict", hold_first)
        text = page.get_by_label("Input", exact=True)
        text.fill("first")
        with page.expect_request("**/predict"):
            text.press("Enter")
        text.fill("last")
        text.press("Enter")
        expect(page.locator("#answer .output")).to_have_text("LAST")
        held[0].fulfill(json={"outputs": ["FIRST"]})
        page.evaluate("fetch('stats')")

        expect(page.locator("#answer .output")).to_have_text("LAST")


def test_a_refused_input_is_explained(tab, url):
    """The model's own words for a wrong input are shown."""
    with visited(tab, url) as page:
        page.get_by_label("Input", exact=True).fill("refused")
        page.keyboard.press("Enter")

        expect(page.locator("#answer .error")).to_have_text("this input is refused")


def test_a_picture_is_sent_chosen_or_dropped(tab, url):
    """A file gets to the task as it is, and is previewed."""
    path = ROOT / "docs" / "img" / "benchmarks.png"
    drop = """zone => {
        const data = new DataTransfer();
        data.items.add(new File(["12345"], "dropped.png", { type: "image/png" }));
        zone.dispatchEvent(new DragEvent("drop", { dataTransfer: data, bubbles: true }));
    }"""
    with visited(tab, url) as page:
        page.get_by_label("Choose a picture").set_input_files(path)
        expect(page.locator("#picture-answer .output")).to_have_text(f"{path.stat().st_size} bytes")
        expect(page.locator("#preview")).to_be_visible()
        page.locator("#drop").evaluate(drop)

        expect(page.locator("#picture-answer .output")).to_have_text("5 bytes")
        expect(page.locator("#preview")).to_be_hidden()


def test_a_burst_is_measured_both_ways_and_live(tab, url):
    """All inputs are answered, batched and one by one, and the live numbers tell of them."""
    with visited(tab, url) as page:
        expect(page.get_by_role("status").first).to_have_text("1 worker")
        send_burst(page, total=200, size=20, concurrency=5)

        expect(page.locator("[data-row=answered] td")).to_have_text(["200 of 200"] * 2)
        expect(page.locator("[data-row=rate] td")).to_have_text([re.compile(r"^[\d.,]+$")] * 2)
        expect(page.locator("#verdict")).to_contain_text(re.compile("times as fast|no difference"))
        expect(page.locator("[data-stat=mean_batch_size]")).to_have_text(re.compile(r"^\d"))
        expect(page.locator("[data-stat=items_per_second]")).to_have_text(re.compile(r"^[1-9]"))


def test_a_burst_can_be_cancelled_with_the_keyboard(tab, url):
    """Cancel has the focus while a burst runs, and ends it at once."""
    with visited(tab, url) as page:
        expect(page.get_by_role("status").first).to_have_text("1 worker")
        page.route("**/predict", lambda _route: None)
        page.get_by_role("button", name="Send the burst").press("Enter")
        expect(page.get_by_role("button", name="Cancel")).to_be_focused()
        page.keyboard.press("Enter")

        expect(page.locator("#verdict")).to_have_text("Cancelled.")
        expect(page.get_by_role("button", name="Send the burst")).to_be_focused()


def test_no_worker_is_explained(tab, idle_url):
    """Without a worker the input and the burst say what to do; absent tasks have no place."""
    with visited(tab, idle_url) as page:
        expect(page.get_by_role("status").first).to_have_text("no worker")
        expect(page.get_by_role("heading", name="Send a picture")).to_be_hidden()
        expect(page.locator("#results .naive").first).to_be_hidden()
        page.get_by_label("Input", exact=True).fill("word")
        page.keyboard.press("Enter")
        send_burst(page, total=10)

        expect(page.locator("[data-stat=waiting]")).to_have_text("11")
        for setup in ("#answer", "#verdict"):
            expect(page.locator(f"{setup} .error")).to_contain_text("No worker is running")
            expect(page.locator(f"{setup} code")).to_contain_text("celery -A page worker")


def test_a_lost_broker_is_told_and_found_again(tab, idle_url, idle_broker):
    """While the broker is away the page says so and what to do, and then goes on by itself."""
    with visited(tab, idle_url) as page:
        idle_broker.stop()
        expect(page.get_by_role("status").first).to_have_text("broker unreachable")
        page.get_by_label("Input", exact=True).fill("word")
        page.keyboard.press("Enter")
        expect(page.locator("#answer .error")).to_contain_text("Check that Redis or RabbitMQ")
        idle_broker.start()

        expect(page.get_by_role("status").first).to_have_text("no worker")


def test_a_lost_server_is_told_and_found_again(tab, url):
    """While the web server does not answer the page says so, and then goes on by itself."""
    with visited(tab, url) as page:
        context = page.context
        context.set_offline(True)
        expect(page.get_by_role("status").first).to_have_text("web server unreachable")
        expect(page.locator("[data-stat=waiting]")).to_have_text("—")
        context.set_offline(False)

        expect(page.get_by_role("status").first).to_have_text("1 worker")


def test_the_keyboard_skips_to_the_content(tab, url):
    """The first thing that the keyboard reaches is a link past the header."""
    with visited(tab, url) as page:
        page.keyboard.press("Tab")
        expect(page.get_by_role("link", name="Skip to the content")).to_be_in_viewport()
        page.keyboard.press("Enter")

        expect(page.get_by_role("main")).to_be_focused()


def test_a_phone_shows_it_without_scrolling_sideways(browser, url):
    """Neither a wide output nor the burst's table is wider than 360 pixels."""
    with visit(browser, url, viewport={"width": 360, "height": 780}) as page:
        page.get_by_label("Input", exact=True).fill("a" * 300)
        page.keyboard.press("Enter")
        expect(page.locator("#answer .output")).to_have_text("A" * 300)
        send_burst(page, total=1000, size=250)

        assert 360 == page.evaluate("document.documentElement.scrollWidth")


CONTRASTS = """
() => {
  const linear = (part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
  const luminance = ([r, g, b]) =>
    0.2126 * linear(r / 255) + 0.7152 * linear(g / 255) + 0.0722 * linear(b / 255);
  const parts = (colour) => colour.match(/[\\d.]+/g).map(Number);
  const background = (element) => {
    for (; element; element = element.parentElement) {
      const colour = parts(getComputedStyle(element).backgroundColor);
      if (colour.length === 3 || colour[3] === 1) return colour;
    }
  };
  const poor = [];
  for (const element of document.querySelectorAll("body *:not(noscript)")) {
    const hasText = [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
    if (!hasText || !element.getClientRects().length) continue;
    const colours = [parts(getComputedStyle(element).color), background(element)];
    const [dark, light] = colours.map(luminance).sort((a, b) => a - b);
    const ratio = (light + 0.05) / (dark + 0.05);
    if (ratio < 4.5) poor.push(`${element.outerHTML}: ${ratio.toFixed(2)}`);
  }
  return poor;
}
"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_text_can_be_read(browser, idle_url, scheme):
    """Each text, an error's too, has a contrast of 4.5 to 1, in light and in dark."""
    with visit(browser, idle_url, color_scheme=scheme, reduced_motion="reduce") as page:
        page.get_by_label("Input", exact=True).fill("word")
        page.keyboard.press("Enter")
        expect(page.locator("#answer .error")).to_be_visible()
        ground = page.evaluate("getComputedStyle(document.body).backgroundColor")

        assert (scheme == "light") == (int(re.findall(r"\d+", ground)[0]) > 128)
        assert [] == page.evaluate(CONTRASTS)
        assert "0s" == page.evaluate("getComputedStyle(drop).transitionDuration")
