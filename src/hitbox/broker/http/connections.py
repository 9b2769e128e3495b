"""Sockets: listening, the number of connections, and time limits for each.

uvicorn limits only the pause between two requests on a connection. Here a connection is also closed if

    the head of a request is not complete `request_seconds` after the connection opened (or after its first byte)
    a body is not complete `body_seconds` after its head, or a large message of a WebSocket after its beginning
    the client has read nothing of what is sent to it for `stall_seconds`
    there are `max_sockets` connections already (status 503)
    the head of a request is larger than `max_header_bytes`, or names two lengths of the body (status 400)

A connection is closed as soon as it is accepted, before TLS begins, if its address has `max_address_sockets` already,
or opens more than `address_rate` per second. The TLS handshake must be over within `request_seconds`. What was refused
is counted by reason, for /metrics.

An upgrade to a WebSocket has to be answered within `request_seconds`, too; one that `websockets` does not take is
refused (status 400). A WebSocket that sends no hello is closed by its session (websocket.py), one that answers no ping
by keepalive.py.

Text messages, which are nearly all that a WebSocket carries, take a short way: a message in one frame is unmasked, and
handed to `take` if its session waits for it, or queued; `send_texts` writes bytes that are UTF-8 already. Everything
else (control frames, fragments, whatever is invalid) goes to the `websockets` library, one whole frame at a time.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import ipaddress
import logging
import resource
import socket
import struct
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.utils import ClientDisconnected
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import Frame, apply_mask  # type: ignore[attr-defined]  # native where there is such code
from websockets.protocol import State

from hitbox.broker.clock import time
from hitbox.broker.http.body_memory import Account
from hitbox.broker.http.keepalive import Keepalive, probe
from hitbox.broker.http.tls import Tls
from hitbox.broker.settings import Settings
from hitbox.broker.stats import Statistics
from hitbox.protocol.errors import CannotListen, Overloaded

OTHER_FILES = 100
"""Open files other than connections: the store, snapshots, libraries."""
READ_BYTES, READ_BYTES_UPGRADED = 8 * 1024, 32 * 1024
"""Bytes read from a connection at a time, before and after it becomes a WebSocket. asyncio's default of 256 KB may hold
40,000 one-byte chunks of a body, or as many headers, which block the event loop for seconds, or 40,000 pings: 0.7 s."""
QUEUED_MESSAGES, QUEUED_BYTES = 16, 64 * 1024
"""Messages of a WebSocket that may wait for its session. At this number, or after a message of this size, nothing more
is read from the connection until they are taken."""
MOST_FRAGMENTS = 10_000
"""Frames of one message. Empty ones do not count for its size, and cost time and memory, too."""
TURN_SECONDS = 0.005
"""So long a WebSocket may handle what it has read; then the others get a turn. One read may hold 1,000 messages."""
TEXT_FRAME, PONG_FRAME, CONTINUATION, FINAL, MASKED = 0x81, 0x8A, 0, 0x80, 0x80
PING = b"\x89\x00"
MOST_CONTROL_BYTES = 125
DISCARD = struct.pack("ii", 1, 0)
"""SO_LINGER: what the system has not sent when the connection is closed is thrown away."""
UNSENT = 0x894B
"""SIOCOUTQNSD of Linux: how much of what was written to a socket was not sent yet."""
TOO_LARGE = 431
"""How h11 marks the error of a head that does not end."""
ACCEPTED_AT_ONCE = 32
"""Connections that are accepted or refused in one turn of the event loop; each takes up to 0.1 ms."""
BACKLOG = 2048
"""Connections that may queue until the broker has started."""
LATE = b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
CROWDED = b"HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\nretry-after: 1\r\ncontent-length: 0\r\n\r\n"
log = logging.getLogger("hitbox.broker")


# ---- listening


class Doorman:
    """Decides which addresses may open one more connection. It remembers the busiest addresses of the last second."""

    def __init__(self, limits: Settings, closed: Counter[str]):
        self.limits, self.closed = limits, closed
        self.open: Counter[str] = Counter()
        self._second = 0
        self._opened: Counter[str] = Counter()

    def refuses(self, address: str) -> str:
        """Why one more connection of this address is refused; empty if it is welcome, and counted. It is an IPv4
        address, or a network of 2^64 IPv6 addresses, which is what one customer has."""
        second = int(time.monotonic())
        if second != self._second:
            self._second = second
            self._opened.clear()
        self._opened[address] += 1
        if 0 < self.limits.address_rate < self._opened[address]:
            return "rate"
        if self.open[address] >= self.limits.max_address_sockets:
            return "address"
        self.open[address] += 1
        return ""

    def left(self, address: str) -> None:
        self.open[address] -= 1
        if self.open[address] <= 0:
            del self.open[address]


def _network(address: str) -> str:
    """The address by which connections are counted.

    >>> _network("192.0.2.1"), _network("2001:db8::1") == _network("2001:db8::2"), _network("fe80::1%eth0")
    ('192.0.2.1', True, 'fe80::')
    """
    if ":" not in address:
        return address
    number = int(ipaddress.IPv6Address(address.partition("%")[0]))
    return str(ipaddress.IPv6Address(number >> 64 << 64))


class _Listening(socket.socket):
    """A listening socket whose doorman looks at every connection before anything is read from it."""

    doorman: Doorman
    _taken = 0  # in this turn of the event loop

    def accept(self) -> tuple[socket.socket, Any]:
        """The next connection that is welcome. The event loop asks until none waits; after ACCEPTED_AT_ONCE of them it
        is told so, and asks again in its next turn: who floods the socket does not keep the others from theirs."""
        while self._taken < ACCEPTED_AT_ONCE:
            try:
                plain, address = super().accept()
            except OSError:
                self._taken = 0
                raise
            self._taken += 1
            network = _network(address[0])
            reason = self.doorman.refuses(network)
            if not reason:
                found = _Accepted(plain.family, plain.type, plain.proto, plain.detach())
                found.enter(self.doorman, network)
                probe(found)
                return found, address
            self.doorman.closed[reason] += 1
            plain.close()
        self._taken = 0
        raise BlockingIOError


class _Accepted(socket.socket):
    """An accepted connection, which tells the doorman when it ends."""

    _leave: Callable[[], None] | None = None

    def enter(self, doorman: Doorman, address: str) -> None:
        self._leave = lambda: doorman.left(address)

    def close(self) -> None:
        leave, self._leave = self._leave, None
        super().close()
        if leave is not None:
            leave()


def listen(host: str, port: int, doorman: Doorman) -> list[socket.socket]:
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
        one = _Listening(family, kind, protocol)
        one.doorman = doorman
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
    for other in bound:
        other.close()
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

    def __init__(self, app: Any, limits: Settings, most: int, statistics: Statistics, tls: Tls | None, **named: Any):
        self.limits, self.most_sockets, self.tls = limits, most, tls
        self.statistics, self.closed = statistics, statistics.closed
        self.keepalive = Keepalive()
        super().__init__(app, http=HttpProtocol, ws=WebSocketProtocol, **named)

    def load(self) -> None:
        super().load()
        self.ssl = None if self.tls is None else self.tls.context


class _Unread(asyncio.Protocol):
    """What to do about a client that does not read: it is aborted after `stall_seconds`, and at once if it may not have
    any more what it has not read. A mixin: it comes before the protocol. It is `scope["extensions"]["hitbox"]`."""

    config: Config
    loop: asyncio.AbstractEventLoop
    transport: asyncio.Transport
    _stalled: asyncio.TimerHandle | None = None
    sent_bytes = 0
    """Of messages that took the short way, past the application."""

    def pause_writing(self) -> None:
        super().pause_writing()
        self._resumed()
        self._stalled = self.loop.call_later(self.config.limits.stall_seconds, self._abort)

    def _abort(self) -> None:
        self.config.closed["stalled"] += 1
        self.transport.abort()

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

    def has_unsent(self) -> bool:
        """Whether some of what was written has not left this machine, as far as it is known."""
        under_tls = getattr(getattr(self.transport, "_ssl_protocol", None), "_transport", self.transport)
        if self.transport.get_write_buffer_size() or under_tls.get_write_buffer_size():
            return True
        try:
            return any(fcntl.ioctl(self._socket().fileno(), UNSENT, bytes(4)))
        except OSError:  # closed, or this system does not tell
            return False

    def discard_unsent(self) -> None:
        """Abort the connection if something is unsent, which then never reaches the client."""
        if self.has_unsent():
            with contextlib.suppress(OSError):  # closed already
                self._socket().setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, DISCARD)
            self.transport.abort()

    def _socket(self) -> socket.socket:
        found: socket.socket = self.transport.get_extra_info("socket")
        return found


def _read_at_most(transport: Any, size: int) -> None:
    """Set how much is read at a time. With TLS that is an attribute of asyncio's protocol in between."""
    getattr(transport, "_ssl_protocol", transport).max_size = size


