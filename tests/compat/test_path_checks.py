"""Each fast path checks what it stands on, and is off where that is not what it knows."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest
from celery import Celery

from celery_batch.compat.fast_paths import FastPaths, PathState, states_in_words
from celery_batch.config import FAST_PATHS


@pytest.fixture
def app() -> Celery:
    """Return an app whose fast paths have not been looked at."""
    return Celery("paths", broker="redis://", backend="redis://", set_as_current=False)


def off(app: Celery) -> dict[str, str]:
    """Return the fast paths that are off, with the reasons."""
    states = [FastPaths.of(app).state(name) for name in FAST_PATHS]
    return {state.name: state.reason for state in states if not state.is_on}


def test_all_are_on_with_the_libraries_that_are_tested(app: Celery) -> None:
    """With what is installed here, nothing is missing."""
    assert {} == off(app)


@pytest.mark.parametrize(
    ("path", "target"),
    [
        ("publish", "kombu.transport.virtual:Channel._inplace_augment_message"),
        ("amqp_frames", "amqp.serialization:GenericContent._serialize_properties"),
        ("fetch", "kombu.utils.scheduling:round_robin_cycle.rotate"),
        ("intake", "celery.worker.strategy:default"),
        ("write_ahead", "celery.concurrency.asynpool:AsynPool.flush"),
        ("overlap", "billiard.pool:SIG_SOFT_TIMEOUT"),
        ("trace", "celery.app.trace:task_has_custom"),
        ("store", "celery.backends.base:Backend._get_result_meta"),
        ("notify", "celery.backends.redis:RedisBackend._create_client"),
        ("acknowledge", "kombu.transport.virtual:Channel._lookup"),
    ],
)
def test_a_renamed_method_turns_its_path_off(
    app: Celery, monkeypatch: pytest.MonkeyPatch, path: str, target: str
) -> None:
    """The reason names what is missing."""
    module, _, names = target.partition(":")
    found: Any = import_module(module)
    *owners, name = names.split(".")
    for owner in owners:
        found = getattr(found, owner)
    monkeypatch.delattr(found, name)

    assert f"has no {name}" in off(app)[path]


@pytest.mark.parametrize(
    ("path", "target"),
    [
        ("publish", "kombu.messaging:Producer._publish"),
        ("amqp_frames", "amqp.connection:Connection.drain_events"),
        ("fetch", "kombu.transport.redis:Channel._brpop_start"),
        ("intake", "celery.worker.request:Request.__init__"),
        ("write_ahead", "kombu.asynchronous.semaphore:LaxBoundedSemaphore.release"),
        ("overlap", "billiard.pool:Worker._ensure_messages_consumed"),
        ("trace", "celery.app.trace:info"),
        ("store", "celery.backends.redis:RedisBackend._get_result_meta"),
        ("notify", "redis.client:PubSub.get_message"),
        ("acknowledge", "kombu.transport.redis:QoS.ack"),
    ],
)
def test_other_parameters_turn_a_path_off(
    app: Celery, monkeypatch: pytest.MonkeyPatch, path: str, target: str
) -> None:
    """The reason names the function, also where only our call would fail."""

    def other(*, parameters: object) -> object:
        return parameters

    monkeypatch.setattr(target.replace(":", "."), other)

    assert target.replace(":", ".") in off(app)[path]


@pytest.mark.parametrize(
    ("module", "version", "paths"),
    [
        ("kombu", "5.8.0", {"publish", "amqp_frames", "fetch", "intake", "write_ahead"}),
        ("billiard", "4.4.0rc1", {"write_ahead", "overlap"}),
        ("amqp", "5.3.0", {"amqp_frames"}),
        ("celery", "5.5.2", set(FAST_PATHS) - {"amqp_frames"}),
    ],
)
def test_an_untested_release_turns_its_paths_off(
    app: Celery, monkeypatch: pytest.MonkeyPatch, module: str, version: str, paths: set[str]
) -> None:
    """The reason names the release and those that are tested."""
    monkeypatch.setattr(f"{module}.__version__", version)
    found = off(app)

    assert paths <= found.keys()
    assert all(f"{version} is not tested" in found[path] for path in paths)


@pytest.mark.parametrize("names", ["overlap, store", ["store", "overlap"]])
def test_a_setting_turns_paths_off(app: Celery, names: Any) -> None:
    """Those that it names, and those that need another; the settings may change later."""
    assert {} == off(app)
    app.conf.batch_disable_fast_paths = names
    by_hand = "batch_disable_fast_paths"

    needs = dict.fromkeys(("trace", "notify"), "store is off")
    assert {"overlap": by_hand, "store": by_hand, **needs} == off(app)


def test_what_only_an_object_shows_turns_a_path_off(app: Celery) -> None:
    """A path that has begun to look at its objects goes off for the rest of the process."""
    FastPaths.of(app).turn_off("fetch", "kombu's Channel has no _queue_cycle")

    assert {"fetch": "kombu's Channel has no _queue_cycle"} == off(app)


def test_states_in_words() -> None:
    """What is off for the same reason stands together."""
    states = [PathState("a"), PathState("b", "why"), PathState("c", "why"), PathState("d")]

    assert "a, d on; b, c off (why)" == states_in_words(states)
