"""Real servers for the tests: brokers of their own, workers as users start them."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache, lru_cache
from pathlib import Path
from zlib import crc32

import pytest
import redis.utils
from celery import _state
from celery.app import builtins  # noqa: F401 (registers Celery's own shared tasks)
from celery.backends import cache as memory
from celery.backends.redis import ResultConsumer
from hypothesis import HealthCheck, settings
from kombu.utils import json
from kombu.utils.functional import LRUCache

from celery_batch.errors import ConfigurationError
from celery_batch.processes.redis_server import RedisServer, find_redis_server
from celery_batch.serialization.typed_json import register_types
from tests.plugins.seeds import SEED, VARIABLE
from tests.services.servers.rabbitmq import RabbitMQServer, find_rabbitmq_server
from tests.services.servers.tls import Papers, make_papers
from tests.services.setup import ROOT, Setup, Worker, emptied, open_setup
from tests.services.shared_setup import SharedSetup, SharedSetups, entered

pytest_plugins = ["tests.rows.skips", "tests.plugins.time_limit"]

#: Tests of these folders share servers or workers, so one process runs all of them.
_TOGETHER = ("tests/integration/features",)

#: Tests of these files share nothing, and any process may run each.
_APART = (ROOT / "tests/docs/test_examples.py",)

#: A RabbitMQ takes six seconds of a processor to start, and with fewer its tests end last.
_RABBITMQS = 3

#: What takes longest starts first; otherwise one process still runs it when all others have ended.
_LONGEST_GROUPS = (
    *(f"rabbitmq-{number}" for number in range(_RABBITMQS)),
    "test_backfill_command",
    "examples-torch",
)

#: The same by folder and file, for all other groups.
_LONGEST_FIRST = (
    "tests/faults/test_faults.py",
    "tests/integration/features",
    "tests/integration/outages/test_lease.py",
    "tests/deploy",
    "tests/webapp",
    "tests/integration/backfill",
    "tests/integration",
    "tests/web",
    "tests/examples",
    "tests/cli",
    "tests/client",
    "tests/package",
    "tests/workers",
    "tests/docs/test_examples.py",
)

# Neither drawing an example nor running it is quick on a machine that does other things, too.
# Under CI Hypothesis would draw the same examples in every run; here each run draws new ones.
for _name, _examples in (("few-examples", 25), ("some-examples", 50), ("many-examples", 100)):
    settings.register_profile(
        _name,
        max_examples=_examples,
        deadline=None,
        derandomize=False,
        print_blob=True,
        suppress_health_check=[HealthCheck.too_slow],
    )
settings.load_profile("many-examples" if "THOROUGH" in os.environ else "few-examples")

# Each connection reads the metadata of redis-py for its version.
redis.utils.get_lib_version = lru_cache(redis.utils.get_lib_version)

_unsubscribe = ResultConsumer.cancel_for


def _unsubscribe_where_redis_is(consumer: ResultConsumer, task_id: str) -> None:
    """Spare a test 20 s of tries to reach the Redis of an earlier one, whose results go now."""
    path = consumer.backend.connparams.get("path")
    if path is None or Path(path).parent.exists():
        _unsubscribe(consumer, task_id)


ResultConsumer.cancel_for = _unsubscribe_where_redis_is


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Have the order of the tests and Hypothesis' examples follow from the run's one seed."""
    # A run in the background of a script ignores interrupts, and so would all that it starts.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
    if getattr(config.option, "randomly_seed", None) == "default":
        config.option.randomly_seed = SEED
    if config.option.hypothesis_seed is None:
        config.option.hypothesis_seed = str(SEED)


