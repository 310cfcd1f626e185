"""Each check alone: what it says of which facts, and that its fix is named."""

from __future__ import annotations

from dataclasses import replace

import pytest

from celery_batch.checks import (
    broker_checks,
    machine_checks,
    results_checks,
    tasks_checks,
    workers_checks,
)
from celery_batch.checks.checkup import CHECKS, checkup, worst
from celery_batch.checks.facts import (
    Conf,
    Facts,
    Machine,
    Redis,
    Server,
    Task,
    TaskStats,
    Torch,
    Worker,
)
from celery_batch.checks.finding import Finding, Level

GOOD = Facts(
    tasks=(Task(name="t", max_batch_size=8),),
    conf=Conf(concurrency=1),
    workers=(
        Worker(
            name="w",
            pool="celery.concurrency.prefork",
            version="1",
            task_stats={"t": TaskStats(max_batch_size=8, max_wait=0.01)},
        ),
    ),
    version="1",
)
A100 = ("NVIDIA A100",)


def task(**options):
    """Return facts with one task of these options."""
    return replace(GOOD, tasks=(replace(GOOD.tasks[0], **options),))


def conf(**settings):
    """Return facts with these settings."""
    return replace(GOOD, conf=replace(GOOD.conf, **settings))


def broker(kind="redis", **options):
    """Return facts with a Redis of these properties for a broker, or with another broker."""
    redis = Redis(**options) if kind == "redis" else None
    return replace(GOOD, broker=Server(kind=kind, url="redis://here", redis=redis))


def results(kind="redis", error="", **options):
    """Return facts with this result backend."""
    redis = Redis(**options) if kind == "redis" and not error else None
    return replace(GOOD, results=Server(kind=kind, url="redis://there", error=error, redis=redis))


def machine(devices=None, concurrency=1, **options):
    """Return facts with this machine, and these settings about it."""
    return replace(
        GOOD,
        conf=replace(GOOD.conf, devices=devices, concurrency=concurrency),
        machine=Machine(**options),
        workers=(),
    )


def worker(waiting=0, stats=None, **options):
    """Return facts with one worker and what it says, and messages in the queue."""
    one = replace(GOOD.workers[0], **options)
    if stats is not None:
        one = replace(one, task_stats={"t": replace(one.task_stats["t"], **stats)})
    return replace(GOOD, workers=(one,), depths={"celery": waiting})


def test_what_redis_keeps_to_itself_is_neither_good_nor_bad():
    """Checks of what access rules keep from us say nothing."""
    for check in (broker_checks.eviction, broker_checks.persistence, broker_checks.clock):
        assert [] == list(check(broker(**HIDDEN)))

    assert "ok" == next(results_checks.results(results(**HIDDEN))).level


def test_nothing_is_wrong_where_all_is_well():
    """A sound setup has no warning and no problem, and nothing to mend."""
    found = [finding for _, finding in checkup(GOOD)]

    assert [] == [finding for finding in found if finding.level is not Level.OK or finding.fix]
    assert Level.OK == worst(found)


NO_LEASE = {"bulk": False, "transport_options": {"visibility_timeout": 20}}

#: A Redis whose access rules keep INFO and TIME from us.
HIDDEN = dict.fromkeys(
    ("version", "policy", "maxmemory", "used", "appendonly", "snapshots", "ahead")
)

