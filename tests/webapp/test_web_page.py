"""The page in a real browser: asking, bursts, charts, errors, keyboard, phone, dark and light."""

from __future__ import annotations

import http.client
import json
import re

import pytest
from playwright.sync_api import expect
from web_browser import Visitor, browsing

from celery_batch.cli.child import wait_until

CONTRACT = "web_page_tasks:contract"


@pytest.fixture(scope="module")
def browser():
    """One browser for all tests here."""
    with browsing() as browser:
        yield browser


@pytest.fixture(scope="module")
def served(servers):
    """A door with a worker behind it."""
    with (
        servers.worker("web_page_tasks", ["--pool=solo"]),
        servers.door("fastapi", "/readyz", WEBAPP_CONTRACT=CONTRACT) as door,
    ):
        yield door


@pytest.fixture(scope="module")
def deserted(servers):
    """A door behind which nobody works."""
    environ = {"PAGE_SERVICE": "nobody", "WEBAPP_TIMEOUT": "2", "WEBAPP_CONTRACT": CONTRACT}
    with servers.door("fastapi", **environ) as door:
        yield door


@pytest.fixture
def visit(browser, served):
    """Let somebody look at the page, with a browser set up as they like."""
    return lambda door=served, **options: Visitor(
        browser, f"http://127.0.0.1:{door.port}/", **options
    )


def look(door):
    """Return what the live stream says of now; its first words may be a second old."""
    connection = http.client.HTTPConnection("127.0.0.1", door.port, timeout=30)
    connection.request("GET", "/live")
    response = connection.getresponse()
    lines = (line.decode() for line in iter(response.readline, b""))
    _, news = [next(line for line in lines if line.startswith("data: ")) for _ in range(2)]
    connection.close()
    return json.loads(news[6:])


def rows(door):
    """Return how many inputs the workers have had."""
    return sum(worker["rows"] for worker in look(door)["workers"])


def send_burst(page, **fields):
    """Send a burst with these numbers, and wait for its end."""
    for name, value in fields.items():
        page.fill(f"[name={name}]", str(value))
    page.click("#burst-go")
    expect(page.locator("#burst-stop")).to_be_disabled()
    expect(page.locator("#burst-go")).to_be_enabled()


def cells(page, row):
    """Return the two numbers of a row of the burst's table."""
    return page.locator(f"#burst-table [data-row={row}] td").all_inner_texts()


def test_a_sentence_gets_its_word(visit):
    """What is typed and submitted comes back with its gap filled, and how long that took."""
    with visit() as page:
        page.fill("#text", "Mary had a [MASK] lamb.")
        page.press("#text", "Enter")

        expect(page.locator("#sentence-answer mark")).to_have_text("little")
        expect(page.locator("#sentence-answer")).to_have_text("Mary had a little lamb.")
        expect(page.locator("#sentence-facts [data-fact=trip]")).to_have_text(
            re.compile(r"^[\d.,]+ ms$")
        )


def test_an_example_is_asked_at_once(visit):
    """A click on an example fills the field in and asks."""
    with visit() as page:
        page.get_by_role("button", name="Happy birthday to [MASK].").click()

        expect(page.locator("#sentence-answer")).to_have_text("Happy birthday to little.")
        expect(page.locator("#text")).to_have_value("Happy birthday to [MASK].")


def test_facts_of_the_batch_are_shown(visit):
    """What the server knows of an answer's batch stands beside it."""
    with visit() as page:
        page.click("#sentence .primary")

        expect(page.locator("#sentence-facts [data-fact=size]")).to_have_text("1")
        expect(page.locator("#sentence-facts [data-fact=worker]")).to_contain_text("@test")
        waited = re.compile(r"^[\d.,]+ ms$")
        expect(page.locator("#sentence-facts [data-fact=wait]")).to_have_text(waited)


def test_a_sentence_without_gap_is_sent_back(visit):
    """The page says what is missing, and puts the cursor where it belongs."""
    with visit() as page:
        page.click("#sentence .primary")
        expect(page.locator("#sentence-facts [data-fact=size]")).to_have_text("1")
        page.fill("#text", "no gap here")
        page.click("#sentence .primary")

        expect(page.locator("#sentence-facts [data-fact=size]")).to_have_text("—")
        expect(page.locator("#sentence-answer")).to_contain_text("write [MASK] where")
        expect(page.locator("#text")).to_be_focused()
        expect(page.locator("#text")).to_have_attribute("aria-invalid", "true")