class _Requests(h11.Connection):
    """Reads requests. Refuses what h11 takes: a large head that came at once, and a body of two lengths, which a proxy
    may have ended elsewhere: what follows would be a request to one and a part of the body to the other."""

    def __init__(self, most: int, closed: Counter[str]):
        super().__init__(h11.SERVER, most)
        self._most, self._closed = most, closed

    def next_event(self) -> Any:
        try:
            event = super().next_event()
            if isinstance(event, h11.Request):
                self._check(event)
        except h11.RemoteProtocolError as problem:
            self._closed["header_bytes"] += problem.error_status_hint == TOO_LARGE
            raise
        return event

    def _check(self, head: h11.Request) -> None:
        first = len(head.method) + len(head.target) + len("  HTTP/1.1\r\n")
        others = sum(len(name) + len(value) + len(": \r\n") for name, value in head.headers)
        if first + others > self._most:
            raise h11.RemoteProtocolError("the head is too large", TOO_LARGE)
        if {b"content-length", b"transfer-encoding"} <= {name for name, _ in head.headers}:
            raise h11.RemoteProtocolError("the body has two lengths")


class HttpProtocol(_Unread, H11Protocol):
    """HTTP/1.1 with limits."""

    config: Config

    def __init__(self, config: Config, *args: Any, **named: Any):
        super().__init__(config, *args, **named)
        self.conn = _Requests(config.limits.max_header_bytes, config.closed)
        self._timer: asyncio.TimerHandle | None = None
        self._awaited = ""
        self._upgraded = False
        self.app = partial(self._run, self.app)

    async def _run(self, app: Any, scope: Any, receive: Any, send: Any) -> None:
        await app({**scope, "extensions": {"hitbox": self}}, receive, send)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        _read_at_most(transport, READ_BYTES)
        if len(self.connections) > self.config.most_sockets:
            self.config.closed["sockets"] += 1
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
        _read_at_most(self.transport, READ_BYTES_UPGRADED)
        super().handle_websocket_upgrade(event)
        if not cast(WebSocketProtocol, self.transport.get_protocol()).handshake_initiated:
            # `websockets` takes no body, no line above 8 KB and no more than 128 headers. It says nothing then.
            self.send_400_response("Invalid WebSocket upgrade received.")

    def connection_lost(self, exc: Exception | None) -> None:
        self._await("")
        super().connection_lost(exc)

    def _look(self, came: bool) -> None:
        """Set the time limit for what the client has to send next. `came`: it has begun to send something."""
        theirs = self.conn.their_state
        if self._upgraded:
            return
        if theirs is h11.SEND_BODY and not self.transport.is_closing():
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
        self.config.closed[self._awaited] += 1
        started = self._awaited == "body" or bool(self.conn.trailing_data[0])
        if started and (self.cycle is None or not self.cycle.response_started or self.cycle.response_complete):
            self.config.statistics.count_refusal(408)
            self.transport.write(LATE)
        self.transport.close()


