"""Settings of the app, read when they are needed."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery

from celery_batch import BatchPolicy, BatchTask, ConfigurationError
from celery_batch.client_methods import ClientMethods
from celery_batch.config import (
    LARGEST_BATCH,
    OPTIONS,
    SETTINGS,
    Settings,
    milliseconds_warnings,
    policy_of,
    unread_settings,
)


@pytest.fixture
def app() -> Celery:
    """An app without a setting of ours."""
    return Celery("shop", set_as_current=False)


def django(**settings: Any) -> Celery:
    """Make an app that reads its settings as Django projects do, with a namespace."""
    app = Celery("shop", set_as_current=False)
    app.config_from_object(SimpleNamespace(**settings), namespace="CELERY")
    return app


def task(app: Celery, **options: Any) -> Any:
    """Return what of a task matters here: its app, its name and its options."""
    options_of_both = {**vars(ClientMethods), **vars(BatchTask)}
    silent = {name: each for name, each in options_of_both.items() if not name.startswith("_")}
    return SimpleNamespace(**{"app": app, "name": "shop.t", **silent, **options})


def test_nothing_set_is_fine(app: Celery):
    """Every setting has a default, and every option a setting."""
    assert Settings(None, 600.0, 16 << 20, 15.0, None, None) == Settings.of(app)
    assert BatchPolicy(32, 0.01, None) == policy_of(task(app))
    assert set(OPTIONS.values()) <= set(SETTINGS)


@pytest.mark.parametrize(
    ("devices", "names"),
    [
        (["cuda:0", "cuda:1"], ("cuda:0", "cuda:1")),
        (("cpu",), ("cpu",)),
        ("cuda:0, cuda:1,", ("cuda:0", "cuda:1")),
        ("cpu", ("cpu",)),
        ("MIG-c7384736,GPU-8932f937", ("cuda:MIG-c7384736", "cuda:GPU-8932f937")),
        ("", None),
        ([], None),
        (None, None),
    ],
)
def test_devices_are_a_list_or_a_word(app: Celery, devices: Any, names: Any):
    """Devices may come as a list or, as from an environment, in one string; none means all."""
    app.conf.batch_devices = devices

    assert names == Settings.of(app).devices


def test_devices_are_no_number(app: Celery):
    """The message names the setting, and what it may be."""
    app.conf.batch_devices = 5
    with pytest.raises(ConfigurationError, match="batch_devices: must be names of devices, such"):
        Settings.of(app)


def test_load_timeout_is_seconds(app: Celery):
    """It may be a whole number, and becomes a float as all times are."""
    app.conf.batch_load_timeout = 30
    timeout = Settings.of(app).load_timeout

    assert (30.0, float) == (timeout, type(timeout))


@pytest.mark.parametrize("setting", ["batch_load_timeout", "batch_lease"])
@pytest.mark.parametrize("seconds", [0, -1.0, "600", None, -math.inf], ids=repr)
def test_seconds_that_make_no_sense_are_refused(app: Celery, setting: str, seconds: object):
    """The message names the setting, what it must be and what it was."""
    app.conf[setting] = seconds
    with pytest.raises(ConfigurationError) as refusal:
        Settings.of(app)

    assert f"{setting}: must be seconds above 0, got {seconds!r}" == str(refusal.value)


@pytest.mark.parametrize(
    ("setting", "hint"),
    [
        ("batch_max_sise", "; did you mean batch_max_size?"),
        ("batch_timeout", "; did you mean batch_load_timeout?"),
        ("batch_of_something_else_entirely", ""),
    ],
)
def test_misspelt_setting_is_refused(app: Celery, setting: str, hint: str):
    """A misspelt setting would silently change nothing; the error offers the nearest name."""
    app.conf[setting] = 1
    with pytest.raises(ConfigurationError) as refusal:
        Settings.of(app)

    assert f"{setting}: no such setting{hint}" == str(refusal.value)


@pytest.mark.parametrize(
    ("namespace", "key", "usual"),
    [
        (None, "BATCH_MAX_SIZE", "batch_max_size"),
        (None, "CELERY_BATCH_MAX_SIZE", "batch_max_size"),
        ("CELERY", "BATCH_MAX_SIZE", "CELERY_BATCH_MAX_SIZE"),
        ("CELERY", "CELERY_batch_max_size", "CELERY_BATCH_MAX_SIZE"),
        ("CELERY", "CELERY_BATCH_MAX_SIZE", None),
        ("shop", "shop_batch_max_size", None),
        ("shop", "batch_max_size", None),
        (None, "batch_max_size", None),
        (None, "BATCH_JOBS", None),
    ],
)
def test_a_setting_that_is_not_read_is_named(namespace: str | None, key: str, usual: str | None):
    """Celery passes over another case and another prefix: the check names what it reads."""
    app = Celery(set_as_current=False)
    app.config_from_object({key: 4}, namespace=namespace)

    assert ({} if usual is None else {key: usual}) == unread_settings(app)
    assert key == "BATCH_JOBS" or (usual is None) == (app.conf.get("batch_max_size") == 4)


@pytest.mark.parametrize("switch", ["batch_bulk", "batch_overlap"])
def test_switch_is_a_switch(app: Celery, switch: str):
    """A word for False would be true."""
    app.conf[switch] = "False"
    with pytest.raises(ConfigurationError, match=f"{switch}: must be True or False, got 'False'"):
        Settings.of(app)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (
            "overlapp",
            "batch_disable_fast_paths: no such fast path: overlapp; did you mean ove",
        ),
        (["bulk"], "batch_disable_fast_paths: no such fast path: bulk; there are publish, "),
        (True, 'batch_disable_fast_paths: must be the names of fast paths, or "all", got True'),
    ],
)
def test_misspelt_fast_path_is_refused(app: Celery, names: object, message: str):
    """A misspelt name would turn nothing off."""
    app.conf.batch_disable_fast_paths = names
    with pytest.raises(ConfigurationError) as refusal:
        Settings.of(app)

    assert str(refusal.value).startswith(message)


def test_settings_of_others_are_none_of_our_business(app: Celery):
    """Celery's own settings, and those of other extensions, pass."""
    app.conf.update(task_always_eager=True, redbeat_redis_url="redis://", minibatch_size=3)

    assert Settings.of(Celery(set_as_current=False)) == Settings.of(app)


