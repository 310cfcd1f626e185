"""`celery control batch_config` changes when a running worker's batches leave."""

from __future__ import annotations

import os
import subprocess

import pytest

from tests.conftest import ROOT
from tests.services.helm import Helm
from tests.services.shop import CELERY, Worker

SIZES = "steered.sizes"


def test_next_batch_has_the_new_size(helm: Helm, worker: Worker):
    """Batches, what chunks are cut into and the prefetch go by the new size, and back."""
    prefetch = worker.stats()["prefetch_count"]
    reply = helm.done(worker, "batch_config", task=SIZES, max_batch_size=3, max_wait=2)
    small = [result.get(timeout=30) for result in helm.shop.sizes.delay_many(list(range(12)))]
    cut = helm.shop.sizes.delay_chunk(list(range(8))).get(timeout=30)
    status = worker.status()[SIZES]
    less = worker.stats()["prefetch_count"]
    helm.done(worker, "batch_config", task=SIZES, max_batch_size=16)
    large = [result.get(timeout=30) for result in helm.shop.sizes.delay_many(list(range(16)))]
    more = worker.stats()["prefetch_count"]
    helm.done(worker, "batch_config", words=[SIZES, "default"])

    assert [3, 2, 0.2] == [reply[name] for name in ("max_batch_size", "max_wait", "linger")]
    assert {"max_batch_size": 8, "max_wait": 1.0} == reply["task_says"] == status["task_says"]
    assert [3, 2] == [status["max_batch_size"], status["max_wait"]]
    assert [3] * 12 == small
    assert [3, 3, 3, 3, 3, 3, 2, 2] == cut
    assert max(large) > 8
    assert [prefetch - 3 * 5, prefetch + 3 * 8] == [less, more]
    assert prefetch == worker.stats()["prefetch_count"]
    assert {} == worker.status()[SIZES]["task_says"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "no task is named; write: batch_config TASK"),
        (["steered.size"], "steered.size: no batch task of this worker; did you mean steered.size"),
        ([SIZES, "max_batch_sise=3"], "no such option; did you mean max_batch_size?"),
        ([SIZES, "max_batch_size=0"], "must be a whole number of at least 1, got 0"),
        ([SIZES, "max_batch_size=4096"], "steered.sizes.max_batch_size: at most"),
        ([SIZES, "max_wait=soon"], "must be seconds as a number from 0 up, got 'soon'"),
        ([SIZES, "max_wait=nan"], "must be seconds as a number from 0 up, got nan"),
        ([SIZES, "linger=0.1", "max_wait", "=", "3"], "not understood; write: batch_config"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_is_wrong_changes_nothing(helm: Helm, worker: Worker, words: list[str], message: str):
    """The reply names what is wrong and what would be right."""
    before = worker.status()
    reply = helm.order(worker, "batch_config", words=words)

    assert ["error"] == list(reply)
    assert message in reply["error"]
    assert before == worker.status()


def test_order_is_given_from_a_shell(helm: Helm, worker: Worker):
    """Words of the command line are names and values; the reply can be read."""
    done = subprocess.run(
        [
            *(CELERY, "-A", "tests.services.steered", "control", "--timeout=20"),
            *(f"--destination={worker.name}", "batch_config", SIZES, "max_wait=20", "linger=none"),
        ],
        cwd=ROOT,
        env={**os.environ, **helm.shop.environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    shown = helm.done(worker, "batch_config", task=SIZES)
    helm.done(worker, "batch_config", task=SIZES, max_wait="default", linger="default")

    assert 0 == done.returncode, done.stderr
    assert f"{worker.name}: OK" in done.stdout
    assert "if you mean milliseconds, write 0.02" in done.stdout
    assert [20, None] == [shown["max_wait"], shown["linger"]]
    assert {"max_wait": 1.0, "linger": 0.2} == shown["task_says"]
    assert {} == helm.done(worker, "batch_config", task=SIZES)["task_says"]
