"""``celery batch check`` on real brokers, with and without workers."""

from __future__ import annotations

import json
import os
import sys

import pytest
import redis

from celery_batch.processes.managed_process import ManagedProcess
from tests.integration.messages.test_redis_rules import rules, url_for
from tests.services.eventually import eventually
from tests.services.forked import run
from tests.services.setup import CELERY, environment_of
from tests.services.terminal import Terminal

#: Each is some processes, one after the other, on a machine that does more besides.
pytestmark = pytest.mark.timeout(400)

COMMAND = (CELERY, "-A", "tests.apps.tasks", "batch", "check")


def examined(environment, *options, **conf):
    """Return exit code and output of a check with these settings of the app."""
    env = {**os.environ, **environment, "TESTS_CONF": json.dumps(conf)}
    done = run([*COMMAND, *options], env=env, timeout=120)
    assert not done.stderr, done.stderr
    return done.returncode, done.stdout


def found(output):
    """Return what was said as JSON, by check: its level and its sentences."""
    by_check = {}
    for one in json.loads(output):
        by_check.setdefault(one["id"], []).append((one["level"], one["says"], one["fix"]))
    return by_check


def test_with_redis_and_a_worker(setup, tmp_path):
    """Servers and workers are described, and what of a worker's settings is unlike the callers'."""
    store = f"file://{tmp_path}"
    conf = {"batch_max_wait": 0.25, "batch_payload_store": store}
    conf["batch_disable_fast_paths"] = "store"
    worker = setup.worker("-c", "1", "--max-tasks-per-child", "50", conf=conf)
    setup.elsewhere.delay(1)

    # On a busy machine an answer of the worker's may be late, and what it would say is missing.
    eventually(lambda: _assert_all_is_said(setup, worker, store), timeout=240)


def _assert_all_is_said(setup, worker, store):
    code, output = examined(setup.environment, "--json")
    said = found(output)
    assert 1 == code
    (unserved,) = [each for each in said["serving"] if each[0] == "problem" and "else" in each[1]]
    assert "queue elsewhere for it, where 1 message waits." in unserved[1]
    assert ("ok", f"shop.double is served by {worker.name}.", "") in said["serving"]
    assert any(
        f"{worker.name} replaces a process after 50" in each[1] for each in said["worker-pool"]
    )
    assert any("runs shop.again with" not in each[1] for each in said["worker-versions"])
    assert any(
        "shop.flaky" in each[1] and "max_wait=0.25" in each[1] for each in said["worker-versions"]
    )
    (unlike,) = [says for level, says, _ in said["payload-store"] if level == "problem"]
    assert f"{worker.name} keeps large values in {store}, and callers" in unlike
    assert f"{worker.name} notifies no caller (store is off)" in said["result-backend"][0][1]
    assert ["ok"] == [level for level, *_ in said["broker"]]
    assert "leased" in said["visibility-timeout"][0][1]
    assert ["warning"] == [level for level, *_ in said["redis-persistence"]]


def test_a_queue_that_no_route_names(setup):
    """A worker whose queue is only named at calls is a warning, before and after the first call."""
    worker = setup.worker("-c", "1", "-Q", "slow")

    def answered():
        _, output = examined(setup.environment, "--json")
        return found(output)["unrouted-queues"]  # missing where an answer is late

    (before,) = eventually(answered, timeout=240)
    setup.translate.apply_async(("bread",), queue="slow").get(timeout=60)
    (after,) = eventually(answered, timeout=240)

    assert "warning" == before[0] == after[0]
    assert f"{worker.name} consumes slow, to which no task is routed" in before[1]
    assert f"{worker.name} received shop.translate from a queue" in after[1]
    assert "task_routes" in before[2]


#: A worker as users start it who have no celery_batch, whose command line adds commands.
OLD = """
from celery import Celery, Task

class Batches(Task):
    flush_every = 10  # as in the package celery-batches

app = Celery("shop", broker={url!r})

@app.task(name="shop.double")
def double(x): ...

@app.task(name="shop.halved", base=Batches)
def halved(x): ...

app.Worker(hostname="old@localhost", pool="solo", loglevel="INFO").start()
"""


def test_a_worker_without_celery_batch_beside_one_with_events(setup, tmp_path):
    """The one is a warning and hears no command that it does not know; the other says it all."""
    ours = setup.worker("-c", "1", "-E")
    code, log = OLD.format(url=setup.url), tmp_path / "old.log"
    old = ManagedProcess(
        [sys.executable, "-c", code], log, env={**os.environ, "PYTHONUNBUFFERED": "1"}
    )

    def answered():
        _, output = examined(setup.environment, "--json", task_send_sent_event=True)
        said = found(output)
        about = [says for level, says, _ in said["serving"] if level == "warning"]
        assert 2 == len(about)
        assert any(ours.name in says for _, says, _ in said["fast-paths"])
        return said, about

    try:
        said, about = eventually(answered, timeout=240)
    finally:
        old.stop(grace=10)
    words = "old@localhost runs no celery_batch: it runs"
    price = "Flower needs them; they cost three messages for each item."

    assert [f"{words} shop.double one by one.", f"{words} shop.halved in batches of"] == [
        about[0],
        about[1].removesuffix(" celery-batches."),
    ]
    assert not [each for each in said["serving"] if "could not say" in each[1]]
    assert "Traceback" not in log.read_text()
    assert [
        ("warning", "Fast paths by the settings here: publish off (task_send_sent_event is on)."),
        ("ok", f"Fast paths of {ours.name}: intake off (task events are on). {price}"),
    ] == [each[:2] for each in said["fast-paths"]]
    assert "intake off (task events are on)" in ours.log