def test_a_picture_gets_its_colours(visit):
    """A chosen picture is sent as it is; its colours come as swatches, with names and shares."""
    with visit() as page:
        page.set_input_files("#file", "docs/img/benchmarks.png")

        expect(page.locator(".swatches li")).to_have_text(["75 %sky blue", "25 %white"])
        expect(page.locator("#picture-facts [data-fact=size]")).to_have_text("1")
        background = "getComputedStyle(document.querySelector('.colour')).backgroundColor"
        assert "rgb(135, 206, 235)" == page.evaluate(background)
        parts = "[...document.querySelectorAll('.shares .colour')].map((each) => each.offsetWidth)"
        wide, narrow = page.evaluate(parts)
        assert 0.02 > abs(wide / (wide + narrow) - 0.75)


def test_what_is_no_picture_is_refused_in_words(visit, tmp_path):
    """A file of another kind comes back with what to do about it."""
    (tmp_path / "words.txt").write_text("no picture")
    with visit() as page:
        page.set_input_files("#file", tmp_path / "words.txt")

        way_out = "Choose one in PNG, JPEG, GIF or WebP."
        expect(page.locator("#picture-answer .trouble")).to_contain_text(way_out)


def test_a_burst_is_measured_and_agrees_with_the_workers(visit, served):
    """What the page counts, what its charts show and what the workers say is one number."""
    with visit() as page:
        expect(page.locator("#line")).to_contain_text("Live")
        before = rows(served)
        page.locator("#chart-sizes summary").click()
        send_burst(page, total=120, each=20, atonce=3)
        after = before + 240
        wait_until(lambda: "" if rows(served) == after else "fewer", [], what="rows", timeout=60)

        assert ["120 of 120"] * 2 == cells(page, "done")
        assert ["0", "0"] == cells(page, "failed")
        sizes = page.locator("#chart-sizes tbody td:last-child")
        counts = lambda: [int(text) for text in sizes.all_inner_texts()]  # noqa: E731
        wait_until(lambda: "" if 240 == sum(counts()) else counts(), [], what="chart", timeout=45)
        # Those that were sent one by one; of the others, one may have gone alone, too.
        assert 120 <= counts()[0]
        expect(page.locator("#workers tbody td").nth(3)).to_have_text(f"{after:,}")
        expect(page.locator("#chart-burst svg")).to_have_attribute(
            "aria-label", re.compile(r"Batched: p50 [\d.]+, p95 .*One by one: p50")
        )
        expect(page.locator("#chart-rate svg")).to_have_attribute(
            "aria-label", re.compile(r"at most (?!0 )[\d.,]+ in the last minute")
        )


def test_a_burst_can_be_cancelled(visit):
    """Cancel ends it at once; what was measured so far stays, and another may be sent."""
    with visit() as page:
        page.route("**/stream", lambda _route: None)
        page.check("[value=batched]")
        page.click("#burst-go")
        page.click("#burst-stop")

        expect(page.locator("#burst-said")).to_have_text("Cancelled.")
        expect(page.locator("#burst-go")).to_be_enabled()


def test_a_wrong_number_is_sent_back(visit):
    """A number out of bounds is named with its bounds, and nothing is sent."""
    with visit() as page:
        page.fill("[name=each]", "65")
        page.click("#burst-go")

        expect(page.locator("#burst-said")).to_have_text(
            "In each request: choose a whole number from 1 to 64."
        )
        expect(page.locator("[name=each]")).to_be_focused()


def test_no_worker_is_said_with_the_way_out(visit, deserted):
    """Where nobody works, the page says so in three places, and how to start somebody."""
    with visit(deserted) as page:
        page.click("#sentence .primary")

        for place in ("#sentence-answer", "#workers"):
            expect(page.locator(place)).to_contain_text("No worker answers.")
            expect(page.locator(place)).to_contain_text("celery -A workers worker --concurrency=1")
        expect(page.locator("#fleet")).to_have_text("no worker")


