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

    #: Default of `max_batch_size`.
    batch_max_size: Rows = 32

    #: Default of `max_wait`.
    batch_max_wait: Seconds = 0.01

    #: Default of `linger`. None is 0.002, or `max_wait` if that is shorter, and 0 after a batch of
    #: one.
    batch_linger: Seconds | None = None

    #: Default of `low_priority_share`.
    batch_low_priority_share: float = 0.1

    #: Default of `max_queue`; None is any number. The calling process reads it.
    batch_max_queue: Items | None = None

    #: Default of `isolate_failures`.
    batch_isolate_failures: bool = True

    #: Default of `max_worker_losses`.
    batch_max_worker_losses: int = 2

    #: Default of `outputs`, "arrays" or "lists".
    batch_outputs: str = "arrays"

    #: Devices for models, as a list or a text with commas, such as `"cuda:0,cuda:1"`, `"cpu"`,
    #: `"mps"`, or ids of GPUs and MIG slices. None is every visible GPU, else the CPU. Pool process
    #: *i* gets entry *i* mod *n*.
    batch_devices: list[str] | tuple[str, ...] | str | None = None

    #: Time in which every pool process must have loaded and warmed up its models, or the start
    #: fails.
    batch_load_timeout: Seconds = 600.0

    #: Whether many messages are sent, fetched, stored and acknowledged in one round trip. Each
    #: process reads its own setting. False leaves that to Celery, one message at a time, and turns
    #: the lease off.
    batch_bulk: bool = True

    #: The fast paths that are off in this process, as a tuple or a text with commas, such as
    #: `"overlap,store"`; `"all"` turns off every one.
    batch_disable_fast_paths: tuple[str, ...] | str = ()

    #: With one pool process, or one thread, whether other threads decode the next batch and store
    #: the last one's results while the model runs. Hooks and signal receivers run on those threads.
    #: It is off for a task class with its own `__call__`.
    batch_overlap: bool = True

    #: Time without a renewal (one a second) after which other workers on the same Redis take over a
    #: worker's messages.
    batch_lease: Seconds = 15.0

    #: The queue for copies of refused messages and those of `PoisonItem`, with the reason in the
    #: header `batch_reason`. None keeps none.
    batch_dead_letter_queue: str | None = None

    #: Most bytes of a batch task's message, and of any message's body after decompression; 16 MiB.
    #: A larger one is refused, with `MessageTooLarge` for its caller. None is any size.
    batch_max_message_size: Bytes | None = 16 << 20

    #: Where large values lie while their message travels, as a URL. None is the Redis of the
    #: results or of the broker, False is nowhere.
    batch_payload_store: str | bool | None = None

    #: Size of a value from which on it lies beside its message; 8 KiB.
    batch_payload_threshold: Bytes = 8 << 10

    #: Time for which a call with large values may wait after it is due.
    batch_payload_expires: Seconds = 86_400.0

    #: Most bytes of the large values of one message; 256 MiB.
    batch_max_payload_size: Bytes = 256 << 20

    #: The Redis that keeps the answers of tasks with `cache_ttl`. None is the result backend.
    batch_cache_url: str | None = None

    #: The address of a worker's metrics for Prometheus: a port of this machine, `":9808"` for all
    #: of its addresses, or a range, `"127.0.0.1:9808-9815"`, of which the first free port is taken.
    #: None serves none. `CELERY_BATCH_METRICS` comes first.
    batch_metrics: str | int | None = None


#: Setting -> its default.
SETTINGS: dict[str, Any] = {
    name: default for name, default in vars(Defaults).items() if name.startswith("batch_")
}
