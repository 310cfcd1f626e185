"""Each check alone: what it finds in which facts, and that its fix is named."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import timedelta
from functools import partial
from inspect import isfunction
from pathlib import Path

import pytest
from celery import Celery
from kombu import Queue

from celery_batch import BatchTask, Model
from celery_batch.batches import Batches
from celery_batch.checks import (
    broker_checks,
    machine_checks,
    results_checks,
    tasks_checks,
    workers_checks,
)
from celery_batch.checks.checkup import CHECKS, checkup
from celery_batch.checks.facts import Facts, Machine, PayloadFacts, Redis, Server, Torch, Worker
from celery_batch.checks.finding import Level
from celery_batch.compat.fast_paths import PathState

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "check-and-top.md"
A100 = ("NVIDIA A100",)
INFO = {"redis_version": "7.2.0", "aof_enabled": 1}
COSTS = {"max_batch_cost": 100, "padded": True, "sort_window": 8, "model_calls": 0}
COSTS |= {"cost": 0.0, "padded_cost": 0.0, "rows": 0, "max_batch_size": 1024}
REPORT = {"served": True, "max_batch_size": 8, "max_wait": 0.01}
POOL = {"implementation": "celery.concurrency.prefork:TaskPool"}


def checked(options=None, settings=None, **others):
    """Return facts of an app with one task of these options, and these settings."""
    app = Celery("checked", broker="memory://", set_as_current=False)
    app.conf.update({"worker_concurrency": 1, **(settings or {})})
    options = {"max_batch_size": 8, **(options or {})}

    @app.task(base=BatchTask, name="t", shared=False, **options)
    def t(x):
        return x

    redis = Server(kind="redis", redis=Redis(info=INFO))
    facts = {"broker": redis, "results": redis, "machine": Machine(), "workers": (served(),)}
    tasks = {"tasks": (app.tasks["t"],), "queues": {"t": "celery"}}
    return Facts(app=app, version="1", **{**tasks, **facts, **others})


def served(report=None, pool=None, stats=None, devices=(), **others):
    """Return a worker that serves the task, and its answers."""
    began = {"tasks": {"t": REPORT}}
    now = {"tasks": {"t": {**REPORT, **(report or {})}}, "devices": devices}
    stats = {"pool": {**POOL, **(pool or {})}, "batches": {}, "celery_batch": "1", **(stats or {})}
    return Worker(**{"name": "w", "stats": stats, "earlier": began, "batch_stats": now, **others})


GOOD = checked()


def made(facts):
    """Return facts, made now where that takes an app of their own."""
    return facts() if callable(facts) else facts


def task(**options):
    """Return a function that makes facts with one task of these options."""
    return partial(checked, options)


def conf(**settings):
    """Return a function that makes facts with these settings."""
    return partial(checked, settings=settings)


def broker(kind="redis", facts=GOOD, *, snapshots=True, scripts=True, ahead=0.0, **info):
    """Return facts with a Redis of these properties for a broker, or with another broker."""
    redis = Redis(info=INFO | info, snapshots=snapshots, scripts=scripts, ahead=ahead)
    redis = redis if kind == "redis" else None
    version = f"Redis {redis.info['redis_version']}" if redis else ""
    server = Server(kind=kind, url="redis://here", version=version, redis=redis)
    return replace(made(facts), broker=server)


def results(kind="redis", error="", **info):
    """Return facts with this result backend."""
    redis = Redis(info=INFO | info) if kind == "redis" and not error else None
    return replace(GOOD, results=Server(kind=kind, url="redis://there", error=error, redis=redis))


def cache(kind, error=""):
    """Return facts with a cache of answers."""
    return replace(GOOD, cache=Server(kind=kind, url="redis://cache", error=error))


def payloads(kind="redis", facts=GOOD, **options):
    """Return facts with this payload store, or with a Redis of these properties."""
    info = options.pop("info", None)
    redis = Redis(info=INFO | info) if info is not None else None
    found = PayloadFacts(kind=kind, url=f"{kind}://stored", redis=redis, **options)
    return replace(made(facts), payloads=found)


def machine(devices=None, concurrency=1, **options):
    """Return a function that makes facts with this machine, and these settings about it."""
    settings = {"worker_concurrency": concurrency}
    facts = {"devices": devices, "machine": Machine(**options), "workers": ()}
    return partial(checked, settings=settings, **facts)


def worker(waiting=0, **options):
    """Return facts with one worker and its answers, and messages in the queue."""
    return replace(GOOD, workers=(served(**options),), depths={"celery": waiting})


class Shouting(Model):
    """A model."""

    def predict(self, batch):
        """Return each item."""
        return batch


def unrouted(queue="slow", model=Shouting, knows="t", stats=None, **others):
    """Return facts with a task that is routed to "celery", and a worker of another queue."""
    answers = {"batch_stats": {"tasks": {}}, "stats": stats or served().stats}
    found = Worker(name="w", queues=frozenset({queue}), knows=frozenset({knows}), **answers)
    facts = checked({"model": model} if model else {})
    return replace(facts, **{"workers": (found,), "routed": frozenset({"celery"}), **others})


def storing(theirs, kind="redis", **options):
    """Return facts with a worker that has this payload store, and callers with one of a kind."""
    facts = worker(stats={} if theirs is None else {"batch_payload_store": theirs})
    return payloads(kind, facts, **options)


def latency(**counts):
    """Return facts with a worker that has counted these results and refusals lately."""
    found = {"target_latency": 0.2, "latency": counts}
    began = {**REPORT, **found, "latency": dict.fromkeys(counts, 0)}
    return worker(report=found, earlier={"tasks": {"t": began}})


def saying(**reasons):
    """Return facts with a worker that says which of its fast paths are on."""
    return worker(stats={"batch_fast_paths": {"fetch": "", **reasons}})


def flushing(concurrency=None):
    """Return facts of an app whose only batch task has the interface of celery-batches."""
    app = Celery("flushing", broker="memory://", set_as_current=False)
    app.conf.worker_concurrency = concurrency

    @app.task(base=Batches, name="f", shared=False)
    def f(requests):
        return len(requests)

    tasks, machine = (app.tasks["f"],), Machine(cpus=4)
    return replace(GOOD, app=app, tasks=tasks, workers=(), machine=machine)


def slow(seconds, **limits):
    """Return what makes facts with a task of these limits, whose batches take so long."""
    return partial(checked, limits, workers=(served({"model": {"p99": seconds}}),))


def test_what_redis_keeps_to_itself_is_neither_good_nor_bad():
    """Checks of what access rules keep from us say nothing."""
    for check in (broker_checks.eviction, broker_checks.persistence, broker_checks.clock):
        assert [] == list(check(replace(GOOD, broker=HIDDEN)))

    assert "ok" == next(results_checks.results(replace(GOOD, results=HIDDEN))).level


@pytest.mark.parametrize(
    "facts",
    [
        saying(intake="task events are on", overlap="this worker may have 2 processes"),
        replace(GOOD, fast_paths=[PathState("intake", "worker_send_task_events is on")]),
    ],
    ids=["worker", "setting"],
)
def test_task_events_are_what_a_user_of_flower_wants(facts):
    """They are no fault; the sentence says what they cost."""
    *_, found = tasks_checks.fast_paths(made(facts))

    assert (Level.OK, "") == (found.level, found.fix)
    assert "is on). Flower needs them; they cost three" in found.says.replace("are on", "is on")


def test_nothing_is_wrong_where_all_is_well():
    """A sound setup has no warning and no problem, and nothing to mend."""
    found = [finding for _, finding in checkup(GOOD)]

    assert [] == [finding for finding in found if finding.level is not Level.OK or finding.fix]
    assert {Level.OK} == {finding.level for finding in found}


#: A worker that runs the task with the package celery-batches.
FLUSHES = Worker(
    name="old",
    stats={"pool": POOL},
    **{key: frozenset({"t"}) for key in ("knows", "flushes")},
    queues=frozenset({"celery"}),
)

NO_LEASE = {"batch_bulk": False, "broker_transport_options": {"visibility_timeout": 20}}

#: A Redis whose access rules keep INFO and TIME from us.
HIDDEN = Server(kind="redis", redis=Redis(info=None, snapshots=None, ahead=None))

QUORUM = [Queue("celery", queue_arguments={"x-queue-type": "quorum"})]


def limited(version, **arguments):
    """Return facts with a RabbitMQ of a version, and a quorum queue with more arguments."""
    named = {f"x-{name.replace('_', '-')}": value for name, value in arguments.items()}
    queue = Queue("celery", queue_arguments={"x-queue-type": "quorum", **named})
    facts = broker("amqp", conf(task_queues=[queue]))
    return replace(facts, broker=replace(facts.broker, version=f"RabbitMQ {version}"))


NEW = PathState("fetch", "kombu 9.0.0 is not tested")
BY_HAND = PathState("store", "batch_disable_fast_paths")
EVENTS = PathState("publish", "task_send_sent_event is on")

WRONG = [
    (
        workers_checks.serving,
        replace(GOOD, workers=None, unasked="No permission."),
        "problem",
        "could not be asked: No permission.",
    ),
    (
        workers_checks.serving,
        worker(batch_stats={"error": "KeyError('x')"}),
        "problem",
        "w could not say what it serves: KeyError('x')",
    ),
    (
        workers_checks.serving,
        worker(batch_stats={}),
        "warning",
        "and w did not say in time",
    ),
    (
        broker_checks.broker,
        replace(GOOD, broker=HIDDEN),
        "warning",
        "does not let this user run INFO",
    ),
    (
        tasks_checks.settings,
        replace(GOOD, trouble="batch_max_sice: no such setting."),
        "problem",
        "sice",
    ),
    (tasks_checks.settings, conf(BATCH_MAX_SIZE=4), "warning", "BATCH_MAX_SIZE is not read"),
    (tasks_checks.tasks, replace(GOOD, tasks=()), "problem", "no batch task"),
    (
        tasks_checks.tasks,
        replace(GOOD, misplaced=("t: max_wait in an ordinary task; define it anew",)),
        "warning",
        "Define it anew.",
    ),
    (tasks_checks.policies, task(max_wait=10.0), "warning", "write 0.01"),
    (tasks_checks.policies, task(linger=5.0), "warning", "linger=5"),
    (tasks_checks.policies, task(target_latency=200.0), "warning", "write 0.2"),
    (
        tasks_checks.policies,
        task(target_latency=0.1, max_wait=0.5),
        "warning",
        "target_latency=0.1 is below max_wait=0.5",
    ),
    (tasks_checks.fast_paths, replace(GOOD, fast_paths=[NEW]), "warning", "install releases"),
    (tasks_checks.fast_paths, replace(GOOD, fast_paths=[BY_HAND]), "warning", "Leave out what is"),
    (tasks_checks.fast_paths, replace(GOOD, fast_paths=[EVENTS]), "warning", "Leave out what is"),
    (
        tasks_checks.fast_paths,
        saying(intake="task events are on", store="kombu 9.0.0 is not tested"),
        "warning",
        "install releases",
    ),
    (
        tasks_checks.fast_paths,
        saying(store="kombu 9.0.0 is not tested", trace="store is off"),
        "warning",
        "install releases",
    ),
    (tasks_checks.eager, conf(task_always_eager=True), "problem", "task_always_eager"),
    (tasks_checks.prefetch, conf(worker_prefetch_multiplier=0), "warning", "the 24 messages"),
    (tasks_checks.prefetch, conf(worker_eta_task_limit=23), "warning", "Raise it to 24"),
    (tasks_checks.prefetch, conf(worker_disable_prefetch=True), "warning", "two batches"),
    (tasks_checks.limits, task(time_limit=5, soft_time_limit=5), "warning", "before the soft"),
    (
        tasks_checks.limits,
        replace(task(time_limit=5)(), pool="threads"),
        "warning",
        "threads pool ignores",
    ),
    (tasks_checks.acks, task(acks_late=False), "warning", "loses the batch"),
    (tasks_checks.rates, task(rate_limit="10/s"), "warning", "10/s"),
    (machine_checks.pool, replace(GOOD, pool="gevent"), "problem", "not supported"),
    (machine_checks.pool, replace(GOOD, pool="eventlet"), "problem", "not supported"),
    (machine_checks.pool, replace(GOOD, pool="solo"), "warning", "reads no messages"),
    (machine_checks.pool, replace(GOOD, pool="my:Pool"), "warning", "does not know"),
    (machine_checks.replacing, conf(worker_max_tasks_per_child=100), "warning", "counts batches"),
    (machine_checks.replacing, conf(worker_max_memory_per_child=100), "warning", "KiB"),
    (machine_checks.gpu, machine(devices=("cuda:0",)), "warning", "nothing shows a GPU"),
    (
        machine_checks.gpu,
        machine(devices=("cuda:0",), torch=Torch(version="2.9")),
        "problem",
        "2.9 sees no GPU",
    ),
    (machine_checks.gpu, machine(driver="no driver."), "warning", "does not work: no driver"),
    (machine_checks.gpu, machine(gpus=A100, visible="-1"), "warning", "hides every GPU"),
    (machine_checks.gpu, machine(devices=("cpu",), gpus=A100), "warning", "use every GPU"),
    (machine_checks.gpu, machine(gpus=A100, visible=""), "warning", "hides every GPU"),
    (machine_checks.gpu, machine(gpus=A100, torch=Torch(version="2.9")), "problem", "without CUDA"),
    (
        machine_checks.gpu,
        machine(gpus=A100, torch=Torch(version="2.9", build="CUDA 12.8")),
        "problem",
        "sees no GPU",
    ),
    (machine_checks.devices, machine(gpus=A100, concurrency=2), "warning", "--concurrency=1"),
    (
        machine_checks.devices,
        machine(gpus=4 * A100, visible="2", concurrency=2),
        "warning",
        "1 GPU.",
    ),
    (machine_checks.devices, machine(concurrency=None, cpus=4), "warning", "has 4 processes"),
    (
        machine_checks.devices,
        machine(devices=("cuda:0", "cuda:1"), gpus=4 * A100, concurrency=3),
        "warning",
        "--concurrency=2",
    ),
    (
        broker_checks.broker,
        replace(GOOD, broker=Server(kind="redis", error="refused.")),
        "problem",
        "refused",
    ),
    (broker_checks.broker, broker("sqs"), "warning", "one by one"),
    (broker_checks.broker, broker(redis_version="5.0.7"), "warning", "5.0.7 knows no BLMOVE"),
    (broker_checks.broker, broker(role="slave", slave_read_only=1), "problem", "read-only replica"),
    (broker_checks.broker, broker(scripts=False), "warning", "may not run scripts"),
    (broker_checks.broker, conf(batch_bulk=False), "warning", "one by one"),
    (
        broker_checks.eviction,
        broker(maxmemory=1 << 20, maxmemory_policy="allkeys-lru"),
        "problem",
        "throws away messages",
    ),
    (
        broker_checks.eviction,
        broker(maxmemory=1 << 20, maxmemory_policy="volatile-lru"),
        "warning",
        "evict workers' leases",
    ),
    (
        broker_checks.eviction,
        broker(maxmemory=8 << 20, used_memory=8 << 20),
        "problem",
        "uses 8 MiB, all of its maxmemory",
    ),
    (
        broker_checks.eviction,
        broker(maxmemory=100, used_memory=95),
        "warning",
        "95% of its maxmemory",
    ),
    (broker_checks.persistence, broker(aof_enabled=0), "warning", "snapshots only"),
    (
        broker_checks.persistence,
        broker(aof_enabled=0, snapshots=False),
        "warning",
        "keeps nothing on disk",
    ),
    (
        broker_checks.persistence,
        broker(aof_enabled=0, snapshots=None),
        "warning",
        "no append-only file",
    ),
    (broker_checks.visibility, conf(**NO_LEASE), "problem", "run twice"),
    (
        broker_checks.visibility,
        broker("amqp", task(time_limit=700)),
        "warning",
        "consumer_timeout",
    ),
    (broker_checks.priorities, broker("amqp"), "warning", "task_queue_max_priority"),
    (
        broker_checks.priorities,
        broker("amqp", conf(task_queues=QUORUM)),
        "warning",
        "above and below 5",
    ),
    (
        broker_checks.priorities,
        broker("amqp", conf(task_queue_max_priority=10)),
        "warning",
        "task_default_priority=5",
    ),
    (
        broker_checks.priorities,
        conf(broker_transport_options={"priority_steps": [0]}),
        "warning",
        "priority_steps",
    ),
    (
        broker_checks.broker,
        replace(
            GOOD, broker=Server(kind="amqp", url="amqp://", version="RabbitMQ", is_blocked=True)
        ),
        "problem",
        "RabbitMQ at amqp:// accepts no messages at the moment",
    ),
    (
        broker_checks.deliveries,
        limited("3.10.8", delivery_limit=5),
        "warning",
        "limit of 5 and, as far as the app knows, no dead-letter exchange",
    ),
    (broker_checks.deliveries, limited("4.0.2"), "warning", "limit of 20"),
    (broker_checks.deliveries, limited("4.0.2"), "warning", "when they were stopped or killed"),
    (broker_checks.deliveries, limited("4.3.0"), "warning", "when they were killed"),
    (broker_checks.confirms, broker("amqp"), "warning", "confirm_publish"),
    (
        broker_checks.options,
        replace(
            conf(broker_transport_options={"visibilty_timeout": 7200, "my_own": 1})(),
            broker=Server(kind="redis", options=("visibility_timeout",)),
        ),
        "warning",
        "mean 'visibility_timeout'",
    ),
    (broker_checks.clock, broker(ahead=-7.25), "warning", "-7.2 s"),
    (results_checks.results, results("none"), "problem", "no result backend"),
    (results_checks.results, results(error="refused."), "problem", "refused"),
    (results_checks.results, results("database"), "warning", "poll for them"),
    (results_checks.results, results("rpc"), "warning", "only the thread that made a call"),
    (
        results_checks.results,
        results(maxmemory=1, maxmemory_policy="allkeys-lru"),
        "warning",
        "may vanish",
    ),
    (results_checks.results, conf(batch_bulk=False), "warning", "no caller is notified"),
    (
        results_checks.results,
        saying(store="results are in OwnBackend", notify="results are in OwnBackend"),
        "warning",
        "w notifies no caller (results are in OwnBackend)",
    ),
    (
        results_checks.results,
        replace(GOOD, fast_paths=[PathState("notify", "store is off")]),
        "warning",
        "Callers here are not notified of their answers (store is off)",
    ),
    (results_checks.caches, cache("none", "t.cache_ttl: no; set it"), "problem", "no worker of"),
    (results_checks.caches, cache("none", "batch_cache_url: bad"), "problem", "leave out cache"),
    (results_checks.caches, cache("redis", "refused."), "problem", "refused"),
    (results_checks.payloads, payloads("unknown", error="No s3fs."), "problem", "used: No s3fs."),
    (results_checks.payloads, payloads(error="No."), "problem", "answer at redis://stored: No."),
    (results_checks.payloads, payloads(refused="NOPERM."), "warning", "in their messages: NOPERM"),
    (
        results_checks.payloads,
        storing("file:///shared"),
        "problem",
        "in file:///shared, and callers of this app keep them in redis://stored: every large",
    ),
    (results_checks.payloads, storing(""), "problem", "w keeps large values in their messages"),
    (
        results_checks.payloads,
        storing("redis://other"),
        "warning",
        "in redis://stored: if these are two stores",
    ),
    (results_checks.payloads, payloads("directory", is_missing=True), "warning", "does not exist"),
    (
        results_checks.payloads,
        payloads("directory", expired=1300, overdue=1200),
        "warning",
        "1,200 files in directory://stored expired more than 20 minutes ago",
    ),
    (
        results_checks.payloads,
        payloads("directory", expired=1, overdue=1),
        "warning",
        "1 file in directory://stored",
    ),
    (
        results_checks.payloads,
        payloads(info={"maxmemory": 1, "maxmemory_policy": "volatile-ttl"}),
        "warning",
        "payload store is volatile-ttl",
    ),
    (results_checks.expiry, conf(result_expires=None), "warning", "for ever"),
    (results_checks.expiry, conf(result_expires=5.0), "warning", "5 s"),
    (results_checks.expiry, conf(result_expires=timedelta(seconds=5)), "warning", "5 s"),
    (
        results_checks.serializers,
        task(serializer="msgpack"),
        "problem",
        "'msgpack' to accept_content",
    ),
    (
        results_checks.serializers,
        conf(result_serializer="yaml"),
        "problem",
        "'yaml' to result_accept_content",
    ),
    (
        results_checks.serializers,
        replace(GOOD, no_serializers={"jsn": "Did you mean json?"}),
        "problem",
        "The serializer jsn is not installed here.",
    ),
    (
        results_checks.serializers,
        conf(accept_content=("json", "application/x-python-serialize")),
        "warning",
        "any code",
    ),
    (workers_checks.serving, replace(GOOD, workers=()), "warning", "No worker replies"),
    (
        workers_checks.serving,
        worker(knows=frozenset({"another"}), batch_stats={"tasks": {}}),
        "warning",
        "No worker that answers serves t: none reads queue celery for it, where 0 messages wait.",
    ),
    (
        workers_checks.serving,
        worker(knows=frozenset({"another"}), waiting=3, batch_stats={"tasks": {}}),
        "problem",
        "where 3 messages wait",
    ),
    (
        workers_checks.serving,
        worker(waiting=3, batch_stats={"tasks": {}}),
        "problem",
        "queue celery for it, where 3 messages wait",
    ),
    (
        workers_checks.serving,
        worker(waiting=1, batch_stats={"tasks": {}}),
        "problem",
        "queue celery for it, where 1 message waits",
    ),
    (
        workers_checks.serving,
        unrouted("celery", stats={"pool": POOL}),
        "warning",
        "w runs no celery_batch: it runs t one by one.",
    ),
    (
        workers_checks.serving,
        replace(GOOD, workers=(*GOOD.workers, FLUSHES)),
        "warning",
        "old runs no celery_batch: it runs t in batches of celery-batches.",
    ),
    (
        workers_checks.unrouted,
        replace(worker(report={"routed": False}), tasks=unrouted().tasks),
        "warning",
        "w received t from a queue",
    ),
    (
        workers_checks.unrouted,
        unrouted(),
        "warning",
        "w consumes slow, to which no task is routed",
    ),
    (
        workers_checks.pools,
        worker(pool={"implementation": "celery.concurrency.gevent:TaskPool"}),
        "problem",
        "gevent pool",
    ),
    (workers_checks.pools, worker(pool={"max-tasks-per-child": 5}), "warning", "after 5 batches"),
    (
        workers_checks.sharing,
        worker(pool={"max-concurrency": 4}, devices=("cuda:0", "cuda:1")),
        "warning",
        "4 processes on cuda:0, cuda:1",
    ),
    (
        workers_checks.holding,
        worker(pool={"max-concurrency": 2}, stats={"prefetch_count": 15}),
        "warning",
        "fewer than the 16 rows",
    ),
    (
        workers_checks.filling,
        worker(waiting=200, report=COSTS | {"batches": 50, "rows": 60, "padded_cost": 1000.0}),
        "warning",
        "batches of t cost 20 of 100 on average",
    ),
    (
        tasks_checks.costs,
        task(cost="x", max_batch_cost=100, max_item_cost=150),
        "warning",
        "lower max_item_cost to 100",
    ),
    (
        workers_checks.budgets,
        worker(report=COSTS | {"rows": 60, "model_calls": 50, "cost": 5400.0}),
        "warning",
        "1.2 rows: one costs 90 on average, and max_batch_cost is 100",
    ),
    (
        workers_checks.budgets,
        worker(report=COSTS | {"rows": 60, "outcomes": {"failed": 60}}),
        "warning",
        "all 60 requests of t failed",
    ),
    (
        workers_checks.slowness,
        slow(1.5, time_limit=9, soft_time_limit=2),
        "warning",
        "1.5 s or more",
    ),
    (workers_checks.alike, worker(stats={"celery_batch": "0.9"}), "warning", "w 0.9"),
    (workers_checks.alike, worker(stats={"celery_batch": ""}), "warning", "w (unknown)"),
    (workers_checks.alike, worker(report={"max_batch_size": 4}), "warning", "max_batch_size=4"),
    (
        workers_checks.filling,
        worker(waiting=100, report={"batches": 50, "rows": 60}),
        "warning",
        "1.2 rows of 8",
    ),
    (workers_checks.shedding, latency(refused=3), "warning", "3 requests of t were refused"),
    (workers_checks.shedding, latency(late=25, in_time=75), "warning", "25% of 100 results came"),
    (workers_checks.halted, worker(report={"paused": True}), "warning", "batch_resume t"),
    (workers_checks.health, worker(report={"safe_size": 4}), "warning", "ran out of memory"),
    (workers_checks.health, worker(report={"worker_losses": 3}), "warning", "died 3 times"),
]


@pytest.mark.parametrize(
    ("check", "facts", "level", "words"),
    WRONG,
    ids=[f"{check.__name__}-{words}" for check, _, _, words in WRONG],
)
def test_each_fault_is_named_with_its_fix(check, facts, level, words):
    """A check finds its fault, at its level, with a sentence about it and a way out."""
    (found,) = [finding for finding in check(made(facts)) if finding.level is not Level.OK]

    assert level == found.level
    assert words in f"{found.says} {found.fix}"
    assert found.says.endswith(".")
    assert found.fix


def test_every_check_has_a_fault_that_it_finds():
    """No check is without a test of what it warns of."""
    assert {*CHECKS.values()} == {check for check, *_ in WRONG}


def public_functions():
    """Return the public functions of the modules of checks."""
    modules = (broker_checks, machine_checks, results_checks, tasks_checks)
    return {
        value
        for module in (*modules, workers_checks)
        for name, value in vars(module).items()
        if isfunction(value) and value.__module__ == module.__name__ and not name.startswith("_")
    }


def test_every_check_has_an_id():
    """No check is forgotten, and none has two ids."""
    assert sorted(map(id, CHECKS.values())) == sorted(map(id, public_functions()))


def test_every_id_is_documented():
    """The page has a row for each check, in their order, and no other row."""
    section = PAGE.read_text().split("### What it checks")[1].split("\n#")[0]

    assert [*CHECKS] == re.findall(r"^\| `(.+?)` \|", section, re.MULTILINE)


FINE = [
    (tasks_checks.tasks, GOOD, "Batch tasks: t."),
    (tasks_checks.policies, task(max_batch_size=1, max_wait=10.0), "not batched"),
    (
        tasks_checks.limits,
        task(time_limit=16, soft_time_limit=8),
        "8 s are for a whole batch of up to 8",
    ),
    (tasks_checks.prefetch, conf(worker_eta_task_limit=24), "24 messages"),
    (
        machine_checks.gpu,
        machine(gpus=A100, torch=Torch(version="2", build="CUDA 12.8", gpus=1)),
        "A100",
    ),
    (machine_checks.gpu, machine(), "on the CPU"),
    (
        machine_checks.gpu,
        machine(devices=("cuda:0",), torch=Torch(version="2", build="ROCm 6", gpus=1)),
        "sees 1 GPUs",
    ),
    (machine_checks.gpu, machine(devices=("cpu",), driver="no driver."), "on the CPU"),
    (
        tasks_checks.prefetch,
        replace(conf(worker_concurrency=8, worker_eta_task_limit=24)(), pool="solo"),
        "24 messages",
    ),
    (
        machine_checks.pool,
        replace(GOOD, pool="threads", workers=None),
        "The pool is threads by the settings here.",
    ),
    (broker_checks.broker, broker("amqp"), "amqp answers"),
    (broker_checks.eviction, broker(maxmemory_policy="allkeys-lru"), "no limit of memory"),
    (broker_checks.visibility, conf(broker_transport_options={"visibility_timeout": 1}), "leased"),
    (broker_checks.visibility, conf(batch_bulk=False), "above what a batch may take"),
    (
        results_checks.results,
        replace(task(ignore_result=True)(), results=Server(kind="none")),
        "stores results",
    ),
    (results_checks.serializers, conf(accept_content=("application/json",)), "application/json"),
    (results_checks.caches, cache("redis"), "kept in Redis at redis://cache"),
    (results_checks.payloads, payloads("off"), "batch_payload_store is False"),
    (results_checks.payloads, payloads("none"), "names no other place"),
    (results_checks.payloads, payloads(), "in Redis at redis://stored"),
    (
        results_checks.payloads,
        payloads(info={"maxmemory_policy": "allkeys-lru"}),
        "beside their messages, in Redis",
    ),
    (results_checks.payloads, storing(None), "in Redis at redis://stored"),
    (
        results_checks.payloads,
        replace(storing("file:///other"), queues={"other": "celery"}),
        "in Redis at redis://stored",
    ),
    (workers_checks.shedding, latency(late=1, in_time=999), "0% of 1000 results came later"),
    (results_checks.payloads, storing("redis://user:**@stored"), "in Redis at redis://stored"),
    (results_checks.payloads, storing("file://directory://stored", "directory", expired=3), "3 of"),
    (results_checks.payloads, payloads("s3"), "in the object store at s3://stored"),
    (results_checks.payloads, payloads("directory", expired=3), "3 of its files have expired"),
    (
        workers_checks.budgets,
        worker(report=COSTS | {"rows": 60, "model_calls": 20, "cost": 60.0, "padded_cost": 60.0}),
        "padded and sort_window do nothing",
    ),
    (
        tasks_checks.prefetch,
        task(cost="x", max_batch_cost=100, max_batch_size=None),
        "192 messages",
    ),
    (
        workers_checks.alike,
        worker(report={"max_wait": 0.5, "task_says": {"max_wait": 0.01}}),
        "max_wait=0.5; the app says 8 and 0.01: it was set",
    ),
]


@pytest.mark.parametrize(("names", "listed"), [("ab", "(a, b)"), ("abcd", "(a, b, c and 1 more)")])
def test_ordinary_tasks_in_a_batch_task_s_queue_are_named(names, listed):
    """A worker holds as many of them, too, unless messages are read in bulk on Redis."""
    shared = replace(GOOD, ordinary=tuple(names))
    _, found = tasks_checks.prefetch(replace(shared, broker=Server(kind="amqp")))
    _, limited = tasks_checks.prefetch(shared)

    assert [Level.OK] * 2 == [found.level, limited.level]
    assert f"batch tasks {listed}: a worker holds as many of their messages" in found.says
    assert f"batch tasks {listed}: a worker holds as many of them as worker_pref" in limited.says


@pytest.mark.parametrize(
    ("conf", "says"),
    [
        ({"worker_prefetch_multiplier": 0}, "holds any number of them"),
        ({"worker_disable_prefetch": True}, "holds only those of them that run"),
    ],
)
def test_number_of_ordinary_tasks_is_that_of_the_settings(conf, says):
    """A multiplier of 0 is no limit, and with a disabled prefetch it is not the multiplier's."""
    app = Celery()
    app.conf.update(conf)
    facts = replace(GOOD, app=app, ordinary=("a",))
    *_, found = tasks_checks.prefetch(facts)

    assert f"share a queue with batch tasks (a): a worker {says}" in found.says
    assert "multiplier allows" not in found.says


