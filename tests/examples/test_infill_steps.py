"""The text-infilling web server in its three steps, each asked by a crowd."""

from __future__ import annotations

from http import HTTPStatus

import pytest

from bench.servers.wrk import find_wrk, run_wrk
from demo.load import Question, run_load
from examples import infill_naive, infill_processes, infill_threaded
from tests.apps.models.shout import Shout
from tests.conftest import need
from tests.services.servers.served_wsgi import served

CLIENTS = 16
QUESTIONS = [Question(f"[MASK] number {each}", f"[MASK] NUMBER {each}") for each in range(64)]
STEPS = {"/naive": infill_naive, "/stream": infill_threaded}


@pytest.fixture
def sizes(monkeypatch):
    """The sizes of the batches in this test."""
    monkeypatch.setattr(Shout, "sizes", [])
    return Shout.sizes


def test_naive_runs_the_model_for_each_request(sizes):
    """Step 1 answers everybody right, and one by one."""
    with served(infill_naive.create_app(Shout)) as url:
        load = run_load(f"{url}/naive", QUESTIONS, clients=CLIENTS)

    assert [] == load.errors
    assert [1] * len(QUESTIONS) == sizes


def test_threaded_shares_runs_of_the_model(sizes):
    """Step 2 answers everybody right, with many requests in a run."""
    with served(infill_threaded.create_app(Shout)) as url:
        load = run_load(f"{url}/stream", QUESTIONS, clients=CLIENTS)

    assert [] == load.errors
    assert len(QUESTIONS) == sum(sizes)
    assert max(sizes) > 1


def test_processes_answer_from_elsewhere(sizes):
    """Step 3 answers everybody right, and no model runs in the web server's process."""
    with served(infill_processes.create_app(Shout)) as url:
        load = run_load(f"{url}/stream", QUESTIONS, clients=CLIENTS)

    assert [] == load.errors
    assert [] == sizes


@pytest.mark.parametrize("path", STEPS)
def test_form_of_several_sentences(path):
    """One request may bring several sentences; the answers come back in their order."""
    client = STEPS[path].create_app(Shout).test_client()

    answer = client.post(path, data={"s": ["[MASK] b", "[MASK] a"]})

    assert ["[MASK] B", "[MASK] A"] == answer.get_json()


@pytest.mark.parametrize("path", STEPS)
def test_unreadable_sentence_is_refused(path):
    """What the model cannot read is the client's error, and the answer says why."""
    client = STEPS[path].create_app(Shout).test_client()

    answer = client.post(path, data={"s": "nothing hidden"})

    assert HTTPStatus.BAD_REQUEST == answer.status_code
    assert {"error": "no mask in 'nothing hidden'"} == answer.get_json()


def test_wrk_script_asks_the_sentences(sizes):
    """The script for wrk sends forms that are answered, without one error."""
    need(find_wrk)

    with served(infill_threaded.create_app(Shout)) as url:
        report = run_wrk(f"{url}/stream", clients=8, seconds=1)

    assert report.errors == ""
    assert report.rate > 1
    assert max(sizes) > 1
