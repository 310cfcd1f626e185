"""What is read from an app: its tasks, its settings, and what is wrong with them."""

from __future__ import annotations

import os
import re
import sys
import time
from pathlib import Path

import pytest
import redis
from celery import Celery
from kombu import Queue

from celery_batch import BatchTask
from celery_batch.checks.collect import (
    cache_of,
    devices_of,
    fast_paths_of,
    missing_serializers,
    ordinary_tasks,
    payloads_of,
    pool_of,
    trouble_of,
)
from celery_batch.processes.redis_server import RedisServer
from celery_batch.worker.scheduling.routing import misplaced_options
from tests.services.servers.ports import quiet_port


def app_with(**settings):
    """Return an app with a batch task, a plain one, and these settings."""
    app = Celery("looked at", broker="memory://", set_as_current=False)
    app.conf.update(**settings)

    own = {"shared": False, "base": BatchTask, "max_batch_size": 8}

    @app.task(name="t", soft_time_limit=3, rate_limit="10/s", **own)
    def t(x):
        return x

    @app.task(name="plain", shared=False)
    def plain(x):
        return x

    return app


def test_options_of_batch_tasks_in_ordinary_ones():
    """Those of a decorator are told, but not what a base class declares."""
    app = app_with()

    class Own(app.Task):
        dedupe = False

    @app.task(name="forgot", shared=False, max_batch_size=8, batch_by="x", dedupe=True)
    def forgot(x):
        return x

    @app.task(name="own", shared=False, base=Own, dedupe=True, colour="red")
    def own(x):
        return x

    assert ["forgot: batch_by, dedupe, max_batch_size in an ordinary task, which runs"] == [
        text.partition(" one call")[0] for text in misplaced_options(app)
    ]


@pytest.mark.parametrize(
    ("settings", "missing"),
    [
        ({"accept_content": ["json", "application/x-msgpack"]}, "pip install msgpack, for"),
        ({"task_serializer": "yaml"}, "pip install PyYAML, for callers and workers."),
        ({"result_serializer": "batch-msgpack"}, "pip install 'celery-batch[msgpack]', for"),
        ({"result_serializer": "jsn"}, "Did you mean json?"),
        ({"accept_content": ["application/json", "application/own", "unheard-of"]}, "Correct its"),
        ({}, ""),
    ],
)
def test_serializers_that_are_not_installed(settings, missing, monkeypatch):
    """The package is named that a serializer needs, or the name that was meant."""
    for module in ("msgpack", "yaml"):
        monkeypatch.setitem(sys.modules, module, None)
    app = app_with(**settings)
    found = missing_serializers(app, [app.tasks["t"]])

    assert len(found) == bool(missing)
    assert "".join(found.values()).startswith(missing)


def test_pools_by_their_classes_are_known():
    """A pool may be named by its class."""
    assert "prefork" == pool_of(app_with(worker_pool="celery.concurrency.prefork:TaskPool"))
    assert "solo" == pool_of(app_with(worker_pool="solo"))


@pytest.mark.parametrize(
    ("padding_row", "trouble"),
    [
        ("long", "p.padding_row: must have a cost that items may have: p: this item costs 4"),
        ("new", ""),
        (lambda: "long", ""),  # which a worker finds out
    ],
    ids=["long", "short", "function"],
)
def test_a_padding_row_that_costs_more_than_an_item_is_trouble(padding_row, trouble):
    """Each call that it fills up would fail."""
    app = app_with()

    @app.task(base=BatchTask, name="p", shared=False, cost="x", max_item_cost=3,
              batch_sizes=(1, 4), padding_row=padding_row)  # fmt: skip
    def padded(x):
        return x

    assert trouble_of(app)[: len(trouble) or None] == trouble


