"""

Returns messages to the front of their queues, many at a time.

Kombu watches the whole hash of unacknowledged messages for each single message, and
tries again whenever anybody has changed it.  Here one script moves many.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from kombu.utils.encoding import bytes_to_str
from kombu.utils.json import dumps, loads

from celery_batch.worker.intake.request import LOSSES
from celery_batch.worker.redis.owner import Keys
from celery_batch.worker.redis.scripts import script

__all__ = ["Restorer", "Terms"]

logger = logging.getLogger(__name__)

#: Messages in one script; Redis serves nobody else meanwhile.
_AT_ONCE = 50

_SWEPT_AT_ONCE = 1000


@dataclass(frozen=True, slots=True)
class Terms:
    """
    On which terms messages are given back; checked in the same step.

    Args:
        owner: Who must have them; "" for what is no worker's of ours.
        alive: What the owner's sign of life must read, "" for none; "*" for anything.
        latest: A message must not have been looked after since, in Redis' time; "" for any.
        command: RPUSH for the front of the queue, LPUSH for its end.
        is_end: Forget the owner, once it holds nothing more.
    """

    owner: str
    alive: str = "*"
    latest: str = ""
    command: str = "RPUSH"
    is_end: bool = False


class Restorer:
    """
    Gives messages back to their queues.

    Args:
        channel: Kombu's Redis channel.
        client: A plain Redis client.
        keys: Of this worker.
    """

    def __init__(self, channel: Any, client: Any, keys: Keys) -> None:
        self._channel = channel
        self._client = client
        self._keys = keys
        self._return = client.register_script(script("restore"))
        self._sweep = client.register_script(script("find_expired"))

    def give_back(self, flags: Mapping[str, str], terms: Terms) -> int:
        """
        Give messages back; return how many were there to be given.

        Args:
            flags: Delivery tag to "1" where a loss is to be counted.
            terms: What must hold, or nothing happens.
        """
        given, tags = 0, list(flags)
        for first in range(0, max(len(tags), 1), _AT_ONCE):
            some = {tag: flags[tag] for tag in tags[first : first + _AT_ONCE]}
            moved = self._move(some, terms)
            if moved < 0:  # the owner has come back to life
                break
            given += moved
        return given

    def rescue(self, owner: str, alive: str) -> int:
        """
        Give back all that a dead worker held, and count a loss for what was running.

        Args:
            owner: The dead one.
            alive: What its sign of life still reads; "" where that is gone.
        """
        return self.give_back(self._flags(owner), Terms(owner, alive=alive, is_end=True))

    def resign(self, owner: str) -> int:
        """Give back all that one of our own connections held; nothing of it was lost."""
        flags = dict.fromkeys(self._flags(owner), "0")
        return self.give_back(flags, Terms(owner, is_end=True))

    def sweep(self, timeout: float, most: int | None) -> int:
        """
        Give back what nobody has looked after, as kombu does after its visibility timeout.

        Args:
            timeout: That timeout in seconds.
            most: So many messages at most.
        """
        keys = self._keys
        latest, *found = self._sweep(
            keys=[keys.index, keys.owner_of],
            args=[timeout, keys.all_alive, keys.all_held, most or _SWEPT_AT_ONCE],
        )
        by_owner: dict[str, dict[str, str]] = defaultdict(dict)
        for tag, owner, flag in found:
            by_owner[bytes_to_str(owner)][bytes_to_str(tag)] = bytes_to_str(flag)
        terms = Terms("", latest=bytes_to_str(latest))
        return sum(
            self.give_back(flags, replace(terms, owner=owner)) for owner, flags in by_owner.items()
        )

    def _flags(self, owner: str) -> dict[str, str]:
        held = self._client.hgetall(replace(self._keys, owner=owner).held)
        return {bytes_to_str(tag): bytes_to_str(flag) for tag, flag in held.items()}

    def _move(self, flags: dict[str, str], terms: Terms) -> int:
        keys = replace(self._keys, owner=terms.owner)
        entries = self._client.hmget(keys.unacked, list(flags)) if flags else []
        lists: dict[str, int] = {}
        messages: list[Any] = []
        for (tag, flag), entry in zip(flags.items(), entries, strict=True):
            copies = self._copies(entry, flag == "1")
            messages += [tag, -1 if copies is None else len(copies)]
            for key, text in copies or ():
                messages += [lists.setdefault(key, len(lists) + 1), text]
        result = self._return(
            keys=[
                *(keys.unacked, keys.index, keys.owner_of, keys.owners, keys.held, keys.alive),
                *(keys.due, keys.neighbours),
                *lists,
            ],
            args=[
                *(terms.owner, terms.alive, terms.latest, terms.command, int(terms.is_end)),
                *messages,
            ],
        )
        return int(result)

    def _copies(self, entry: bytes | None, is_lost: bool) -> list[tuple[str, str]] | None:  # noqa: FBT001
        """Return where a message belongs and how it reads now; None if that cannot be told."""
        if entry is None:
            return []
        try:
            message, exchange, routing_key = loads(bytes_to_str(entry))
            copies = list(self._addressed(message, exchange, routing_key, is_lost=is_lost))
        except self._channel.connection_errors:
            raise
        except Exception:
            logger.exception("Could not give a message back; it stays unacknowledged")
            return None
        return copies or None

    def _addressed(
        self, message: Any, exchange: str, routing_key: str, *, is_lost: bool
    ) -> Iterator[tuple[str, str]]:
        channel = self._channel
        headers = message.get("headers")
        if isinstance(headers, dict):
            headers["redelivered"] = True
            if is_lost:
                headers[LOSSES] = _count(headers.get(LOSSES)) + 1
        info = message["properties"].get("delivery_info")
        if isinstance(info, dict):
            info["redelivered"] = True
        priority = channel._get_message_priority(message, reverse=False)  # noqa: SLF001
        for queue in channel._lookup(exchange, routing_key):  # noqa: SLF001
            key = channel._q_for_pri(queue, priority)  # noqa: SLF001
            yield channel.global_keyprefix + key, dumps(message)


def _count(value: Any) -> int:
    """Return a header's count; whatever else a message claims counts as none."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0
