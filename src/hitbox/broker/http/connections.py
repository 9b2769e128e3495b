"""Sockets: listening, how many there may be, and how long each may keep the broker waiting.

uvicorn bounds only the pause between two requests of a connection. Here a connection is also closed where

    no request, or only a part of its head, came within `request_seconds` of the connection (or of its first byte)
    a body is not complete `body_seconds` after its head
    nothing of what is sent was taken for `stall_seconds`
    there are `max_sockets` of them already (status 503)

A WebSocket that says no hello is closed by its session (sockets.py); one that answers no ping, here and at once.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import resource
import socket
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from hitbox.broker.errors import CannotListen
from hitbox.broker.settings import Settings

OTHER_FILES = 100
"""Open files that are no connections: the store, snapshots, libraries."""
READ_BYTES, READ_BYTES_UPGRADED = 8 * 1024, 256 * 1024
"""What is read of a connection at a time, asyncio's own being 256 KB. That is 40,000 chunks of a body with one byte
each, or as many headers, which keep the parser busy for seconds while all others wait; frames are read quickly."""
BACKLOG = 2048
"""Connections that wait until the broker has started."""
LATE = b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
CROWDED = b"HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\nretry-after: 1\r\ncontent-length: 0\r\n\r\n"
log = logging.getLogger("hitbox.broker")


# ---- listening


def listen(host: str, port: int) -> list[socket.socket]:
    """Sockets bound to all addresses that a host has, with one port; 0 is any free one."""
    if not 0 <= port <= 65535:
        raise CannotListen(f"a port is 0 to 65535, not {port}")
    try:
        found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as problem:
        raise CannotListen(f"the host {host!r:.100} cannot be resolved: {problem}; see --host") from None
    bound: list[socket.socket] = []
    problems: list[CannotListen] = []
    for family, kind, protocol, _, address in dict.fromkeys(found):
        one = socket.socket(family, kind, protocol)
        try:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            one.bind((address[0], port, *address[2:]))
            one.listen(BACKLOG)  # already here: on a port that someone else listens on, bind alone may work
        except OSError as problem:
            one.close()
            problems.append(CannotListen(_why(problem, host, port)))
            if problem.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                break
        else:
            bound.append(one)
            port = one.getsockname()[1]
    else:
        if bound:  # a name may have addresses that this machine has not, ::1 without IPv6, say
            return bound
    for one in bound:
        one.close()
    raise problems[0]


def _why(problem: OSError, host: str, port: int) -> str:
    if problem.errno == errno.EADDRINUSE:
        return f"port {port} of {host} is in use, by another broker or another program; choose another one with --port"
    if problem.errno == errno.EACCES:
        return f"no permission to listen on port {port} of {host}; choose one above 1023 with --port"
    if problem.errno == errno.EADDRNOTAVAIL:
        return f"{host} is no address of this machine; see --host"
    return f"cannot listen on port {port} of {host}: {problem.strerror or problem}"


def most_sockets(settings: Settings) -> int:
    """How many connections there may be: the setting, as far as the process may open files (raised where it may)."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = settings.max_sockets + OTHER_FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return settings.max_sockets
    if soft <= OTHER_FILES:
        raise CannotListen(f"this process may open {soft} files, which is too few: raise the limit (ulimit -n)")
    log.warning(
        "this process may open %d files, so the broker takes %d connections, not max_sockets=%d; "
        "raise the limit (ulimit -n) or lower the setting",
        soft, soft - OTHER_FILES, settings.max_sockets,
    )  # fmt: skip
    return soft - OTHER_FILES


# ---- connections


class Config(uvicorn.Config):
    """uvicorn's, with the broker's limits for the two protocols below."""

    def __init__(self, app: Any, limits: Settings, most: int, **named: Any):
        self.limits, self.most_sockets = limits, most
        super().__init__(app, http=HttpProtocol, ws=WebSocketProtocol, **named)


class _StallTimeout(asyncio.Protocol):
    """Cuts a connection that takes nothing for a while; comes before the protocol whose pauses it sees."""

    config: Config
    loop: asyncio.AbstractEventLoop
    transport: asyncio.Transport
    _stalled: asyncio.TimerHandle | None = None

    def pause_writing(self) -> None:
        super().pause_writing()
        self._resumed()
        self._stalled = self.loop.call_later(self.config.limits.stall_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._resumed()

    def connection_lost(self, exc: Exception | None) -> None:
        self._resumed()
        super().connection_lost(exc)

    def _resumed(self) -> None:
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None


class HttpProtocol(_StallTimeout, H11Protocol):
    """HTTP/1.1 with limits."""

    config: Config

    def __init__(self, config: Config, *args: Any, **named: Any):
        super().__init__(config, *args, **named)
        self._timer: asyncio.TimerHandle | None = None
        self._awaited = ""
        self._upgraded = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        transport.max_size = READ_BYTES  # type: ignore[attr-defined]
        if len(self.connections) > self.config.most_sockets:
            transport.write(CROWDED)
            transport.close()
        else:
            self._await("head")

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._look(came=True)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._look(came=bool(self.conn.trailing_data[0]))

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        self._await("")
        self._upgraded = True
        self.transport.max_size = READ_BYTES_UPGRADED  # type: ignore[attr-defined]
        super().handle_websocket_upgrade(event)

    def connection_lost(self, exc: Exception | None) -> None:
        self._await("")
        super().connection_lost(exc)

    def _look(self, came: bool) -> None:
        """What is the other side to send now, after something came (if only a line break) or an answer went out?"""
        theirs = self.conn.their_state
        if self._upgraded:
            return
        if theirs is h11.SEND_BODY:
            self._await("body")
        elif theirs is h11.IDLE and came:
            self._await("head")
        else:
            self._await("")  # it waits for our answer, or rests between two requests, which uvicorn bounds

    def _await(self, what: str) -> None:
        """Give the other side time for the head or the body of a request, counted once for each."""
        if what == self._awaited:
            return
        self._awaited = what
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if what:
            limits = self.config.limits
            self._timer = self.loop.call_later(
                limits.body_seconds if what == "body" else limits.request_seconds, self._late
            )

    def _late(self) -> None:
        started = self._awaited == "body" or bool(self.conn.trailing_data[0])
        if started and (self.cycle is None or not self.cycle.response_started or self.cycle.response_complete):
            self.transport.write(LATE)
        self.transport.close()


class WebSocketProtocol(_StallTimeout, WebSocketsSansIOProtocol):
    """A WebSocket with limits."""

    config: Config

    async def send(self, message: Any) -> None:
        await super().send(message)
        if self.initial_response is not None and self.close_sent:
            self.handshake_complete = True  # it was refused, as it should be; uvicorn would log an error

    def handle_ping(self) -> None:
        if self.writable.is_set():
            super().handle_ping()
        else:
            self.conn.data_to_send()  # who takes nothing gets no pongs: they would pile up here

    def keepalive_timeout(self) -> None:
        super().keepalive_timeout()
        self.transport.abort()  # closing alone would wait until someone who takes nothing has taken what is left