def test_with_rabbitmq_and_without_workers(rabbit_setup):
    """On RabbitMQ it names what that needs, and that no worker is there is no problem yet."""
    code, output = examined(rabbit_setup.environment)

    assert 0 == code, output
    assert "ok       broker: RabbitMQ " in output
    assert "warning  priorities: Queue celery has no priorities" in output
    assert "warning  publisher-confirms: " in output
    assert "warning  serving: No worker replies: calls wait in the broker." in output
    assert "eviction" not in output
    assert "0 problems, " in output.splitlines()[-1]


def test_a_broker_in_an_alarm_accepts_nothing(rabbit_setup, rabbitmq_server):
    """That is said, and not that the workers could not be asked."""
    rabbit_setup.worker("-c", "1")
    rabbitmq_server.control("set_vm_memory_high_watermark", "absolute", "1MB")
    try:
        code, output = examined(rabbit_setup.environment, "--json")
    finally:
        rabbitmq_server.control("set_vm_memory_high_watermark", "0.4")
    ((level, says, fix),) = found(output)["broker"]

    assert (1, "problem") == (code, level)
    assert "accepts no messages at the moment" in says
    assert "rabbitmq-diagnostics alarms" in fix
    assert "serving" not in found(output)


def test_what_is_set_right_is_no_finding(rabbit_setup):
    """Queues with priorities and confirms, as the fixes say, leave nothing to say about them."""
    _, output = examined(
        rabbit_setup.environment,
        "--json",
        task_queue_max_priority=10,
        task_default_priority=5,
        broker_transport_options={"confirm_publish": True},
        worker_concurrency=1,
    )

    assert not {"priorities", "publisher-confirms", "devices"} & {*found(output)}


def test_redis_that_throws_messages_away(setup):
    """What a Redis says of its memory is looked at, not what its manual says."""
    with setup.memory() as client:
        before = client.config_get("maxmemory")
        client.config_set("maxmemory", 1 << 30)
        client.config_set("maxmemory-policy", "allkeys-lru")
        try:
            code, output = examined(setup.environment, "--json")
        finally:
            client.config_set("maxmemory-policy", "noeviction")
            client.config_set("maxmemory", before["maxmemory"])

    assert 1 == code
    ((level, says, fix),) = found(output)["redis-eviction"]
    assert "problem" == level
    assert "allkeys-lru" in says
    assert fix.startswith("CONFIG SET maxmemory-policy noeviction")
    assert "may vanish" in found(output)["result-backend"][0][1]
    assert "payload store is allkeys-lru" in found(output)["payload-store"][0][1]


def test_nothing_is_right_and_a_person_looks():
    """With the broker away and a setting misspelt, a terminal shows a table of what to do."""
    env = {
        **os.environ,
        **environment_of("redis://:secret@127.0.0.1:1/0"),
        "TESTS_CONF": json.dumps({"batch_max_sice": 3, "worker_pool": "gevent"}),
    }
    with Terminal(COMMAND, env=env) as terminal:
        code = terminal.read_to_the_end()

    assert 1 == code
    assert "\x1b[31mproblem" in terminal.raw
    assert "batch_max_sice: no such setting; did you mean batch_max_size?" in terminal.text
    assert "The broker does not answer at redis://:**@127.0.0.1:1/0" in terminal.text
    assert "-> Use prefork" in terminal.text
    assert "secret" not in terminal.text


@pytest.mark.parametrize("name", ["worker", "caller"])
def test_a_user_with_few_rights(setup, redis_server, name):
    """Access rules that keep INFO from a user are named, and not taken for a dead broker."""
    with redis.Redis(unix_socket_path=str(redis_server.directory / "redis.sock")) as admin:
        admin.execute_command("ACL", "SETUSER", name, "reset", *rules()[name])
        url = url_for(redis_server, name)
        try:
            code, output = examined({**setup.environment, **environment_of(url)}, "--json")
        finally:
            admin.acl_deluser(name)
    said = found(output)

    assert ("warning", True) == (said["broker"][0][0], "INFO" in said["broker"][0][1])
    notified = said["result-backend"][0][1]
    assert (
        "Callers are notified of their answers, many at once, by Redis at redis+socket:" in notified
    )
    assert ("ok", True) == (
        said["payload-store"][0][0],
        "in Redis at" in said["payload-store"][0][1],
    )
    if name == "worker":
        assert (0, "warning") == (code, said["serving"][0][0])
    else:
        assert (1, "problem") == (code, said["serving"][0][0])
        assert "The workers could not be asked: " in said["serving"][0][1]


def test_a_module_that_cannot_be_imported(setup, tmp_path):
    """A task module with an error in it is a finding, and no traceback."""
    (tmp_path / "flawed.py").write_text("import os\nos.environ['NOT_SET_ANYWHERE']\n")
    path = os.pathsep.join(filter(None, (str(tmp_path), os.environ.get("PYTHONPATH"))))
    environment = {**setup.environment, "PYTHONPATH": path}
    code, output = examined(environment, "--json", include=["flawed"])

    assert 1 == code
    assert "KeyError: 'NOT_SET_ANYWHERE'" in found(output)["settings"][0][1]
    assert "flawed.py, line 2" in found(output)["settings"][0][1]