def test_a_cost_that_is_the_same_in_each_batch_is_named():
    """The parameter is one that batch_by names, too."""
    app = Celery("keyed", broker="memory://", set_as_current=False)
    options = {"batch_by": "lang", "cost": "lang", "max_batch_cost": 9}

    @app.task(base=BatchTask, name="k", shared=False, **options)
    def k(text, lang):
        return [lang for _ in text]

    (found,) = tasks_checks.costs(replace(GOOD, app=app, tasks=(app.tasks["k"],)))

    assert Level.WARNING == found.level
    assert "cost and batch_by both name lang" in found.says


def test_items_that_are_longer_than_each_length_are_named():
    """Where the cost of an item is its length."""
    app = Celery("shaped", broker="memory://", set_as_current=False)
    shapes = {"batch_sizes": (1, 4), "batch_lengths": (8, 16), "example": lambda n: "x" * n}
    options = {**shapes, "cost": "text", "max_batch_cost": 64}

    @app.task(base=BatchTask, name="long", shared=False, padded=True, max_item_cost=17, **options)
    def long(text):
        return text

    @app.task(base=BatchTask, name="fits", shared=False, padded=True, max_item_cost=16, **options)
    def fits(text):
        return text

    @app.task(base=BatchTask, name="other", shared=False, max_item_cost=17, **options)
    def other(text):
        return text

    tasks = tuple(app.tasks[name] for name in ("long", "fits", "other"))
    (found,) = tasks_checks.costs(replace(GOOD, app=app, tasks=tasks))

    assert Level.WARNING == found.level
    assert found.says.startswith(
        "long: an item may cost 17 (max_item_cost), and the largest of batch_lengths is 16"
    )
    assert found.fix == "Lower max_item_cost to 16, or add a larger length."


