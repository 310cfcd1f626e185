"""Collects what the checks need from the app, its servers, this machine and workers."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import time
import traceback
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

from celery.concurrency import ALIASES
from celery.exceptions import QueueNotFound
from kombu.serialization import registry
from kombu.utils.url import maybe_sanitize_url
from redis.exceptions import NoPermissionError, RedisError

from celery_batch.checks.facts import (
    Facts,
    Machine,
    PayloadFacts,
    Redis,
    Server,
    Torch,
    Worker,
)
from celery_batch.client.publish.templates import why_slow
from celery_batch.client.results.listener import ResultReader, why_not_notified
from celery_batch.cluster.control_client import (
    BrokerBlocked,
    ControlClient,
    impatient_connection,
    url_of,
)
from celery_batch.cluster.state import runs_batches
from celery_batch.compat.fast_paths import FastPaths, PathState
from celery_batch.compat.results import shown_url
from celery_batch.config import Settings
from celery_batch.errors import ConfigurationError
from celery_batch.formatting import did_you_mean
from celery_batch.items.shapes import check_padding_cost
from celery_batch.payloads.app_payloads import AppPayloads
from celery_batch.payloads.store import (
    DirectoryPayloads,
    PayloadStore,
    RedisPayloads,
    StoreError,
    StoreRefused,
)
from celery_batch.runtime.devices import VISIBLE, check_device, gpu_files, usable_cores
from celery_batch.worker.metrics.exporter import address_of
from celery_batch.worker.redis.answer_cache import cache_backend
from celery_batch.worker.scheduling.routing import (
    batch_tasks,
    misplaced_options,
    queue_of,
    routed_queues,
)

__all__ = ["collect"]

#: The names of pools by the paths of their classes.
_POOLS = {path.replace(":", "."): name for name, path in reversed(ALIASES.items()) if path}


def collect(app: Any) -> Facts:
    """Return what is known of an app; takes some seconds."""
    trouble = trouble_of(app)
    tasks = [] if trouble else batch_tasks(app)
    queues = {task.name: queue_of(app, task) for task in tasks}
    devices, broker = devices_of(app), broker_of(app)
    workers: tuple[Worker, ...] | None = None
    unasked = ""
    if not broker.error:
        try:
            workers = workers_of(app, set(queues))
        except BrokerBlocked:
            broker = replace(broker, is_blocked=True)
        except Exception as error:  # noqa: BLE001 (whatever a transport raises)
            unasked = why(error)
    return Facts(
        app=app,
        trouble=trouble,
        tasks=tuple(tasks),
        queues=queues,
        ordinary=() if trouble else ordinary_tasks(app, queues),
        misplaced=() if trouble else tuple(misplaced_options(app)),
        no_serializers=missing_serializers(app, tasks),
        routed=None if trouble else frozenset(routed_queues(app, with_own=True)),
        pool=pool_of(app),
        devices=devices,
        broker=broker,
        results=results_of(app),
        cache=cache_of(app, [task.name for task in tasks if task.cache_ttl is not None]),
        payloads=payloads_of(app) if tasks else None,
        machine=this_machine(wants_gpu=any(name.startswith("cuda") for name in devices or ())),
        workers=workers,
        unasked=unasked,
        depths={} if broker.error else depths_of(app, set(queues.values())),
        version=version("celery-batch"),
        fast_paths=fast_paths_of(app),
    )


def ordinary_tasks(app: Any, queues: Mapping[str, str]) -> tuple[str, ...]:
    """Return the names of ordinary tasks that are routed to a queue of a batch task."""
    found = []
    for name, task in sorted(app.tasks.items()):
        if not name.startswith("celery.") and name not in queues:
            with suppress(QueueNotFound):  # its caller gets the error
                if queue_of(app, task) in queues.values():
                    found.append(name)
    return tuple(found)


#: The modules that serializers need, and how to install these.
_MODULES = {
    "msgpack": ("msgpack", "msgpack"),
    "batch-msgpack": ("msgpack", "'celery-batch[msgpack]'"),
    "yaml": ("yaml", "PyYAML"),
}


def missing_serializers(app: Any, tasks: Sequence[Any]) -> dict[str, str]:
    """Return the serializers of an app that are not installed, and what to do about each."""
    conf, found = app.conf, {}
    named = [conf.result_serializer, *(task.serializer for task in tasks)]
    for each in [*named, *conf.accept_content, *(conf.result_accept_content or ())]:
        name = registry.type_to_name.get(each, each)
        module, package = _MODULES.get(name, ("", ""))
        if module and find_spec(module) is None:
            found[each] = f"pip install {package}, for callers and workers."
        elif "/" not in name and name not in registry.name_to_type:
            near = did_you_mean(name, registry.name_to_type)
            found[each] = near.removeprefix("; ").capitalize() or (
                "Correct its name, or register it, auth by app.setup_security()."
            )
    return found


def fast_paths_of(app: Any) -> tuple[PathState, ...]:
    """Return the states of a caller's fast paths, as the settings are; nothing if one is wrong."""
    try:
        paths = FastPaths.of(app)
        with suppress(Exception):  # no such transport or backend, of which other checks speak
            why_off = {"publish": why_slow(app), "notify": why_not_notified(app)}
            return tuple(
                PathState(name, paths.state(name).reason or reason)
                for name, reason in why_off.items()
            )
    except ConfigurationError:
        pass  # `trouble` says it
    return ()


