"""Connections to the targets of webhooks: which addresses are allowed, and how much is read.

A subscriber chooses the url, so without a check the broker would make requests inside its own network for everybody
who may subscribe. A name is resolved here, its addresses are checked, and the connection is made to one of those: a
name that resolves differently a moment later changes nothing.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import ssl
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpcore

from hitbox.protocol.errors import BadRequest

SPECIAL = [ipaddress.ip_network(text) for text in ("192.0.0.0/24", "192.88.99.0/24", "3fff::/20")]
"""Protocol assignments, relays of 6to4, and documentation: Python 3.11 takes them for public."""
CONNECT_SECONDS = 5.0
"""After this time without an answer the next address of a host is tried."""

READ_BYTES = 4 * 1024
"""Of an answer, at once."""
ANSWER_BYTES = 192 * 1024
"""Of an answer that is read: more than the largest head and what is read of a body."""


class AddressNotAllowed(BadRequest):
    """The target of a webhook has no address that requests may be sent to."""


def is_public(text: str) -> bool:
    """Whether an address is one of the internet, also if it is an IPv4 address inside an IPv6 one.

    >>> [is_public(text) for text in ("93.184.216.34", "2606:2800:220:1::1", "::ffff:93.184.216.34")]
    [True, True, True]
    >>> [is_public(text) for text in ("127.0.0.1", "10.1.2.3", "169.254.169.254", "224.0.0.1", "0.0.0.0", "100.64.0.1")]
    [False, False, False, False, False, False]
    >>> [is_public(text) for text in ("::1", "fe80::1%eth0", "fc00::1", "ff02::1", "::ffff:127.0.0.1", "2002:7f00:1::")]
    [False, False, False, False, False, False]
    """
    address = ipaddress.ip_address(text)
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return is_public(str(address.ipv4_mapped))
        inside = [address.sixtofour, *(address.teredo or ())]
        if address.is_site_local or any(one is not None for one in inside):
            return False  # tunnels: where they end is not known here
    if any(address in network for network in SPECIAL):
        return False
    return address.is_global and not (address.is_multicast or address.is_reserved or address.is_unspecified)


def check_literal(host: str) -> None:
    """Raise if a host is this machine, or an address that is not allowed; other names are checked when connecting."""
    name = host.lower().rstrip(".")
    try:
        allowed = name != "localhost" and not name.endswith(".localhost") and is_public(host)
    except ValueError:
        return
    if not allowed:
        raise AddressNotAllowed(_refusal(host))


def _refusal(host: str) -> str:
    return (
        f"the host {host!r:.100} has no public address; webhooks to loopback, private and link-local addresses "
        "need the broker's setting allow_private_webhooks"
    )


class CheckedStream(httpcore.AsyncNetworkStream):
    """A connection to a target, which may answer with thousands of `100 Continue`: httpcore takes what it has read of
    them without a turn of the event loop. So little is read at once, others get a turn after it, and an answer ends."""

    def __init__(self, inner: httpcore.AsyncNetworkStream):
        self._inner = inner
        self._answered = 0  # bytes since the request was written

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        data = await self._inner.read(min(max_bytes, READ_BYTES), timeout)
        self._answered += len(data)
        if self._answered > ANSWER_BYTES:
            raise httpcore.ReadError(f"the answer has more than {ANSWER_BYTES} bytes")
        await asyncio.sleep(0)
        return data

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._answered = 0
        await self._inner.write(buffer, timeout)

    async def aclose(self) -> None:
        await self._inner.aclose()

    async def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.AsyncNetworkStream:
        return CheckedStream(await self._inner.start_tls(ssl_context, server_hostname, timeout))

    def get_extra_info(self, info: str) -> Any:
        return self._inner.get_extra_info(info)


class CheckedNetwork(httpcore.AsyncNetworkBackend):
    """Connects to allowed addresses only. Names are resolved in threads of their own, `most` at a time: as many as
    there are requests, so that a slow name server delays no other request."""

    def __init__(self, allow_private: bool, most: int):
        self.allow_private = allow_private
        self._inner = httpcore.AnyIOBackend()
        self._threads = ThreadPoolExecutor(most, "webhook-lookup")

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        problem: Exception = httpcore.ConnectError(f"the host {host!r:.100} has no address")
        seconds = CONNECT_SECONDS if timeout is None else min(timeout, CONNECT_SECONDS)
        for address in await self._addresses(host, port):
            try:
                made = await self._inner.connect_tcp(address, port, seconds, local_address, socket_options)
                return CheckedStream(made)
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as found:
                problem = found
        raise problem

    async def _addresses(self, host: str, port: int) -> list[str]:
        look = asyncio.get_running_loop().run_in_executor(self._threads, self.resolve, host, port)
        try:
            found = await look
        except (OSError, UnicodeError):
            raise httpcore.ConnectError(f"the host {host!r:.100} cannot be resolved") from None
        allowed = [one for one in found if self.allow_private or is_public(one)]
        if found and not allowed:
            raise AddressNotAllowed(_refusal(host))
        return allowed

    def resolve(self, host: str, port: int) -> list[str]:
        """The addresses of a host, each once."""
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        return list(dict.fromkeys(str(address[0]) for *_, address in found))

    async def connect_unix_socket(self, *args: Any, **named: Any) -> httpcore.AsyncNetworkStream:
        raise httpcore.ConnectError("a webhook has no path to a socket")

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
