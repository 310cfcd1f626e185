"""
The settings of an app with their defaults, and the units of settings and options.

The comments are what the reference says of each: ``make tables`` writes them there.
"""

from __future__ import annotations

from typing import Any

__all__ = ["SETTINGS", "Bytes", "Defaults", "Items", "Rows", "Seconds"]

Seconds = float
Rows = int
Items = int
Bytes = int


class Defaults:
    """Every setting of ours with its default."""

    #: `max_batch_size` of tasks without their own.
    batch_max_size: Rows = 32

    #: `max_wait` of tasks without their own.
    batch_max_wait: Seconds = 0.01

    #: `linger` of tasks without their own. None is 0.002, or `max_wait` if that is shorter, and 0
    #: after a batch of one.
    batch_linger: Seconds | None = None

    #: `low_priority_share` of tasks without their own.
    batch_low_priority_share: float = 0.1

    #: `max_queue` of tasks without their own; None is any number. The calling process reads it.
    batch_max_queue: Items | None = None

    #: `isolate_failures` of tasks without their own.
    batch_isolate_failures: bool = True

    #: `max_worker_losses` of tasks without their own.
    batch_max_worker_losses: int = 2

    #: `outputs` of tasks without their own, "arrays" or "lists".
    batch_outputs: str = "arrays"

    #: Devices for models, as a list or a text with commas, such as `"cuda:0,cuda:1"`, `"cpu"`,
    #: `"mps"`, or ids of GPUs and MIG slices. None is every visible GPU, else the CPU. Pool process
    #: *i* gets entry *i* mod *n*.
    batch_devices: list[str] | tuple[str, ...] | str | None = None

    #: Time in which every pool process must have loaded and warmed up its models; otherwise the
    #: start fails.
    batch_load_timeout: Seconds = 600.0

    #: Whether many messages are sent, fetched, stored and acknowledged in one round trip. The data
    #: in Redis is the same, byte for byte. Each process reads its own setting. False has Celery's
    #: own code send, fetch and store, one message at a time, and turns the lease off.
    batch_bulk: bool = True

    #: The fast paths that are off in this process, as a tuple or a text with commas, such as
    #: `"overlap,store"`; `"all"` turns off every one.
    batch_disable_fast_paths: tuple[str, ...] | str = ()

    #: With one pool process, whether threads decode the next batch and store the last one's results
    #: while the model runs. Hooks and signal receivers then run on those threads, models on the
    #: main thread. It is off for a task class with its own `__call__`.
    batch_overlap: bool = True

    #: Time without a renewal after which other workers on the same Redis take over a worker's
    #: messages. A worker renews its lease every second.
    batch_lease: Seconds = 15.0

    #: The queue for copies of the messages of `PoisonItem` and of refused messages, with the reason
    #: in the header `batch_reason`. None keeps none.
    batch_dead_letter_queue: str | None = None

    #: Most bytes of a message in the broker, and of its body after decompression; 16 MiB. A larger
    #: one is refused before it is decoded, with `MessageTooLarge` for its caller. It holds for
    #: every message that the worker fetches. None is any size.
    batch_max_message_size: Bytes | None = 16 << 20

    #: Where large values lie while their message travels, as a URL. None is the Redis of the
    #: results or of the broker, False is nowhere.
    batch_payload_store: str | bool | None = None

    #: Size of a value from which on it lies beside its message; 16 KiB.
    batch_payload_threshold: Bytes = 16 << 10

    #: Time for which a call with large values may wait after it is due.
    batch_payload_expires: Seconds = 86_400.0

    #: Most bytes of the large values of one message; 256 MiB.
    batch_max_payload_size: Bytes = 256 << 20

    #: The Redis that keeps the answers of tasks with `cache_ttl`. None is the result backend.
    batch_cache_url: str | None = None

    #: The address of a worker's metrics for Prometheus, such as `"127.0.0.1:9808"`; a port alone
    #: for this machine, `":9808"` for all of its addresses, or a range, `"127.0.0.1:9808-9815"`, of
    #: which the first free port is taken. None serves none. `CELERY_BATCH_METRICS` comes first.
    batch_metrics: str | int | None = None


#: Setting -> its default.
SETTINGS: dict[str, Any] = {
    name: default for name, default in vars(Defaults).items() if name.startswith("batch_")
}
