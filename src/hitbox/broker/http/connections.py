"""Sockets: listening, the number of connections, and time limits for each.

uvicorn limits only the pause between two requests on a connection. Here a connection is also closed if

    the head of a request is not complete `request_seconds` after the connection opened (or after its first byte)
    a body is not complete `body_seconds` after its head
    the client has read nothing of what is sent to it for `stall_seconds`
    there are `max_sockets` connections already (status 503)

A WebSocket that sends no hello is closed by its session (websocket.py); one that answers no ping is closed here.
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
from hitbox.broker.stats import Statistics

OTHER_FILES = 100
"""Open files other than connections: the store, snapshots, libraries."""
READ_BYTES, READ_BYTES_UPGRADED = 8 * 1024, 256 * 1024
"""Bytes read from a connection at a time. asyncio's default of 256 KB may hold 40,000 one-byte chunks of a body, or as
many headers, which block the event loop for seconds; WebSocket frames are parsed quickly."""
BACKLOG = 2048
"""Connections that may queue until the broker has started."""
LATE = b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
CROWDED = b"HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\nretry-after: 1\r\ncontent-length: 0\r\n\r\n"
log = logging.getLogger("hitbox.broker")


# ---- listening


def listen(host: str, port: int) -> list[socket.socket]:
    """Sockets bound to all addresses of a host, on one port; 0 is any free port."""
    if not 0 <= port <= 65535:
        raise CannotListen(f"a port must be 0 to 65535, not {port}")
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
            one.listen(BACKLOG)  # listen now: bind alone may succeed on a port that is in use
        except OSError as problem:
            one.close()
            problems.append(CannotListen(_why(problem, host, port)))
            if problem.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                break
        else:
            bound.append(one)
            port = one.getsockname()[1]
    else:
        if bound:  # a name may have addresses that this machine lacks, such as ::1 without IPv6
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
        return f"{host} is not an address of this machine; see --host"
    return f"cannot listen on port {port} of {host}: {problem.strerror or problem}"


def most_sockets(settings: Settings) -> int:
    """The maximum number of connections: the setting, or less if the limit of open files cannot be raised enough."""
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
        "this process may open %d files, so the broker accepts %d connections, not max_sockets=%d; "
        "raise the limit (ulimit -n) or lower the setting",
        soft, soft - OTHER_FILES, settings.max_sockets,
    )  # fmt: skip
    return soft - OTHER_FILES


# ---- connections


class Config(uvicorn.Config):
    """uvicorn's configuration, with the broker's limits for the two protocols below."""

    def __init__(self, app: Any, limits: Settings, most: int, statistics: Statistics, **named: Any):
        self.limits, self.most_sockets, self.statistics = limits, most, statistics
        super().__init__(app, http=HttpProtocol, ws=WebSocketProtocol, **named)


class _StallTimeout(asyncio.Protocol):
    """Aborts a connection whose client reads nothing for `stall_seconds`. A mixin: it comes before the protocol."""

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
            self.config.statistics.count_refusal(503)
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
        """Set the time limit for what the client has to send next. `came`: it has begun to send something."""
        theirs = self.conn.their_state
        if self._upgraded:
            return
        if theirs is h11.SEND_BODY:
            self._await("body")
        elif theirs is h11.IDLE and came:
            self._await("head")
        else:
            self._await("")  # it waits for our answer, or is idle between requests, which uvicorn limits

    def _await(self, what: str) -> None:
        """Start the time limit for the head or the body of a request; once for each."""
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
            self.config.statistics.count_refusal(408)
            self.transport.write(LATE)
        self.transport.close()


class WebSocketProtocol(_StallTimeout, WebSocketsSansIOProtocol):
    """A WebSocket with limits."""

    config: Config

    async def send(self, message: Any) -> None:
        await super().send(message)
        if self.initial_response is not None and self.close_sent:
            self.handshake_complete = True  # refused on purpose; otherwise uvicorn would log an error

    def handle_ping(self) -> None:
        if self.writable.is_set():
            super().handle_ping()
        else:
            self.conn.data_to_send()  # drop pongs for a client that does not read: they would fill memory

    def keepalive_timeout(self) -> None:
        super().keepalive_timeout()
        self.transport.abort()  # close() would wait until the client has read everything