def test_a_burst_gives_up_where_nobody_answers(visit, deserted):
    """After a few failures in a row it ends, with what to do."""
    with visit(deserted) as page:
        send_burst(page, total=200, each=10, atonce=4)

        expect(page.locator("#burst-said")).to_contain_text("No worker answers.")
        assert ["0 of 200", "—"] == cells(page, "done")


def test_a_broker_that_is_away_is_said_with_the_way_out(visit):
    """Where the broker does not answer, the page says so and goes on looking."""
    news = {"source": "x", "reached": False, "queue": None, "rate": None, "sizes": {}}
    body = f"retry: 2000\n\ndata: {json.dumps({**news, 'workers': [], 'latency': {}})}\n\n"
    visitor = visit()
    visitor.page.route("**/live", lambda route: route.fulfill(body=body))
    with visitor as page:
        expect(page.locator("#fleet")).to_have_text("broker away")
        expect(page.locator("#workers")).to_contain_text("The broker is away.")
        expect(page.locator("#workers")).to_contain_text("celery batch redis")
        page.unroute("**/live")

        expect(page.locator("#fleet")).to_have_text("1 worker ready")


def test_only_the_last_question_is_answered(visit):
    """An answer that comes after a newer one's question is dropped."""
    with visit() as page:
        page.get_by_role("button", name="twinkle twinkle [MASK] star.").click()
        page.get_by_role("button", name="Happy birthday to [MASK].").click()

        expect(page.locator("#sentence-answer")).to_have_text("Happy birthday to little.")


def test_a_limit_is_counted_down(visit):
    """Who asks too much is told when to ask again."""
    refusal = {"error": {"type": "TooManyRequests", "message": "too many"}}
    with visit() as page:
        page.route(
            "**/predict",
            lambda route: route.fulfill(status=429, headers={"Retry-After": "1"}, json=refusal),
        )
        page.click("#sentence .primary")

        expect(page.locator("#sentence-answer")).to_contain_text("That was too much at once.")
        expect(page.locator(".countdown")).to_have_text("You can ask again in 1 s.")
        expect(page.locator(".countdown")).to_have_text("You can ask again now.")


def test_a_lost_stream_comes_back(visit):
    """The page says that the line is lost and when it tries again, and then it is live."""
    visitor = visit()
    visitor.page.route("**/live", lambda route: route.abort())
    with visitor as page:
        expect(page.locator("#line")).to_contain_text(
            "The web server does not answer. Trying again"
        )
        page.unroute("**/live")

        expect(page.locator("#line")).to_have_text("Live, a look each second.")
        visitor.complaints.clear()  # Chromium notes the aborted request


def test_a_key_is_asked_for(visit):
    """A server that wants an API key gets the one that is typed in."""
    keys = []

    def guarded(route):
        keys.append(route.request.headers.get("x-api-key"))
        if keys[-1] == "secret":
            route.fulfill(json={"outputs": ["little"]})
        else:
            route.fulfill(status=401, json={"error": {"type": "Unauthorized", "message": "no"}})

    with visit() as page:
        page.route("**/predict", guarded)
        page.click("#sentence .primary")
        page.get_by_label("API key").fill("secret")
        page.get_by_role("button", name="Use it").click()

        expect(page.locator("#sentence-answer mark")).to_have_text("little")
        assert [None, "secret"] == keys


#: What has the focus, and the style of the ring around it.
FOCUSED = """
() => {
  const here = document.activeElement;
  const ringed = here.closest(".drop") ?? here;
  return [here.id || here.name || here.className, getComputedStyle(ringed).outlineStyle];
}
"""