def test_policy_takes_the_app_s_settings_where_the_task_is_silent(app: Celery):
    """What a task does not say is said for the whole app."""
    app.conf.update(batch_max_size=5, batch_max_wait=0.5, batch_linger=0.25)

    assert BatchPolicy(5, 0.5, 0.25) == policy_of(task(app))
    assert BatchPolicy(7, 0.5, 0.25) == policy_of(task(app, max_batch_size=7))


def test_task_s_own_zero_is_not_silence(app: Celery):
    """A task may turn off what the app turned on."""
    app.conf.update(batch_max_wait=0.5, batch_linger=0.25)

    assert BatchPolicy(32, 0, 0) == policy_of(task(app, max_wait=0, linger=0))


@pytest.mark.parametrize(
    ("conf", "options", "message"),
    [
        ({}, {"max_batch_size": 0}, "shop.t.max_batch_size: must be a whole number"),
        ({}, {"max_wait": -1}, "shop.t.max_wait: must be seconds as a number"),
        ({"batch_max_size": "8"}, {}, "shop.t.max_batch_size: must be a whole number"),
        ({"batch_linger": -1}, {}, "shop.t.linger: must be seconds as a number"),
    ],
)
def test_wrong_policy_names_the_task(
    app: Celery, conf: dict[str, Any], options: dict[str, Any], message: str
):
    """The message says which task it is about, and which of its options."""
    app.conf.update(conf)
    with pytest.raises(ConfigurationError) as refusal:
        policy_of(task(app, **options))

    assert str(refusal.value).startswith(message)
    assert all(f"(of the setting {name})" in str(refusal.value) for name in conf)


def test_batches_have_a_largest_size(app: Celery):
    """A size that the worker's stack could not hold is refused; the largest is not."""
    most = LARGEST_BATCH
    with pytest.raises(ConfigurationError, match=rf"^shop\.t\.max_batch_size: at most {most}"):
        policy_of(task(app, max_batch_size=most + 1))

    assert most == policy_of(task(app, max_batch_size=most)).max_batch_size


def test_django_s_settings_carry_its_namespace():
    """With a namespace each setting is written as Celery's own are."""
    app = django(
        CELERY_BATCH_MAX_SIZE=5, CELERY_BATCH_MAX_WAIT=0.5, CELERY_BATCH_DEVICES="cpu", DEBUG=True
    )

    assert BatchPolicy(5, 0.5) == policy_of(task(app))
    assert ("cpu",) == Settings.of(app).devices


def test_misspelt_django_setting_is_named_as_it_was_written():
    """The user finds in the message what stands in the file."""
    app = django(CELERY_BATCH_MAX_SISE=5)
    with pytest.raises(ConfigurationError, match=r"^CELERY_BATCH_MAX_SISE: no such setting; did"):
        Settings.of(app)


def test_a_target_in_milliseconds_is_warned_of(app: Celery):
    """Nobody waits for minutes; a slow model may well take some seconds."""
    noted = milliseconds_warnings("t", policy_of(task(app, target_latency=200)))

    assert ["t: target_latency=200 is in seconds; if you mean milliseconds, write 0.2"] == noted
    assert not milliseconds_warnings("t", policy_of(task(app, target_latency=10)))