def trouble_of(app: Any) -> str:
    """Import the app's tasks and return what celery_batch refuses in them."""
    try:
        app.loader.import_default_modules()
        app.finalize()
        for name in Settings.of(app).devices or ():
            check_device(name)
        address_of(app)
        for task in batch_tasks(app):
            check_padding_cost(task)
    except ConfigurationError as error:
        return str(error) if str(error).endswith("?") else f"{error}."
    except ImportError as error:
        return f"The app's tasks cannot be imported: {error}."
    except (Exception, SystemExit) as error:  # noqa: BLE001 (whatever a module does when imported)
        return f"The app's tasks cannot be imported: {_with_place(error)}."
    return ""


def _with_place(error: BaseException) -> str:
    """Return an error of one of the app's modules, and where it was raised."""
    words = f"{type(error).__name__}: {error}"
    library = sysconfig.get_paths()["stdlib"]
    places = [
        f"{frame.filename}, line {frame.lineno}"
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith((library, "<frozen"))
    ]
    if isinstance(error, SyntaxError) or not places:
        return words  # which names the place
    return f"{words} ({places[-1]})"


def pool_of(app: Any) -> str:
    """Return Celery's name of the pool that the settings choose, or the path of its class."""
    pool = str(app.conf.worker_pool)
    return str(_POOLS.get(pool.replace(":", "."), pool))


def devices_of(app: Any) -> tuple[str, ...] | None:
    """Return the setting ``batch_devices``; None if it is not set, or wrong."""
    try:
        return Settings.of(app).devices
    except ConfigurationError:
        return None


def broker_of(app: Any) -> Server:
    """Return the broker of an app."""
    try:
        found = impatient_connection(app)
    except Exception as error:  # noqa: BLE001 (no such transport, or no library for it)
        url = maybe_sanitize_url(str(app.conf.broker_url))
        return Server(kind="unknown", url=url, error=why(error))
    with found as connection:
        kind, url = str(connection.get_transport_cls().driver_type), url_of(connection)
        try:
            connection.ensure_connection(max_retries=1, interval_start=0, interval_max=0)
            if kind == "redis":
                channel = connection.default_channel
                options = tuple(channel.from_transport_options)
                redis = redis_of(channel.client)
                version = f"Redis {redis.info['redis_version']}" if redis.info else ""
                return Server(kind=kind, url=url, version=version, redis=redis, options=options)
            return Server(kind=kind, url=url, version=_product(connection))
        except Exception as error:  # noqa: BLE001 (whatever a transport raises)
            return Server(kind=kind, url=url, error=why(error))


def results_of(app: Any) -> Server:
    """Return the result backend of an app."""
    named = app.conf.result_backend
    if not named or named == "disabled":
        return Server(kind="none")
    url = maybe_sanitize_url(str(named))
    try:
        if not ResultReader.supports(app.backend):
            kind = type(app.backend).__name__.removesuffix("Backend").lower()
            return Server(kind=kind, url=url)
        return _redis_of_results(app.backend)
    except Exception as error:  # noqa: BLE001 (no such backend, or no library for it)
        return Server(kind="unknown", url=url, error=why(error))


def cache_of(app: Any, tasks: Sequence[str]) -> Server | None:
    """Return where the answers of these tasks are kept; None without tasks."""
    if not tasks:
        return None
    try:
        return _redis_of_results(cache_backend(app, tasks[0]))
    except ConfigurationError as error:
        return Server(kind="none", error=str(error))


def _redis_of_results(backend: Any) -> Server:
    """Return the Redis of a result backend, asked with a client that does not wait for long."""
    url = shown_url(backend)
    try:
        return Server(kind="redis", url=url, redis=redis_of(ResultReader(backend).client()))
    except Exception as error:  # noqa: BLE001 (whatever the server or its library raises)
        return Server(kind="redis", url=url, error=why(error))


