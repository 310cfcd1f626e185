"""What a client is counted as, behind proxies and not."""

from __future__ import annotations

import pytest

from celery_batch.errors import ConfigurationError
from webapp.addresses import Addresses


@pytest.mark.parametrize(
    ("trusted", "peer", "forwarded", "name"),
    [
        ("", "192.0.2.7", "", "192.0.2.7"),
        ("", "192.0.2.7", "198.51.100.1", "192.0.2.7"),
        ("10.0.0.0/8", "192.0.2.7", "198.51.100.1", "192.0.2.7"),
        ("10.0.0.0/8", "10.0.0.1", "198.51.100.1", "198.51.100.1"),
        ("10.0.0.0/8", "10.0.0.1", "1.1.1.1, 198.51.100.1", "198.51.100.1"),
        ("10.0.0.0/8", "10.0.0.1", "1.1.1.1, 198.51.100.1, 10.3.0.1", "198.51.100.1"),
        ("10.0.0.0/8", "10.0.0.1", "", "10.0.0.1"),
        ("10.0.0.0/8", "10.0.0.1", "10.0.0.2", "10.0.0.2"),
        ("10.0.0.0/8", "10.0.0.1", "1.1.1.1, nonsense", "behind 10.0.0.1"),
        ("10.0.0.0/8", "::ffff:10.0.0.1", "198.51.100.1:4711", "198.51.100.1"),
        ("unix", "", "198.51.100.1", "198.51.100.1"),
        ("unix", "", "", "unix"),
        ("", "", "198.51.100.1", "unix"),
        ("::1", "::1", "[2001:db8:1:2:3::4]:80", "2001:db8:1:2::/64"),
        ("", "2001:db8:1:2:ffff::9", "", "2001:db8:1:2::/64"),
        ("", "fe80::1%eth0", "", "fe80::/64"),
    ],
)
def test_a_client_is_named(trusted, peer, forwarded, name):
    """Only what trusted proxies have written is believed, from the end on."""
    assert name == Addresses(trusted).name(peer, forwarded)


def test_a_wrong_proxy_stops_the_start():
    """A name of a host says nothing that could be compared."""
    with pytest.raises(ConfigurationError, match="WEBAPP_TRUSTED_PROXIES: 'nginx' is neither"):
        Addresses("10.0.0.0/8, nginx")


@pytest.mark.parametrize(
    ("peer", "own", "prefix", "root"),
    [
        ("192.0.2.7", "", "", ""),
        ("192.0.2.7", "/models/", "", "/models"),
        ("192.0.2.7", "/models", "/evil", "/models"),
        ("10.0.0.1", "", "/models/", "/models"),
        ("10.0.0.1", "/v1", "/models/de", "/models/de/v1"),
        ("10.0.0.1", "", "//evil.example", ""),
        ("10.0.0.1", "", "https://evil.example", ""),
        ("10.0.0.1", "", "/a/../b", ""),
        ("10.0.0.1", "", "/a?b", ""),
        ("10.0.0.1", "", "/a\r\nX: b", ""),
    ],
)
def test_a_path_before_ours_is_known(peer, own, prefix, root):
    """The server is believed, and of proxies those that are trusted, if it is a plain path."""
    assert root == Addresses("10.0.0.0/8").root(peer, own, prefix)
