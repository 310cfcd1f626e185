"""Backfills on the web: seen by everybody who may look, steered where that is switched on."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path

import pytest
from celery import Celery
from playwright.sync_api import expect
from web_browser import Visitor, browsing

from celery_batch.backfill.progress import Progress
from celery_batch.backfill.reins import Reins
from celery_batch.backfill.remote import Remote
from celery_batch.cli.child import wait_until
from tests.services.eventually import eventually
from webapp.board import Board
from webapp.errors import BrokerUnreachable, NotFound

CONTRACT = {"WEBAPP_CONTRACT": "web_page_tasks:contract", "PAGE_SERVICE": "reviews"}
SOON = Progress(done=1200, failed=3, total=5000, rate=100.0, flying=64, window=512, workers=2)
FILES = ("in.jsonl", Path("answers.jsonl"))


@pytest.fixture
def app(servers):
    """An app on the broker."""
    return Celery("jobs", broker=servers.redis.url, set_as_current=False)


@pytest.fixture
def job(app):
    """A backfill that is running, as far as others can tell, and what they want of it."""
    reins = Reins()
    with Remote(app, "reviews.answer", FILES, reins) as remote:
        remote.tell(SOON)
        remote.reins = reins
        wait_until(lambda: "" if seen(app) else "not seen", [], what="job", timeout=30)
        yield remote


def seen(app, tasks=("reviews.answer",)):
    """Return what somebody who looks for the first time sees."""
    board = Board(app, tasks)
    try:
        return board.look()["jobs"]
    finally:
        board.close()


@pytest.fixture(scope="module")
def door(servers):
    """A door behind which nobody works, through which backfills may be steered."""
    with servers.door("fastapi", WEBAPP_STEER_JOBS="1", **CONTRACT) as door:
        yield door


def test_a_board_shows_what_may_be_seen(app, job):
    """How far a job is, and neither hosts nor folders; jobs of other tasks are left out."""
    wanted = {
        "id": job.id,
        "task": "reviews.answer",
        "name": "answers.jsonl",
        "state": "running",
        "left": 38.0,
        **{name: getattr(SOON, name) for name in ("done", "failed", "total", "rate", "flying")},
        **{name: getattr(SOON, name) for name in ("window", "workers", "silent")},
    }

    def look():
        assert [wanted] == seen(app)

    eventually(look)
    assert [] == seen(app, ["others"])


def test_a_board_asks_for_all_who_look(app, monkeypatch):
    """An answer is good for a moment, so a crowd is one question."""
    board, asked = Board(app, []), []
    monkeypatch.setattr(board._jobs, "all", lambda: asked.append(1) or [])
    for _ in range(10):
        board.look()

    assert [1] == asked


@pytest.mark.parametrize("words", [{"done": "many"}, {"rate": float("nan")}, {"done": None}])
def test_a_board_shows_no_nonsense(app, monkeypatch, words):
    """Whoever may use the broker may say what they like."""
    board = Board(app, ["double"])
    sound = {"id": "1", "task": "double", **SOON.told()}
    monkeypatch.setattr(board._jobs, "all", lambda: [sound, {"id": "2"}, sound | words])

    assert ["1"] == [each["id"] for each in board.look()["jobs"]]


def test_a_board_without_a_broker_is_empty():
    """To look raises nothing; to steer says that it cannot be."""
    board = Board(Celery("away", broker="redis://127.0.0.1:1/0", set_as_current=False), ["double"])

    assert {"jobs": [], "steers": False} == board.look()
    with pytest.raises((BrokerUnreachable, NotFound)):
        board.steer("pause", "1")


def test_a_job_is_seen_and_steered_over_http(door, job):
    """Paused, resumed, stopped; what is no such wish or no such job is refused."""
    assert {"jobs", "steers"} == door.ask("GET", "/jobs").body.keys()

    def pause():
        paused = door.post(f"/jobs/{job.id}", {"do": "pause"})
        assert (200, "paused") == (paused.status, paused.body["state"])

    eventually(pause)
    assert job.reins.is_paused
    job.tell(replace(SOON, state="paused"))

    def resume():
        resumed = door.post(f"/jobs/{job.id}", {"do": "resume"})
        assert (200, "running") == (resumed.status, resumed.body["state"])

    eventually(resume)
    for document in ({"do": "dance"}, {}, {"do": "stop", "also": 1}, ["stop"]):
        assert 400 == door.post(f"/jobs/{job.id}", document).status
    assert 404 == door.post("/jobs/nobody", {"do": "stop"}).status
    assert not job.reins.is_stopped


def test_a_job_is_not_steered_unless_that_is_switched_on(servers, job):
    """To look is one thing; the route is not there."""
    with servers.door("flask", **CONTRACT) as door:

        def look():
            found = door.ask("GET", "/jobs").body
            assert (False, [job.id]) == (found["steers"], [each["id"] for each in found["jobs"]])

        eventually(look)
        assert 404 == door.post(f"/jobs/{job.id}", {"do": "pause"}).status
    assert not job.reins.is_paused


def test_a_silent_job_is_told_and_forgotten(app, monkeypatch):
    """It may be busy, and is called silent for a while; then it is gone."""
    board, now = Board(app, ["double"]), [100.0]
    monkeypatch.setattr("webapp.board.time.monotonic", lambda: now[0])
    said = [{"id": "1", "task": "double", **SOON.told()}]
    monkeypatch.setattr(board._jobs, "all", lambda: said)
    states = []
    for now[0] in (100.0, 103.0, 106.0, 112.0):
        states.append([job["state"] for job in board.look()["jobs"]])
        said = []

    assert [["running"], ["silent"], ["silent"], []] == states


def test_the_page_shows_and_pauses_a_job(door, app):
    """A panel with a bar and a button is there while a backfill runs."""
    with browsing() as browser, Visitor(browser, f"http://127.0.0.1:{door.port}/") as page:
        expect(page.locator("#line")).to_contain_text("Live")
        expect(page.locator("#jobs")).to_be_hidden()
        reins = Reins()
        with Remote(app, "reviews.answer", FILES, reins) as remote:
            remote.tell(SOON)
            said = page.locator("#jobs .job-said")
            expect(said).to_have_text(
                re.compile(r"^1,200 of 5,000 rows · 3 failed · 100 /s · 64 of 512.* · 38 s left$")
            )
            assert 1200 / 5000 == page.locator("#jobs progress").evaluate("bar => bar.position")
            page.get_by_role("button", name="Pause answers.jsonl").click()
            again = page.get_by_role("button", name="Resume answers.jsonl")
            expect(again).to_be_visible()
            assert reins.is_paused
            expect(page.locator("#jobs .state")).to_have_text("paused")
            if picture := os.environ.get("PICTURE"):
                page.locator("#jobs").screenshot(path=picture)
            again.click()
            expect(page.get_by_role("button", name="Pause answers.jsonl")).to_be_visible()
            assert not reins.is_paused
        expect(page.locator("#jobs")).to_be_hidden()