def pytest_report_header() -> str:
    """Print the seed: it repeats order, examples, fuzz, canvases, faults and kills."""
    return f"seed: {SEED} ({VARIABLE}={SEED} repeats this run's chance)"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the seed once more, below what has failed."""
    terminalreporter.write_line(pytest_report_header())


def pytest_report_collectionfinish(items: list[pytest.Item]) -> list[str]:
    """List what the thorough run adds."""
    marks = [mark for item in items if (mark := item.get_closest_marker("thorough"))]
    counts = Counter(reason for mark in marks for reason in mark.args)
    return [f"thorough: {count:4} {reason}" for reason, count in sorted(counts.items())]


@pytest.hookimpl(tryfirst=True)
def pytest_collection() -> None:
    """Look for no garbage while thousands of tests are collected: hardly any of it is."""
    gc.disable()


@pytest.hookimpl(trylast=True)
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make no variants that are left out below: each process would make and forget thousands."""
    calls = metafunc._calls
    if "THOROUGH" in os.environ:
        return
    if kept := [c for c in calls if not any(m.name == "thorough" and m.args for m in c.marks)]:
        calls[:] = kept


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is marked as thorough, and group what shares fixtures for pytest-xdist."""
    for item in items:
        marker = item.get_closest_marker("thorough")
        if marker and not marker.args:
            raise pytest.UsageError(f"{item.nodeid}: thorough() needs a reason")
    if "THOROUGH" not in os.environ:
        left_out = {item for item in items if item.get_closest_marker("thorough")}
        config.hook.pytest_deselected(items=[*left_out])
        items[:] = [item for item in items if item not in left_out]
    for item in items:
        if not item.get_closest_marker("xdist_group"):
            item.add_marker(pytest.mark.xdist_group(_group(item)))
    if "PYTEST_XDIST_WORKER" in os.environ:
        items.sort(key=_rank)


def pytest_collectreport() -> None:
    """Forget what a module of tests shares: every app that the next ones make would get it."""
    _state._on_app_finalizers = set(_BUILTINS)


def pytest_collection_finish() -> None:
    """Have collections of garbage, which many tests ask for, look at what tests make only."""
    gc.collect()
    gc.freeze()
    gc.enable()


def _rank(item: pytest.Item) -> int:
    """Return the place of a test in the order of those that take longest."""
    group = item.get_closest_marker("xdist_group")
    if group and group.args[0] in _LONGEST_GROUPS:
        return _LONGEST_GROUPS.index(group.args[0])
    return len(_LONGEST_GROUPS) + _rank_of(item.path)


@cache
def _rank_of(file: Path) -> int:
    path = file.relative_to(ROOT)
    ranks = (i for i, start in enumerate(_LONGEST_FIRST) if path.is_relative_to(start))
    return next(ranks, len(_LONGEST_FIRST))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_node_collection_finished(ids: list[str]) -> None:
    """Refuse to go on where pytest-xdist has not marked each test's group in its id."""
    if not all("@" in nodeid for nodeid in ids):
        pytest.exit("tests would not share their servers: use --dist loadgroup, locked versions", 4)


def _group(item: pytest.Item) -> str:
    """Return the name of the tests that run in the same process: a folder's, a file's, or one."""
    stem = item.path.stem
    if item.path in _APART:
        return item.name
    if _needs_rabbitmq(item):
        return f"rabbitmq-{crc32(item.path.name.encode()) % _RABBITMQS}"
    folder = _folder_of(item.path)
    return f"{folder}-{_servers(item.name, stem)}" if folder else stem


@cache
def _folder_of(path: Path) -> str:
    """Return the name of the folder whose tests share servers with those of a file, or nothing."""
    return next((Path(each).name for each in _TOGETHER if path.is_relative_to(ROOT / each)), "")


def _needs_rabbitmq(item: pytest.Item) -> bool:
    """Say whether a test asks for a RabbitMQ, by a fixture or by a parameter's name."""
    return "rabbitmq_server" in getattr(item, "fixturenames", ()) or "rabbit" in item.name.lower()


def _servers(name: str, stem: str) -> str:
    """Return which of a folder's tests share workers: a pool's, and of many a part."""
    pool = next((pool for pool in ("solo", "threads") if f"redis-{pool}" in name), "")
    return f"redis-{pool or crc32(stem.encode()) % 4}"


#: Celery's own tasks; what else is shared by then comes from the modules of tests.
_BUILTINS = frozenset(_state._on_app_finalizers)


@pytest.fixture(autouse=True)
def _own_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Celery shares every task with all apps there will be; not from one test to the next."""
    monkeypatch.setattr(_state, "_on_app_finalizers", set(_BUILTINS))


@pytest.fixture(autouse=True)
def _own_results(monkeypatch: pytest.MonkeyPatch) -> None:
    """All apps of a process share one backend in memory; tests that use an id twice do not."""
    monkeypatch.setattr(memory, "_DUMMY_CLIENT_CACHE", LRUCache())


@pytest.fixture(autouse=True)
def _own_types(monkeypatch: pytest.MonkeyPatch) -> None:
    """What one test teaches kombu's JSON is forgotten by the next, but for our own types."""
    register_types()
    for name in ("_encoders", "_decoders"):
        monkeypatch.setattr(json, name, dict(getattr(json, name)))


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer]:
    """A Redis of our own; where none is installed, a reason to skip, or under CI to fail."""
    need(find_redis_server)
    with RedisServer() as server:
        yield server