WRONG = [
    (
        workers_checks.serving,
        replace(GOOD, workers=None, unasked="No permission."),
        "problem",
        "could not be asked: No permission.",
    ),
    (
        workers_checks.serving,
        worker(task_stats={}, has_told=False, error="KeyError('x')"),
        "problem",
        "w could not say what it serves: KeyError('x')",
    ),
    (
        workers_checks.serving,
        worker(task_stats={}, has_told=False),
        "warning",
        "and w did not say in time",
    ),
    (broker_checks.broker, broker(**HIDDEN), "warning", "does not let this user run INFO"),
    (
        tasks_checks.settings,
        Facts(trouble=("batch_max_sice: no such setting.",)),
        "problem",
        "sice",
    ),
    (tasks_checks.tasks, replace(GOOD, tasks=()), "problem", "no batch task"),
    (tasks_checks.policies, task(max_wait=10.0), "warning", "write 0.01"),
    (tasks_checks.policies, task(linger=5.0), "warning", "linger=5"),
    (tasks_checks.eager, conf(always_eager=True), "problem", "task_always_eager"),
    (tasks_checks.prefetch, conf(prefetch_multiplier=0), "warning", "the 24 messages"),
    (tasks_checks.prefetch, conf(eta_task_limit=23), "warning", "Raise it to 24"),
    (tasks_checks.prefetch, conf(disable_prefetch=True), "warning", "two batches"),
    (tasks_checks.limits, task(time_limit=5, soft_time_limit=5), "warning", "before the soft"),
    (
        tasks_checks.limits,
        replace(task(time_limit=5), conf=Conf(pool="threads")),
        "warning",
        "threads pool ignores",
    ),
    (tasks_checks.acks, task(acks_late=False), "warning", "loses the batch"),
    (tasks_checks.rates, task(rate_limit="10/s"), "warning", "10/s"),
    (machine_checks.pool, conf(pool="gevent"), "problem", "not supported"),
    (machine_checks.pool, conf(pool="eventlet"), "problem", "not supported"),
    (machine_checks.pool, conf(pool="solo"), "warning", "reads no messages"),
    (machine_checks.pool, conf(pool="my:Pool"), "warning", "does not know"),
    (machine_checks.replacing, conf(max_tasks_per_child=100), "warning", "counts batches"),
    (machine_checks.replacing, conf(max_memory_per_child=100), "warning", "KiB"),
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
    (broker_checks.broker, broker("sqs"), "warning", "not tested"),
    (broker_checks.broker, broker(version=(5, 0, 7)), "warning", "5.0.7 knows no BLMOVE"),
    (broker_checks.broker, broker(scripts=False), "warning", "may not run scripts"),
    (broker_checks.broker, conf(bulk=False), "warning", "one by one"),
    (
        broker_checks.eviction,
        broker(maxmemory=1 << 20, policy="allkeys-lru"),
        "problem",
        "throws away messages",
    ),
    (
        broker_checks.eviction,
        broker(maxmemory=1 << 20, policy="volatile-lru"),
        "warning",
        "signs of life",
    ),
    (broker_checks.eviction, broker(maxmemory=100, used=95), "warning", "95% of its maxmemory"),
    (broker_checks.persistence, broker(appendonly=False), "warning", "snapshots only"),
    (
        broker_checks.persistence,
        broker(appendonly=False, snapshots=False),
        "warning",
        "keeps nothing on disk",
    ),
    (
        broker_checks.persistence,
        broker(appendonly=False, snapshots=None),
        "warning",
        "no append-only file",
    ),
    (broker_checks.visibility, conf(**NO_LEASE), "problem", "run twice"),
    (
        broker_checks.visibility,
        replace(broker("amqp"), tasks=task(time_limit=700).tasks),
        "warning",
        "consumer_timeout",
    ),
    (broker_checks.priorities, broker("amqp"), "warning", "task_queue_max_priority"),
    (
        broker_checks.priorities,
        replace(broker("amqp"), tasks=task(is_quorum=True).tasks),
        "warning",
        "above and below 5",
    ),
    (
        broker_checks.priorities,
        replace(broker("amqp"), tasks=task(priorities=True).tasks),
        "warning",
        "task_default_priority=5",
    ),
    (
        broker_checks.priorities,
        conf(transport_options={"priority_steps": [0]}),
        "warning",
        "priority_steps",
    ),
    (broker_checks.confirms, broker("amqp"), "warning", "confirm_publish"),
    (
        broker_checks.options,
        replace(
            conf(transport_options={"visibilty_timeout": 7200, "my_own": 1}),
            broker=Server(kind="redis", options=("visibility_timeout",)),
        ),
        "warning",
        "mean 'visibility_timeout'",
    ),
    (broker_checks.clock, broker(ahead=-7.25), "warning", "-7.2 s"),
    (results_checks.results, results("none"), "problem", "no result backend"),
    (results_checks.results, results(error="refused."), "problem", "refused"),
    (results_checks.results, results("database"), "warning", "ask for them"),
    (results_checks.results, results("rpc"), "warning", "to the thread that has asked"),
    (results_checks.results, results(maxmemory=1, policy="allkeys-lru"), "warning", "may vanish"),
    (results_checks.results, conf(bulk=False), "warning", "told one by one"),
    (results_checks.expiry, conf(result_expires=None), "warning", "for ever"),
    (results_checks.expiry, conf(result_expires=5.0), "warning", "5 s"),
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
        conf(accept_content=("json", "application/x-python-serialize")),
        "warning",
        "any code",
    ),
    (workers_checks.serving, replace(GOOD, workers=()), "warning", "No worker answers"),
    (
        workers_checks.serving,
        worker(waiting=3, task_stats={}),
        "problem",
        "queue celery for it, where 3 messages wait",
    ),
    (
        workers_checks.unrouted,
        worker(stats={"routed": False}),
        "warning",
        "w was sent t by the name",
    ),
    (
        workers_checks.unrouted,
        replace(
            worker(task_stats={}, queues=frozenset({"slow"}), knows=frozenset({"t"})),
            routed=frozenset({"celery"}),
        ),
        "warning",
        "w consumes slow, to which no task is routed",
    ),
    (workers_checks.pools, worker(pool="celery.concurrency.gevent"), "problem", "gevent pool"),
    (workers_checks.pools, worker(max_tasks_per_child=5), "warning", "after 5 batches"),
    (
        workers_checks.sharing,
        worker(processes=4, devices=("cuda:0", "cuda:1")),
        "warning",
        "4 processes on cuda:0, cuda:1",
    ),
    (workers_checks.holding, worker(processes=2, prefetch=15), "warning", "fewer than the 16 rows"),
    (
        workers_checks.slowness,
        replace(worker(stats={"model": 1.5}), tasks=task(time_limit=9, soft_time_limit=2).tasks),
        "warning",
        "1.5 s or more",
    ),
    (workers_checks.alike, worker(version="0.9"), "warning", "w 0.9"),
    (workers_checks.alike, worker(version=""), "warning", "w (unknown)"),
    (workers_checks.alike, worker(stats={"max_batch_size": 4}), "warning", "max_batch_size=4"),
    (
        workers_checks.filling,
        worker(waiting=100, stats={"batches": 50, "rows": 60}),
        "warning",
        "1.2 rows of 8",
    ),
    (workers_checks.halted, worker(stats={"halted": True}), "warning", "batch_resume t"),
    (workers_checks.health, worker(stats={"safe_size": 4}), "warning", "ran out of memory"),
    (workers_checks.health, worker(stats={"losses": 3}), "warning", "died 3 times"),
]