def depths_of(app: Any, queues: set[str]) -> dict[str, int]:
    """Return how many messages wait in these queues; nothing where the broker cannot say it."""
    with suppress(Exception), closing(ControlClient(app)) as client:
        return client.depths(sorted(queues))
    return {}


def redis_of(client: Any) -> Redis:
    """Return the state of the Redis that a client is connected to."""
    return Redis(
        info=_if_permitted(client.info),
        snapshots=_snapshots(client),
        scripts=_if_permitted(lambda: client.execute_command("EVAL", "return 1", 0)) is not None,
        ahead=_if_permitted(lambda: _ahead(client)),
    )


def _if_permitted(ask: Callable[[], Any]) -> Any:
    """Return an answer; None where the access rules forbid to ask."""
    try:
        return ask()
    except NoPermissionError:
        return None


def _ahead(client: Any) -> float:
    seconds, micros = client.time()
    return float(seconds + micros / 1e6 - time.time())


def _snapshots(client: Any) -> bool | None:
    try:
        return bool(client.config_get("save").get("save"))
    except RedisError:
        return None  # many a hosted Redis keeps its configuration to itself


def _product(connection: Any) -> str:
    properties = getattr(connection.connection, "server_properties", None) or {}
    names = (properties.get(key, "") for key in ("product", "version"))
    return " ".join(name.decode() if isinstance(name, bytes) else str(name) for name in names)


def why(error: Exception) -> str:
    """Return an error of a server or its library as a sentence."""
    words = str(error).strip().rstrip(".") or type(error).__name__
    return f"{words}."


#: What is stored to see whether that works, and the seconds until it expires.
_SAMPLE, _SECONDS = b"celery batch check", 60.0

#: Seconds after which a worker should have deleted a file that has expired: two of its looks.
_OVERDUE = 1200.0


def payloads_of(app: Any) -> PayloadFacts | None:
    """Return the payload store of an app; a small payload is stored there, read and deleted."""
    named = app.conf.get("batch_payload_store")
    try:
        store = AppPayloads.of(app).store
    except ConfigurationError as error:
        return PayloadFacts(kind="unknown", error=why(error))
    except Exception:  # noqa: BLE001 (no such result backend, of which another check speaks)
        return None
    if store is None:
        return PayloadFacts(kind="off" if named is False else "none")
    if isinstance(store, RedisPayloads):
        return _redis_payloads(store)
    if isinstance(store, DirectoryPayloads):
        return _directory_payloads(store)
    return _tried(store, {"kind": urlsplit(store.name).scheme, "url": store.name})


def _redis_payloads(store: RedisPayloads) -> PayloadFacts:
    server = _redis_of_results(store.backend)
    if server.error:
        return PayloadFacts(kind="redis", url=server.url, error=server.error)
    return _tried(store, {"kind": "redis", "url": server.url, "redis": server.redis})


def _directory_payloads(store: DirectoryPayloads) -> PayloadFacts:
    about: dict[str, Any] = {"kind": "directory", "url": str(store.path)}
    try:
        if not store.path.exists():  # which the first payload would make, with our rights
            return PayloadFacts(**about, is_missing=True)
        expired, overdue = store.expired(), store.expired(ago=_OVERDUE)
    except (OSError, StoreError) as error:
        return PayloadFacts(**about, error=why(error))
    return _tried(store, {**about, "expired": len(expired), "overdue": len(overdue)})


def _tried(store: PayloadStore, about: dict[str, Any]) -> PayloadFacts:
    """Return the facts of a store, after a payload of ours has been there and back."""
    key = f"check-{uuid4().hex}"
    try:
        store.put(key, _SAMPLE, _SECONDS)
    except StoreRefused as error:
        return PayloadFacts(**about, refused=why(error))
    except StoreError as error:
        return PayloadFacts(**about, error=why(error))
    try:
        (data,) = store.get([key], [len(_SAMPLE)])
        store.delete([key])
    except StoreError as error:
        lost = f"it takes values, and does not return or delete them: {why(error)}"
        return PayloadFacts(**about, error=lost)
    if data != _SAMPLE:
        return PayloadFacts(**about, error="what is stored there does not come back.")
    return PayloadFacts(**about)


#: Seconds; importing torch from a cold disk takes long.
_PROGRAM_TIMEOUT = 120.0

#: Run in a process of its own, so that neither torch nor the driver is loaded in this one.
_ASK_TORCH = """
import json, torch
build = torch.version.cuda and f"CUDA {torch.version.cuda}"
build = build or (torch.version.hip and f"ROCm {torch.version.hip}") or ""
print(json.dumps([torch.__version__, build, torch.cuda.device_count()]))
"""