def test_what_cannot_be_imported_is_trouble():
    """A module that is missing, a misspelt setting: each is one sentence."""
    missing = trouble_of(app_with(include=["no.such.module"]))
    misspelt = trouble_of(app_with(batch_max_wiat=1))

    assert "cannot be imported: No module named 'no'." in missing
    assert "batch_max_wiat: no such setting; did you mean batch_max_wait?" == misspelt


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("def broken(:", r"SyntaxError: .*flawed\.py, line 1"),
        ("\nimport os; os.environ['NOT_SET_ANYWHERE']", r"KeyError: .*flawed\.py, line 2"),
        ("raise SystemExit('not here')", r"SystemExit: not here .*flawed\.py, line 1"),
    ],
)
def test_a_module_that_raises_is_trouble(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, words: str
):
    """Any error that an included module raises is shown with its type and its place."""
    (tmp_path / "flawed.py").write_text(source)
    monkeypatch.syspath_prepend(tmp_path)
    trouble = trouble_of(app_with(include=["flawed"]))

    assert re.search(f"The app's tasks cannot be imported: {words}", trouble)


@pytest.mark.parametrize(
    ("setting", "value"),
    [("batch_devices", "gpu"), ("batch_devices", ["cuda:0", 1]), ("batch_metrics", "localhost")],
)
def test_settings_with_which_no_worker_starts(setting: str, value: object):
    """They are refused as the worker refuses them."""
    assert trouble_of(app_with(**{setting: value})).startswith(f"{setting}: ")


def test_nothing_is_wrong_with_a_sound_app():
    """Then there is no trouble."""
    assert "" == trouble_of(app_with())


def test_devices_are_read():
    """Where the settings are wrong, they are not known."""
    assert ("cuda:0", "cuda:1") == devices_of(app_with(batch_devices="cuda:0, cuda:1"))
    assert devices_of(app_with(batch_nothing=1)) is None


def test_without_a_redis_for_answers_there_is_no_cache():
    """As the worker says it; without a task that has a cache nothing is asked."""
    app = app_with(result_backend="cache+memory://")
    found = cache_of(app, ["t"])

    assert found is not None
    assert "none" == found.kind
    assert "t.cache_ttl: answers are kept in Redis" in found.error
    assert cache_of(app, []) is None


def test_a_cache_at_which_nobody_listens_is_found(redis_server: RedisServer):
    """The setting names another server than the results', which is asked."""
    away = cache_of(app_with(batch_cache_url=f"redis://127.0.0.1:{quiet_port()}/1"), ["t"])
    there = cache_of(app_with(batch_cache_url=redis_server.url), ["t"])

    assert away is not None
    assert there is not None
    assert away.error
    assert ("redis", "") == (there.kind, there.error)


def found_payloads(**settings):
    """Return what is found out about the payload store of an app with these settings."""
    found = payloads_of(app_with(**settings))
    assert found is not None
    return found


def test_a_payload_store_in_redis(redis_server: RedisServer):
    """A value is stored there, read and deleted again; the results' Redis is the default."""
    with redis.Redis(unix_socket_path=f"{redis_server.directory}/redis.sock") as client:
        before = client.dbsize()
        there = found_payloads(result_backend=redis_server.url)
        assert before == client.dbsize()
    away = found_payloads(batch_payload_store=f"redis://:secret@127.0.0.1:{quiet_port()}/1")

    assert ("redis", "", "") == (there.kind, there.error, there.refused)
    assert there.url == redis_server.url
    assert there.redis is not None
    assert there.redis.info is not None
    assert "maxmemory_policy" in there.redis.info
    assert away.error
    assert "secret" not in away.url