def test_everything_can_be_done_with_the_keyboard(visit):
    """Tab leads through the page in reading order, with a visible ring; Enter does the rest."""
    with visit() as page:
        page.keyboard.press("Tab")
        skip = page.locator(".skip")
        expect(skip).to_be_focused()
        expect(skip).to_be_in_viewport()
        page.keyboard.press("Enter")
        names = []
        for _ in range(11):
            page.keyboard.press("Tab")
            name, ring = page.evaluate(FOCUSED)
            names.append(name)
            assert "solid" == ring, name

        asks = ["text", "primary", "chip", "chip", "chip", "file"]
        burst = ["way", "total", "each", "atonce", "burst-go"]
        assert [*asks, *burst] == names

        page.focus("#burst-go")
        page.route("**/stream", lambda _route: None)
        page.keyboard.press("Enter")
        expect(page.locator("#burst-stop")).to_be_focused()
        page.keyboard.press("Enter")
        expect(page.locator("#burst-go")).to_be_focused()


def test_a_phone_shows_all_of_it(visit):
    """At 360 pixels nothing has to be scrolled sideways, before and after a burst."""
    wide = "document.documentElement.scrollWidth"
    with visit(viewport={"width": 360, "height": 740}, is_mobile=True, has_touch=True) as page:
        assert 360 >= page.evaluate(wide)

        page.click("#sentence .primary")
        send_burst(page, total=20, each=10, atonce=2)

        assert 360 >= page.evaluate(wide)
        for cell in page.locator("#burst-table td:not(:empty)").all():
            cell.evaluate("(each) => { each.textContent = '10,000 of 10,000'; }")
            assert cell.evaluate("(each) => each.scrollWidth <= each.clientWidth")


CONTRASTS = """
() => {
  const linear = (part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
  const channel = (value) => linear(value / 255);
  const light = ([r, g, b]) => 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
  const parts = (colour) => colour.match(/[\\d.]+/g).map(Number);
  const ground = (element) => {
    for (; element; element = element.parentElement) {
      const colour = parts(getComputedStyle(element).backgroundColor);
      if (colour.length === 3 || colour[3] === 1) return colour;
    }
    return [255, 255, 255];
  };
  const poor = [];
  for (const element of document.querySelectorAll("body *:not(.unseen):not(noscript)")) {
    const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
    if (!own || !element.getClientRects().length) continue;
    const style = getComputedStyle(element);
    const text = parts(element.namespaceURI.endsWith("svg") ? style.fill : style.color);
    const [one, other] = [light(text), light(ground(element))].sort((a, b) => b - a);
    const ratio = (one + 0.05) / (other + 0.05);
    if (ratio < 4.5) poor.push(`${element.tagName}.${element.className}: ${ratio.toFixed(2)}`);
  }
  return poor;
}
"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_text_can_be_read(visit, deserted, scheme):
    """Text has a contrast of 4.5 at least, an error's too, in the light and in the dark."""
    with visit(deserted, color_scheme=scheme) as page:
        page.click("#sentence .primary")
        expect(page.locator("#workers")).to_contain_text("No worker answers.")
        expect(page.locator("#sentence-answer .trouble")).to_be_visible()

        assert [] == page.evaluate(CONTRASTS)


def test_the_chosen_theme_is_remembered(visit):
    """The toggle turns the system's choice around, and a reload keeps what was chosen."""
    ground = "getComputedStyle(document.body).backgroundColor"
    with visit(color_scheme="light") as page:
        light = page.evaluate(ground)
        page.click("#theme")
        dark = page.evaluate(ground)
        page.reload()

        assert light != dark
        assert dark == page.evaluate(ground)
        expect(page.locator("#theme")).to_have_attribute("aria-pressed", "true")


def test_who_wants_no_motion_gets_none(visit):
    """Nothing scrolls smoothly for those who have asked the system for less motion."""
    with visit(reduced_motion="reduce") as page:
        behaviour = "getComputedStyle(document.documentElement).scrollBehavior"

        assert "auto" == page.evaluate(behaviour)


def test_nobody_looks_no_stream(visit, served):
    """When the page is closed, its stream ends and the next one starts anew."""
    with visit() as page:
        expect(page.locator("#line")).to_contain_text("Live")
    wait_until(lambda: "" if look(served)["reached"] else "away", [], what="a look", timeout=60)

    assert served.child.exit_code is None


def test_the_manual_fits_a_phone(visit):
    """What /docs shows is no wider than a small screen."""
    with visit(viewport={"width": 390, "height": 800}) as page:
        page.goto(page.url + "docs")

        assert 390 == page.evaluate("document.documentElement.scrollWidth")
