"""
Loads the Lua scripts in ``lua/``: what must happen in Redis in one step.

Kombu's own keys, `unacked` and `unacked_index` (here *index*), keep kombu's form byte for
byte.  Beside them stand ours:

* ``owner of``: the owner of each delivery tag.  An *owner* is one connection of a worker.
* ``held``: the delivery tags of one owner, "1" for running and "0" for waiting messages.
* ``alive``: an owner's description; it expires with the lease.
* ``due``: all owners, by the time when their leases expire.
* ``owners on ...`` and ``search lock on ...``: the owners on a machine, and which of them looks for
  dead ones.

Times are Redis' own, so that no host's clock can do harm.  Scripts that must work on a full
Redis begin with a command that Redis allows then; what follows in the same script is allowed
too.

Rule 1: no message, whatever it contains, may make a script fail: a script that fails half way
        has popped messages that no worker then holds.
Rule 2: a message is only read, never encoded again, which would turn an empty list into
        an empty object.
Rule 3: a script finds what it needs at the end of a message of kombu's without decoding the
        whole, and only in an object that must be the message's own properties.  It decodes
        every other message.  The two may differ on a message that is no JSON: the worker
        refuses that one, and removes its record.
"""

from __future__ import annotations

from importlib.resources import files

from redis.exceptions import NoPermissionError, ResponseError

__all__ = ["lacks_command", "script"]


def script(name: str) -> str:
    """Return the text of a Lua script."""
    return (files(__package__) / "lua" / f"{name}.lua").read_text("utf-8")


def lacks_command(error: ResponseError) -> bool:
    """Return whether a Redis does not run a command at all: by its ACL, or as it has none such."""
    return isinstance(error, NoPermissionError) or "unknown command" in str(error).lower()
