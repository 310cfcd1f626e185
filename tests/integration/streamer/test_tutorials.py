"""service-streamer's tutorials on one machine, in our words, with the import changed."""

from __future__ import annotations

import json
from pathlib import Path
from urllib.parse import urlencode
from urllib.request import ProxyHandler, build_opener

from celery_batch.processes.managed_process import wait_until
from tests.services.servers.ports import quiet_port
from tests.services.streamer_workers import LONG, PROGRAMS, StreamerWorkers

SENTENCES = [
    "twinkle twinkle [MASK] star.",
    "Happy birthday to [MASK].",
    "the answer to life, the [MASK], and everything.",
]
WORDS = ["little", "you", "universe"]


def test_the_flask_server(tmp_path: Path):
    """Three ways to answer: one by one, with a thread, with two worker processes."""
    browser, port = build_opener(ProxyHandler({})), quiet_port()
    form = urlencode([("s", sentence) for sentence in SENTENCES])

    def post(path: str) -> list[str]:
        url = f"http://127.0.0.1:{port}/{path}"
        with browser.open(url, form.encode(), timeout=LONG) as answer:
            return json.load(answer)

    def silent() -> str:
        try:
            return "" if post("naive") else "an empty answer"
        except OSError as error:
            return str(error)

    with StreamerWorkers("", tmp_path).run("flask_file.py", str(port), cwd=PROGRAMS) as server:
        wait_until(silent, [server], what="flask", timeout=LONG)
        with browser.open(f"http://127.0.0.1:{port}/naive?{form}", timeout=LONG) as answer:
            assert WORDS == json.load(answer)

        assert [WORDS] * 3 == [post(path) for path in ("naive", "thread", "stream")]


def test_the_future_program(tmp_path: Path):
    """Two hundred requests of three items each are answered in order."""
    with StreamerWorkers("", tmp_path).run("future_file.py", cwd=PROGRAMS) as program:

        def missing() -> str:
            return "" if program.exit_code is not None else "it runs"

        wait_until(missing, [], what="the program's end", timeout=LONG)

        assert f"{WORDS}\n200 200\n" == program.log.read_text()
        assert 0 == program.exit_code