@pytest.mark.parametrize(
    ("check", "facts", "level", "words"),
    WRONG,
    ids=[f"{check.__name__}-{words}" for check, _, _, words in WRONG],
)
def test_each_fault_is_named_with_its_fix(check, facts, level, words):
    """A check tells of its fault, at its level, with a sentence about it and a way out."""
    (found,) = [finding for finding in check(facts) if finding.level is not Level.OK]

    assert level == found.level
    assert words in f"{found.says} {found.fix}"
    assert found.says.endswith(".")
    assert found.fix


def test_every_check_has_a_fault_that_it_finds():
    """No check is without a test of what it warns of."""
    assert set(CHECKS) == {check for check, *_ in WRONG}


FINE = [
    (tasks_checks.tasks, GOOD, "Batch tasks: t."),
    (tasks_checks.policies, task(max_batch_size=1, max_wait=10.0), "not batched"),
    (
        tasks_checks.limits,
        task(time_limit=16, soft_time_limit=8),
        "8 s are for a whole batch of up to 8",
    ),
    (tasks_checks.prefetch, conf(eta_task_limit=24), "24 messages"),
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
    (tasks_checks.prefetch, conf(pool="solo", concurrency=8, eta_task_limit=24), "24 messages"),
    (machine_checks.pool, conf(pool="threads"), "threads"),
    (broker_checks.broker, broker("amqp"), "amqp answers"),
    (broker_checks.eviction, broker(policy="allkeys-lru"), "no limit of memory"),
    (broker_checks.visibility, conf(transport_options={"visibility_timeout": 1}), "leased"),
    (broker_checks.visibility, conf(bulk=False), "above what a batch may take"),
    (
        results_checks.results,
        replace(task(ignores_results=True), results=Server(kind="none")),
        "stores results",
    ),
    (results_checks.serializers, conf(accept_content=("application/json",)), "application/json"),
    (
        workers_checks.alike,
        worker(stats={"max_wait": 0.5, "steered": True}),
        "max_wait=0.5; the app says 8 and 0.01: it was told so",
    ),
]


