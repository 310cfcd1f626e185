"""
Many messages in one round trip, where kombu reads one.

A blocking BRPOP brings the first message, as ever.  One script then pops as many
more as there is room for, in kombu's order of priorities and queues, and writes
them down as unacknowledged in the same atomic step, byte for byte as kombu does:
any other worker can give them back.  (Kombu pops and writes down in two steps; a
worker killed in between loses the message.)
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

from kombu.transport import virtual
from kombu.utils.encoding import bytes_to_str
from redis import Redis
from redis.exceptions import ResponseError

__all__ = ["BulkFetch"]

logger = logging.getLogger(__name__)

#: Messages in one pass of the event loop; each costs a quarter of a millisecond
#: in which no finished batch is noticed and no ready one is sent off.
_SLICE = 32

# KEYS: the queues' lists in order, the index of the unacknowledged, the hash of them.
# ARGV: the time, how many. A message is decoded only to be read; encoding it again
# would turn an empty list into an empty object. Nothing here may fail on what anybody
# can send: a script that fails half way has popped messages that nobody then has.
_POP = """
local found, wanted = {}, tonumber(ARGV[2])
for i = 1, #KEYS - 2 do
  while wanted > 0 do
    local message = redis.call('RPOP', KEYS[i])
    if not message then break end
    local tag = ''
    local readable, decoded = pcall(cjson.decode, message)
    local properties = readable and type(decoded) == 'table' and decoded.properties
    local claimed = type(properties) == 'table' and properties.delivery_tag
    if type(claimed) == 'string' and claimed ~= '' and #claimed <= 255
        and not string.find(claimed, '[^ -~]') then
      tag = claimed
      local info = properties.delivery_info
      if type(info) ~= 'table' then info = {} end
      local exchange = type(info.exchange) == 'string' and info.exchange or ''
      local key = type(info.routing_key) == 'string' and info.routing_key or ''
      redis.call('ZADD', KEYS[#KEYS - 1], ARGV[1], tag)
      redis.call('HSET', KEYS[#KEYS], tag, '[' .. message .. ', '
        .. cjson.encode(exchange) .. ', ' .. cjson.encode(key) .. ']')
    end
    found[#found + 1] = {i, tag, message}
    wanted = wanted - 1
  end
end
return found
"""


class BulkFetch:
    """
    Reads in bulk on one live channel, until the channel is closed.

    Args:
        channel: Kombu's Redis channel, which consumes with acknowledgements.
        room: How many more messages the worker can put to use.
        read: Decodes a message; None if it refuses it.
    """

    def __init__(self, channel: Any, room: Callable[[], int], read: Callable[[bytes], Any]) -> None:
        self._channel = channel
        self._qos = channel.qos
        self._room = room
        self._decode = read
        self._written_down: set[str] = set()
        # Past kombu's own client, which puts the key prefix before some keys only.
        self._script = Redis(connection_pool=channel.pool).register_script(_POP)
        self._read_one = channel._brpop_read  # noqa: SLF001
        self._append_one = channel.qos.append
        channel._brpop_read = channel.handlers["BRPOP"] = self._read  # noqa: SLF001
        channel.qos.append = self._append

    def stop(self) -> None:
        """Go back to one message at a time."""
        channel = self._channel
        channel._brpop_read = channel.handlers["BRPOP"] = self._read_one  # noqa: SLF001

    def _read(self, **options: Any) -> Any:
        delivered = self._read_one(**options)  # raises Empty if there is nothing
        credit = self._qos.can_consume_max_estimate()
        wanted = min(self._room(), _SLICE, _SLICE if credit is None else credit)
        if delivered and wanted > 0:
            self._deliver(self._pop(wanted))
        return delivered

    def _pop(self, wanted: int) -> list[tuple[str, str, bytes]]:
        """Return queue, delivery tag (empty if not written down) and message of each."""
        channel, prefix = self._channel, self._channel.global_keyprefix
        queues = channel._queue_cycle.consume(len(channel.active_queues))  # noqa: SLF001
        places = [(step, queue) for step in channel.priority_steps for queue in queues]
        keys = [channel._q_for_pri(queue, step) for step, queue in places]  # noqa: SLF001
        keys += [self._qos.unacked_index_key, self._qos.unacked_key]
        try:
            found = self._script(keys=[prefix + key for key in keys], args=[time.time(), wanted])
        except ResponseError as error:
            logger.warning("Redis runs no scripts for us (%s): messages are read singly", error)
            self.stop()
            return []
        return [(places[at - 1][1], bytes_to_str(tag), message) for at, tag, message in found]

    def _deliver(self, found: list[tuple[str, str, bytes]]) -> None:
        self._written_down.update(tag for _, tag, _ in found if tag)
        while found:
            queue, tag, message = found.pop(0)
            try:
                envelope = self._decode(message)
                if envelope is not None:
                    # Checked already: past the gate that stands before `_deliver`.
                    virtual.Transport._deliver(self._channel.connection, envelope, queue)  # noqa: SLF001
                elif tag:
                    self._forget(tag)
            except Exception:
                # What is left has been popped and met nobody: it goes back at once.
                for _, tag, _ in found:
                    self._qos.restore_by_tag(tag)
                raise

    def _forget(self, tag: str) -> None:
        """Cross out what was written down and refused."""
        self._written_down.discard(tag)
        virtual.QoS.append(self._qos, None, tag)  # so that the books of the prefetch are right
        self._qos.ack(tag)

    def _append(self, message: Any, tag: str) -> None:
        if tag not in self._written_down:
            self._append_one(message, tag)
            return
        self._written_down.discard(tag)
        virtual.QoS.append(self._qos, message, tag)