class WebSocketProtocol(_Unread, WebSocketsSansIOProtocol):
    """A WebSocket with limits, and a short way for text messages."""

    config: Config

    def __init__(self, config: Config, *args: Any, **named: Any):
        super().__init__(config, *args, **named)
        self._partial = bytearray()  # of a frame that is not complete
        self._fragments = False  # a message in several frames has begun
        self._fragment_bytes = 0
        self.take: Callable[[bytes], bool] | None = None
        """Gets each text message first, while the session waits for it; true: it was handled at once."""
        self._awaited = False  # the session waits for the next message
        self._turn_ends = 0.0  # when the others get a turn
        self._early = False  # data came before the handshake was answered: the library may hold a part of a frame
        self._asked = False  # whether it is there, with a ping that it has not answered
        self._heard = False  # since it was last looked at
        self._opening: asyncio.TimerHandle | None = None  # until the handshake is answered
        self.account: Account | None = None
        """Of what has come of a message that is not complete; and the time that is left for it."""
        self._completing: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._opening = self.loop.call_later(self.config.limits.request_seconds, self._not_opened)

    def _not_opened(self) -> None:
        self.config.closed["head"] += 1
        self.transport.abort()

    def _opened(self) -> None:
        if self._opening is not None:
            self._opening.cancel()
            self._opening = None

    async def run_asgi(self) -> None:
        extensions: Any = self.scope["extensions"]
        extensions["hitbox"] = self
        await super().run_asgi()

    def connection_lost(self, exc: Exception | None) -> None:
        self._opened()
        if self._completing is not None:
            self._completing.cancel()
        self.read_paused = False  # nothing more is read: a TLS transport that is closed cannot resume
        super().connection_lost(exc)

    # ---- in

    def data_received(self, data: bytes) -> None:
        self._asked, self._heard = False, True
        if self._early or not self.handshake_complete:
            self._early = self._early or self.handshake_initiated
            super().data_received(data)
            self._count(len(self.conn.reader.buffer) + sum(map(len, self.frames)), self.read_paused)
            return
        self._turn_ends = time.monotonic() + TURN_SECONDS
        self._partial += data
        used = self._whole_frames()
        del self._partial[:used]
        self._count(len(self._partial) + self._fragment_bytes, used > 0 and not self._fragments)

    def _count(self, size: int, complete: bool) -> None:
        """A message that is not complete has so many bytes; few, as between two reads, do not count. `complete`: one
        before it has come to its end."""
        if self._completing is not None and (complete or size <= READ_BYTES_UPGRADED):
            self._completing.cancel()
            self._completing = None
        if self.account is None or (size <= READ_BYTES_UPGRADED and not self.account.size):
            return
        try:
            self.account.hold(size if size > READ_BYTES_UPGRADED else 0)
        except Overloaded as problem:
            self._fail(1013, str(problem))
        else:
            if self._completing is None and self.account.size:
                self._completing = self.loop.call_later(self.config.limits.body_seconds, self._not_complete)

    def _not_complete(self) -> None:
        if self.read_paused:  # by the session, so that is not the client's fault
            self._completing = self.loop.call_later(self.config.limits.body_seconds, self._not_complete)
            return
        self.config.closed["body"] += 1
        self._fail(1008, "a message took too long to arrive")

    def _fail(self, code: int, reason: str) -> None:
        if not self.close_sent:
            self.conn.fail(code, reason[:120])
            self.handle_parser_exception()

    def _whole_frames(self) -> int:
        """Handle all whole frames; returns the number of bytes that they have."""
        data, at = self._partial, 0
        while len(data) - at >= 2:
            kind, length, start = data[at], data[at + 1] & 127, at + 2
            if length >= 126:
                start = at + (4 if length == 126 else 10)
                if len(data) < start:
                    break
                length = int.from_bytes(data[at + 2 : start], "big")
            if not data[at + 1] & MASKED or length > self.config.ws_max_size:
                self._early = True  # an error: the library knows how to refuse it
                super().data_received(bytes(data[at:]))
                return len(data)
            end = start + 4 + length
            if len(data) < end:
                break
            if kind == TEXT_FRAME and not self._fragments:
                self._queue(apply_mask(data[start + 4 : end], data[start : start + 4]))
            elif kind == PONG_FRAME and length <= MOST_CONTROL_BYTES:
                self._heard = False  # the answer to a ping; the next one follows
            else:
                if kind & 0x0F in (CONTINUATION, 1, 2):
                    self._fragments = not kind & FINAL
                    self._fragment_bytes = self._fragment_bytes + length if self._fragments else 0
                super().data_received(bytes(data[at:end]))
                if self.transport.is_closing():
                    return len(data)
            at = end
        return at

    def _queue(self, message: bytes) -> None:
        if self.close_sent:
            return
        alone = self._awaited and self.queue.empty() and time.monotonic() < self._turn_ends
        if alone and self.take is not None and self.take(message):
            return
        self.queue.put_nowait({"type": "websocket.receive", "bytes": message})
        if not self.read_paused and (self.queue.qsize() >= QUEUED_MESSAGES or len(message) > QUEUED_BYTES):
            self.read_paused = True
            self.transport.pause_reading()

    async def receive(self) -> Any:
        """The next message, for the session."""
        if not self.queue.empty() and time.monotonic() >= self._turn_ends:
            await asyncio.sleep(0)
            self._turn_ends = time.monotonic() + TURN_SECONDS
        self._awaited = True
        try:
            return await super().receive()
        finally:
            self._awaited = False

    # ---- out

    async def send_texts(self, messages: list[bytes]) -> None:
        """Send messages that are UTF-8 already."""
        if not self.writable.is_set():
            await self.writable.wait()
        if not self.can_send():
            raise ClientDisconnected
        self.send_now(messages)

    def can_send(self) -> bool:
        """Whether messages can be sent at once: the connection stands, and its client reads."""
        open = not self.disconnected and not self.close_sent and self.conn.state is State.OPEN
        return open and self.writable.is_set() and not self.transport.is_closing()  # it may have failed just now

    def send_now(self, messages: list[bytes]) -> None:
        self.sent_bytes += sum(map(len, messages))
        self.transport.write(b"".join([part for message in messages for part in (_head(len(message)), message)]))

    async def send(self, message: Any) -> None:
        await super().send(message)
        if self.initial_response is not None and self.close_sent:
            self.handshake_complete = True  # refused on purpose; otherwise uvicorn would log an error
        if self.handshake_complete:
            self._opened()

    def handle_cont(self, event: Frame) -> None:
        if len(self.frames) < MOST_FRAGMENTS:
            super().handle_cont(event)
        else:
            self._fail(1009, "a message in too many frames")

    def handle_ping(self) -> None:
        if self.writable.is_set():
            super().handle_ping()
        else:
            self.conn.data_to_send()  # drop pongs for a client that does not read: they would fill memory

    # ---- is the client still there?

    def start_keepalive(self) -> None:
        self.config.keepalive.watch(self)

    def stop_keepalive(self) -> None:
        self.config.keepalive.forget(self)

    def has_client(self) -> bool:
        if self._asked and not self.read_paused:
            return False
        if not self._heard and self.can_send():
            self._asked = True
            self.transport.write(PING)
        self._heard = False
        return True

    def close_silent(self) -> None:
        self.config.closed["silent"] += 1
        self.transport.abort()  # close() would wait until the client has read everything


def _head(length: int) -> bytes:
    """The head of a text frame."""
    if length < 126:
        return bytes((TEXT_FRAME, length))
    return (
        struct.pack("!BBH", TEXT_FRAME, 126, length) if length < 2**16 else struct.pack("!BBQ", TEXT_FRAME, 127, length)
    )