@pytest.mark.parametrize(
    ("check", "facts", "words"), FINE, ids=[f"{check.__name__}-{words}" for check, _, words in FINE]
)
def test_what_is_no_fault_is_said_to_be_fine(check, facts, words):
    """A check leaves alone what looks like its fault and is none, and says what it saw."""
    (found,) = check(facts)

    assert Level.OK == found.level
    assert words in found.says


QUIET = [
    (workers_checks.filling, worker(waiting=16, stats={"batches": 50, "rows": 60})),
    (workers_checks.filling, worker(waiting=100, stats={"batches": 4, "rows": 4})),
    (workers_checks.filling, worker(waiting=100, stats={"batches": 50, "rows": 200})),
    (workers_checks.serving, replace(GOOD, workers=None)),
    (
        workers_checks.unrouted,
        replace(
            worker(task_stats={}, queues=frozenset({"mail"}), knows=frozenset({"t"})),
            routed=frozenset({"celery", "mail"}),
        ),
    ),
    (workers_checks.health, worker(stats={"safe_size": 8})),
    (
        workers_checks.slowness,
        replace(worker(stats={"model": 0.9}), tasks=task(time_limit=2).tasks),
    ),
    (workers_checks.slowness, worker(stats={"model": 0.9})),
    (workers_checks.slowness, replace(worker(), tasks=task(time_limit=2).tasks)),
    (workers_checks.holding, worker(processes=2, prefetch=16)),
    (workers_checks.holding, worker(processes=2, prefetch=0)),
    (workers_checks.sharing, worker(processes=2, devices=("cpu",))),
    (workers_checks.sharing, worker(processes=2, devices=("cuda:0", "cuda:1"))),
    (
        workers_checks.sharing,
        worker(processes=2, devices=("cuda:0",), pool="celery.concurrency.thread"),
    ),
    (broker_checks.options, conf(transport_options={"visibilty_timeout": 7200})),
    (machine_checks.devices, machine(gpus=2 * A100, concurrency=2)),
    (
        machine_checks.devices,
        replace(machine(gpus=A100, concurrency=None, cpus=8), workers=GOOD.workers),
    ),
    (broker_checks.eviction, broker("amqp")),
    (broker_checks.persistence, broker("amqp")),
    (broker_checks.visibility, broker("amqp")),
    (broker_checks.clock, broker("amqp")),
    (broker_checks.clock, broker(ahead=0.9)),
    (
        broker_checks.priorities,
        replace(broker("amqp"), tasks=task(priorities=True, priority=1).tasks),
    ),
    (
        broker_checks.priorities,
        replace(broker("amqp"), tasks=task(is_quorum=True, priority=5).tasks),
    ),
    (results_checks.expiry, results("rpc")),
]


@pytest.mark.parametrize(("check", "facts"), QUIET)
def test_what_cannot_be_known_is_not_judged(check, facts):
    """A check says nothing where it knows too little, or where it has nothing to look at."""
    assert [] == list(check(facts))


def test_worst_of_findings():
    """A problem outweighs every warning, and nothing found is nothing wrong."""
    levels = [Level.WARNING, Level.PROBLEM, Level.OK]

    assert Level.PROBLEM == worst(Finding(level, "") for level in levels)
    assert Level.WARNING == worst(Finding(level, "") for level in levels if level != "problem")
    assert Level.OK == worst([])


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
def test_who_discards_messages_is_named(queues, knows, discards):
    """A worker that consumes a task's queue without knowing it is a problem beside any other."""
    beside = Worker(name="plain", queues=queues, knows=knows)
    found = workers_checks.serving(replace(GOOD, workers=(*GOOD.workers, beside)))
    problems = [each.says for each in found if each.level is Level.PROBLEM]
    said = "plain consumes queue celery and does not know t: it discards each message"

    assert discards == bool(problems)
    assert all(each.startswith(said) for each in problems)