@pytest.fixture(scope="session")
def papers(tmp_path_factory: pytest.TempPathFactory) -> Papers:
    """Certificates of servers with TLS."""
    return make_papers(tmp_path_factory.mktemp("papers"))


@pytest.fixture(scope="session")
def rabbitmq_server(papers: Papers) -> Iterator[RabbitMQServer]:
    """A RabbitMQ of our own; where none is installed, a reason to skip, or under CI to fail."""
    need(find_rabbitmq_server)
    with RabbitMQServer(papers=papers) as server:
        yield server


def need(find: Callable[[], str]) -> None:
    """Skip the test where a server's program is not found; under CI fail it."""
    try:
        find()
    except ConfigurationError as error:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(str(error))


@pytest.fixture
def broker(redis_server: RedisServer) -> str:
    """The URL of an empty Redis."""
    return emptied(redis_server)


@pytest.fixture
def setup(broker: str, tmp_path: Path) -> Iterator[Setup]:
    """The tests' app on an empty Redis; its workers end with the test."""
    with open_setup(broker, tmp_path) as setup:
        yield setup


@pytest.fixture
def rabbit_setup(
    rabbitmq_server: RabbitMQServer, redis_server: RedisServer, tmp_path: Path
) -> Iterator[Setup]:
    """The tests' app on RabbitMQ with its results in an empty Redis."""
    with open_setup(rabbitmq_server.url, tmp_path, backend=emptied(redis_server)) as setup:
        yield setup


@pytest.fixture(params=["setup", "rabbit_setup"], ids=["redis", "rabbitmq"])
def each_setup(request: pytest.FixtureRequest) -> Setup:
    """The tests' app on each of the brokers in turn."""
    return request.getfixturevalue(request.param)


@pytest.fixture(scope="module")
def lasting_redis(redis_server: RedisServer) -> Iterator[RedisServer]:
    """A Redis that no test of the module makes empty."""
    assert redis_server.child.exit_code is None  # Redis is installed
    with RedisServer() as server:
        yield server


@pytest.fixture(scope="module")
def redis_setups(
    request: pytest.FixtureRequest,
    lasting_redis: RedisServer,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[SharedSetups]:
    """Workers on Redis of the app in the module's ``MODULE``, which go on to its last test."""
    folder, app = tmp_path_factory.mktemp("redis"), _app_of(request)
    with SharedSetups("redis", lasting_redis.url, lasting_redis, folder, app) as setups:
        yield setups


@pytest.fixture(scope="module")
def rabbitmq_setups(
    request: pytest.FixtureRequest,
    lasting_redis: RedisServer,
    rabbitmq_server: RabbitMQServer,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[SharedSetups]:
    """The same on RabbitMQ, with their results in Redis."""
    folder, app = tmp_path_factory.mktemp("rabbitmq"), _app_of(request)
    with SharedSetups("rabbitmq", rabbitmq_server.url, lasting_redis, folder, app) as setups:
        yield setups


def _app_of(request: pytest.FixtureRequest) -> str:
    app: str = getattr(request.module, "MODULE", "tests.apps.tasks")
    return app


@pytest.fixture
def redis_shared(redis_setups: SharedSetups) -> Iterator[SharedSetup]:
    """The tests' app on Redis with a worker of one process, which harmless tests share."""
    with entered(redis_setups.find()) as shared:
        yield shared


@pytest.fixture
def rabbitmq_shared(rabbitmq_setups: SharedSetups) -> Iterator[SharedSetup]:
    """The same on RabbitMQ."""
    with entered(rabbitmq_setups.find()) as shared:
        yield shared


@pytest.fixture(params=["redis", "rabbitmq"])
def each_shared(request: pytest.FixtureRequest) -> SharedSetup:
    """The same on each of the brokers in turn."""
    return request.getfixturevalue(f"{request.param}_shared")


@pytest.fixture
def in_python() -> Callable[..., str]:
    """Run a snippet in a fresh interpreter and return what it prints."""

    def run(code: str, **env: str) -> str:
        done = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            check=False,
            cwd=ROOT,
            env={**os.environ, **env},
            timeout=100,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    return run


__all__ = ["ROOT", "Setup", "Worker", "need"]