def test_a_cost_of_which_each_batch_has_one_row_is_named():
    """Two rows of the smallest length are too much."""
    app = Celery("narrow", broker="memory://", set_as_current=False)
    shapes = {"batch_sizes": (1, 4), "batch_lengths": (8, 16), "example": lambda n: "x" * n}

    @app.task(base=BatchTask, name="one", cost="text", max_batch_cost=15, padded=True, **shapes)
    def one(text):
        return text

    @app.task(base=BatchTask, name="two", cost="text", max_batch_cost=16, padded=True, **shapes)
    def two(text):
        return text

    tasks = (app.tasks["one"], app.tasks["two"])
    (found,) = tasks_checks.costs(replace(GOOD, app=app, tasks=tasks))

    assert Level.WARNING == found.level
    assert "one: two rows cost at least 16, padded to the smallest of batch_lengths" in found.says


@pytest.mark.parametrize(
    ("check", "facts", "words"), FINE, ids=[f"{check.__name__}-{words}" for check, _, words in FINE]
)
def test_what_is_no_fault_is_said_to_be_fine(check, facts, words):
    """A check leaves alone what looks like its fault and is none, and says what it saw."""
    (found,) = check(made(facts))

    assert Level.OK == found.level
    assert words in found.says


QUIET = [
    (workers_checks.filling, worker(waiting=16, report={"batches": 50, "rows": 60})),
    (workers_checks.filling, worker(waiting=100, report={"batches": 4, "rows": 4})),
    (workers_checks.filling, worker(waiting=100, report={"batches": 50, "rows": 200})),
    (workers_checks.serving, replace(GOOD, workers=None)),
    (
        workers_checks.unrouted,
        unrouted("mail", routed=frozenset({"celery", "mail"})),
    ),
    (workers_checks.unrouted, unrouted(model=None)),
    (workers_checks.unrouted, unrouted(knows="u")),
    (workers_checks.unrouted, unrouted(routed=None)),
    (workers_checks.unrouted, unrouted(stats={"pool": POOL})),
    (workers_checks.unrouted, worker(report={"routed": False})),
    (machine_checks.devices, flushing()),
    (machine_checks.devices, partial(flushing, concurrency=2)),
    (workers_checks.health, worker(report={"safe_size": 8})),
    (
        workers_checks.slowness,
        slow(0.9, time_limit=2),
    ),
    (workers_checks.slowness, worker(report={"model": {"p99": 0.9}})),
    (workers_checks.slowness, task(time_limit=2)),
    (workers_checks.holding, worker(pool={"max-concurrency": 2}, stats={"prefetch_count": 16})),
    (workers_checks.holding, worker(pool={"max-concurrency": 2}, stats={"prefetch_count": 0})),
    (workers_checks.sharing, worker(pool={"max-concurrency": 2}, devices=("cpu",))),
    (workers_checks.sharing, worker(pool={"max-concurrency": 2}, devices=("cuda:0", "cuda:1"))),
    (
        workers_checks.sharing,
        worker(
            devices=("cuda:0",),
            pool={"implementation": "celery.concurrency.thread:TaskPool", "max-concurrency": 2},
        ),
    ),
    (broker_checks.options, conf(broker_transport_options={"visibilty_timeout": 7200})),
    (machine_checks.devices, machine(gpus=2 * A100, concurrency=2)),
    (
        machine_checks.devices,
        replace(machine(gpus=A100, concurrency=None, cpus=8)(), workers=GOOD.workers),
    ),
    (broker_checks.eviction, broker("amqp")),
    (broker_checks.persistence, broker("amqp")),
    (broker_checks.visibility, broker("amqp")),
    (broker_checks.clock, broker("amqp")),
    (broker_checks.clock, broker(ahead=0.9)),
    (
        broker_checks.priorities,
        broker("amqp", conf(task_queue_max_priority=10, task_default_priority=1)),
    ),
    (
        broker_checks.priorities,
        broker("amqp", conf(task_queues=QUORUM, task_default_priority=5)),
    ),
    *(
        (broker_checks.priorities, broker("amqp", conf(task_queues=[own], task_default_priority=1)))
        for own in (
            Queue("celery", max_priority=5),
            Queue("celery", queue_arguments={"x-max-priority": 10}),
        )
    ),
    (broker_checks.deliveries, GOOD),
    (broker_checks.deliveries, broker("amqp")),
    (broker_checks.deliveries, limited("3.10.8")),
    (broker_checks.deliveries, limited("4.0.2", delivery_limit=-1)),
    (broker_checks.deliveries, limited("4.0.2", dead_letter_exchange="")),
    (results_checks.expiry, results("rpc")),
    (results_checks.caches, GOOD),
    (results_checks.payloads, GOOD),
    (results_checks.payloads, payloads(facts=replace(GOOD, tasks=()), error="Away.")),
    (workers_checks.budgets, worker(report=COSTS)),
    (workers_checks.budgets, worker(report=COSTS | {"rows": 9, "model_calls": 4, "cost": 900.0})),
    (tasks_checks.costs, task(cost="x", max_batch_cost=100, max_item_cost=100)),
]


@pytest.mark.parametrize(("check", "facts"), QUIET)
def test_what_cannot_be_known_is_not_judged(check, facts):
    """A check says nothing where it knows too little, or where it has nothing to look at."""
    assert [] == list(check(made(facts)))


@pytest.mark.parametrize(
    ("queues", "knows", "discards"),
    [
        ({"celery"}, {"u"}, True),
        ({"celery"}, set(), True),
        ({"celery"}, {"t", "u"}, False),
        ({"other"}, {"u"}, False),
        ({"celery"}, None, False),
        (None, {"u"}, False),
    ],
)
def test_a_worker_that_discards_messages_is_named(queues, knows, discards):
    """A worker that consumes a task's queue without knowing it is a problem beside any other."""
    beside = Worker(name="plain", stats={}, queues=queues, knows=knows)
    found = workers_checks.serving(replace(GOOD, workers=(*GOOD.workers, beside)))
    problems = [each.says for each in found if each.level is Level.PROBLEM]
    said = "plain consumes queue celery and does not know t: it discards each message"

    assert discards == bool(problems)
    assert all(each.startswith(said) for each in problems)
