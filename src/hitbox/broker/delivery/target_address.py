"""Connections to the targets of webhooks: which addresses are allowed.

A subscriber chooses the url, so without a check the broker would make requests inside its own network for everybody
who may subscribe. A name is resolved here, its addresses are checked, and the connection is made to one of those: a
name that resolves differently a moment later changes nothing.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpcore

from hitbox.broker.errors import BadRequest

CONNECT_SECONDS = 5.0
"""After this time without an answer the next address of a host is tried."""


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
    return address.is_global and not (address.is_multicast or address.is_reserved or address.is_unspecified)


def check_literal(host: str) -> None:
    """Raise if a host is written as an address that is not allowed; a name is checked when it is connected to."""
    try:
        allowed = is_public(host)
    except ValueError:
        return
    if not allowed:
        raise AddressNotAllowed(_refusal(host))


def _refusal(host: str) -> str:
    return (
        f"the host {host!r:.100} has no public address; webhooks to loopback, private and link-local addresses "
        "need the broker's setting allow_private_webhooks"
    )


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
                return await self._inner.connect_tcp(address, port, seconds, local_address, socket_options)
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