def this_machine(*, wants_gpu: bool = False) -> Machine:
    """Return this machine; torch is asked for GPUs if there is one, or a setting names one."""
    gpus, driver = _gpus()
    return Machine(
        cpus=usable_cores(),
        gpus=gpus,
        driver=driver,
        visible=os.environ.get(VISIBLE),
        torch=_torch() if gpus or wants_gpu else None,  # which takes seconds
    )


def _gpus() -> tuple[tuple[str, ...] | None, str]:
    """Return the names of the GPUs, and what is wrong with them."""
    program = shutil.which("nvidia-smi")
    if program is None:  # some containers have a GPU and no such program
        return tuple(map(str, gpu_files())) or None, ""
    try:
        output = _output([program, "--query-gpu=name", "--format=csv,noheader"])
    except subprocess.SubprocessError as error:
        words = str(getattr(error, "stdout", "") or error).strip()
        return None, words.partition("\n")[0]
    return tuple(filter(None, output.splitlines())), ""


def _torch() -> Torch | None:
    if find_spec("torch") is None:
        return None
    try:
        output = _output([sys.executable, "-W", "ignore", "-c", _ASK_TORCH])
    except subprocess.SubprocessError:
        return None
    version, build, gpus = json.loads(output.splitlines()[-1])
    return Torch(version=version, build=build, gpus=gpus)


def _output(command: list[str]) -> str:
    done = subprocess.run(  # noqa: S603 (our own two commands)
        command, capture_output=True, text=True, check=True, timeout=_PROGRAM_TIMEOUT
    )
    return done.stdout.strip()


#: What is wrong with a worker that answers to another command and never to this one.
_NO_STATS = (
    "it answers to celery inspect ping, but not to celery inspect stats; a function among"
    " broker_transport_options, say, is no JSON"
)

#: Seconds in which workers answer.
_REPLY_TIMEOUT = 2.0


def workers_of(app: Any, tasks: Collection[str]) -> tuple[Worker, ...]:
    """Ask all workers of an app; return those that have answered."""
    with closing(ControlClient(app)) as client:
        stats, began = _stats_of(client), time.monotonic()
        earlier: dict[str, Any] = {}
        later: dict[str, Any] = {}
        if any(map(runs_batches, stats.values())):
            earlier = client.ask_batch_workers("batch_stats", _REPLY_TIMEOUT)
            time.sleep(max(0.0, began + _REPLY_TIMEOUT - time.monotonic()))
            later = client.ask_batch_workers("batch_stats", _REPLY_TIMEOUT)
        workers = [
            Worker(
                name=name,
                stats=each,
                earlier=earlier.get(name, {}),
                batch_stats=later.get(name, {}),
            )
            for name, each in sorted(stats.items())
        ]
        if all(worker.tasks.keys() >= set(tasks) for worker in workers):
            return tuple(workers)  # a worker that serves all of them discards none
        queues = client.ask("active_queues", _REPLY_TIMEOUT)
        # Which only tasks of celery-batches have, of those in other workers.
        wanted = {"taskinfoitems": ["flush_every"]}
        known = client.ask("registered", _REPLY_TIMEOUT, arguments=wanted)
    return tuple(
        replace(
            worker,
            queues=_names(queues.get(worker.name), lambda queue: queue["name"]),
            # As in "shop.toy [flush_every=10]".
            knows=_names(known.get(worker.name), lambda task: task.partition(" [")[0]),
            flushes=_flushing(known.get(worker.name)),
        )
        for worker in workers
    )


def _stats_of(client: ControlClient) -> dict[str, Any]:
    """Return the workers' statistics, or an error for those that answer and cannot encode them."""
    stats = client.stats(_REPLY_TIMEOUT)
    if not stats and (running := client.ask("ping", _REPLY_TIMEOUT)):
        stats = client.stats(_REPLY_TIMEOUT)  # it may have been busy
        stats = stats or {name: {"error": _NO_STATS} for name in running}
    return stats


def _flushing(answer: Any) -> frozenset[str]:
    """Return the names of the tasks that a worker has with celery-batches' interface."""
    tasks = answer if isinstance(answer, list) else ()
    return frozenset(task.partition(" [")[0] for task in tasks if "flush_every=" in task)


def _names(answer: Any, name: Callable[[Any], str]) -> frozenset[str] | None:
    """Return the names in an answer, or None where it is no answer but an error."""
    return frozenset(map(name, answer)) if isinstance(answer, list) else None
