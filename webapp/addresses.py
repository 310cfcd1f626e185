"""From which address a request comes, where it may have come through proxies."""

from __future__ import annotations

import functools
import ipaddress
import re
from collections.abc import Callable

from celery_batch.errors import ConfigurationError

__all__ = ["Addresses"]

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Address = ipaddress.IPv4Address | ipaddress.IPv6Address

#: How a peer is called that came over a socket in the file system.
_UNIX = "unix"

#: A path that can be put before others: no host, no query, no way up.
_PREFIX = re.compile(r"(/(?!\.+(/|$))[A-Za-z0-9._~-]+){1,16}/?").fullmatch

#: Bits of an IPv6 address that its holder cannot choose; the rest are all one client.
_IPV6_BITS = 64

#: Addresses remembered, with what they came to.
_REMEMBERED = 4096


class Addresses:
    """
    Knows which proxies to believe.

    Args:
        trusted: Networks, addresses or ``unix``, with commas or spaces between them.

    Raises:
        ConfigurationError: One is none of these.
    """

    def __init__(self, trusted: str) -> None:
        words = [word for word in re.split(r"[\s,]+", trusted) if word]
        self._unix = _UNIX in words
        self._networks = [_network(word) for word in words if word != _UNIX]
        remember = functools.lru_cache(_REMEMBERED)
        self._named: Callable[[str, str], str] = remember(self._name)

    def name(self, peer: str, forwarded: str = "") -> str:
        """
        Return what a client is counted as: its address, or an IPv6 client's network.

        Args:
            peer: The address at the other end of the connection; empty for a socket in
                the file system.
            forwarded: The header ``X-Forwarded-For``, which a client can write, too:
                looked at only where the peer is trusted, and read from its end, up to
                the first address that is not trusted.
        """
        return self._named(peer, forwarded if self._networks or self._unix else "")

    def root(self, peer: str, own: str, prefix: str) -> str:
        """
        Return the path below which a client finds the app, without a slash at its end.

        Args:
            peer: The address at the other end of the connection.
            own: What the server says of it.
            prefix: The header ``X-Forwarded-Prefix``, in which a proxy says what it has taken
                away; looked at only where the peer is trusted, and only if it is a plain path.
        """
        if prefix and self._trusts(peer) and _PREFIX(prefix):
            return prefix.rstrip("/") + own.rstrip("/")
        return own.rstrip("/")

    def _name(self, peer: str, forwarded: str) -> str:
        chain = [part.strip() for part in forwarded.split(",")] if forwarded else []
        address = peer
        while chain and self._trusts(address):
            address = chain.pop()
        known = _address(address)
        if known is None:
            # What a trusted proxy wrote and cannot be read says nothing about the client.
            return _UNIX if not address else f"behind {peer or _UNIX}"
        if known.version == 6:  # noqa: PLR2004 (IPv6)
            return str(ipaddress.ip_network((known, _IPV6_BITS), strict=False))
        return str(known)

    def _trusts(self, text: str) -> bool:
        if not text or text == _UNIX:
            return self._unix
        address = _address(text)
        return address is not None and any(address in network for network in self._networks)


def _network(word: str) -> Network:
    try:
        return ipaddress.ip_network(word, strict=False)
    except ValueError:
        raise ConfigurationError(
            f"WEBAPP_TRUSTED_PROXIES: {word!r} is neither an address, nor a network "
            "such as 10.0.0.0/8, nor 'unix'"
        ) from None


def _address(text: str) -> Address | None:
    """Return the address that a text names; some proxies put brackets and a port to it."""
    text = text.partition("]")[0].lstrip("[") if text.startswith("[") else text
    if text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address