@pytest.mark.parametrize(
    ("commands", "error", "refused"),
    [
        ((), "", "permissions"),
        (("+set",), "permissions", ""),
        (("+set", "+getrange"), "permissions", ""),
        (("+set", "+getrange", "+unlink"), "", ""),
    ],
)
def test_a_user_who_may_not_use_the_payload_store(
    redis_server: RedisServer, commands: tuple[str, ...], error: str, refused: str
):
    """One who may not write is refused; one who may write and neither read nor delete has lost."""
    socket = f"{redis_server.directory}/redis.sock"
    with redis.Redis(unix_socket_path=socket) as admin:
        rules = ("on", ">word", "~celery-batch-payload-*", "+ping", *commands)
        admin.execute_command("ACL", "SETUSER", "payer", "reset", *rules)
        try:
            url = f"redis+socket://payer:word@{socket}?virtual_host=0"
            found = found_payloads(batch_payload_store=url)
        finally:
            admin.acl_deluser("payer")

    assert found.redis is not None
    assert found.redis.info is None
    assert (bool(error), bool(refused)) == (bool(found.error), bool(found.refused))
    assert error in found.error
    assert refused in found.refused


def test_a_directory_of_payloads(tmp_path: Path):
    """Files that have expired are counted; one that is not there is not made."""
    folder = tmp_path / "payloads"
    setting = f"file://{folder}"
    assert found_payloads(batch_payload_store=setting).is_missing
    assert [] == [*tmp_path.iterdir()]

    folder.mkdir()
    for name, ago in (("a-1", 5000), ("b-2", 60), ("c-3", -60)):
        file = folder / f"celery-batch-payload-{name}"
        file.write_bytes(b"data")
        os.utime(file, (time.time() - ago,) * 2)
    (folder / "of-others").touch()
    found = found_payloads(batch_payload_store=setting)

    assert ("directory", "", "", 2, 1) == (
        found.kind, found.error, found.refused, found.expired, found.overdue
    )  # fmt: skip
    assert len([*folder.iterdir()]) == 4

    blocked = tmp_path / "file"
    blocked.touch()
    assert found_payloads(batch_payload_store=f"file://{blocked}").error


def test_other_places_for_payloads(tmp_path: Path):
    """An object store; none; and one that is not known."""
    objects = found_payloads(batch_payload_store=f"local://{tmp_path}")

    assert ("local", "", "") == (objects.kind, objects.error, objects.refused)
    assert [] == [*tmp_path.iterdir()]
    assert found_payloads().kind == "none"
    assert found_payloads(batch_payload_store=False).kind == "off"
    assert "must be a URL" in found_payloads(batch_payload_store="/var/payloads").error
    assert payloads_of(app_with(result_backend="nosuch://x")) is None


@pytest.mark.parametrize(
    ("settings", "off"),
    [
        ({}, {}),
        ({"task_send_sent_event": True}, {"publish": "task_send_sent_event is on"}),
        ({"result_backend": "rpc://"}, {"notify": "results are in RPCBackend"}),
        ({"batch_disable_fast_paths": ("publish",)}, {"publish": "batch_disable_fast_paths"}),
        # Of which the check of the result backend speaks.
        ({"result_backend": "nothing://"}, {}),
        # Which another check says.
        ({"batch_disable_fast_paths": ("swift",)}, {}),
    ],
)
def test_fast_paths_are_off_where_settings_have_them_off(settings, off):
    """What a caller of this app would say is said here; workers say theirs."""
    redis = {"broker_url": "redis://", "result_backend": "redis://"}
    states = fast_paths_of(app_with(**{**redis, **settings}))

    assert off == {state.name: state.reason for state in states if not state.is_on}


def test_ordinary_tasks_of_a_batch_task_s_queue_are_found():
    """Those with a queue of their own, or one that does not exist, are left out."""
    app = app_with(task_create_missing_queues=False, task_queues=[Queue("celery"), Queue("mail")])
    app.conf.task_routes = {"mailed": "mail", "lost": "nowhere"}

    def run():
        """Never runs."""

    for name in ("here", "mailed", "lost"):
        app.task(name=name, shared=False)(run)
    app.finalize()

    assert "here" in ordinary_tasks(app, {"t": "celery"})
    assert not {"mailed", "lost", "t"} & {*ordinary_tasks(app, {"t": "celery"})}
