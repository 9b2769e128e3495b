"""Subscribers that note when the kernel received a delivery, not when Python came round to reading it.

One thread reads all connections (a plain WebSocket client on sockets with SO_TIMESTAMPNS) and acknowledges at once.
Where one read brings several segments the stamp is that of the last one.
"""

from __future__ import annotations

import base64
import os
import selectors
import socket
import struct
import threading
from collections import defaultdict
from collections.abc import Iterator
from urllib.parse import urlsplit

import msgspec

from hitbox.client import Delivery

SO_TIMESTAMPNS = 35
TEXT, CLOSE, PING, PONG = 1, 8, 9, 10


class Frame(msgspec.Struct):
    type: str
    first: int = 0
    deliveries: list[Delivery] = []


class Refused(Exception):
    """The broker refused the handshake."""


class Connection:
    """A plain WebSocket. `hello` makes it the connection of a subscriber."""

    def __init__(self, url: str, path: str = "/v1/connect", source: str | None = None):
        self._data, where = b"", urlsplit(url)
        own = None if source is None else (source, 0)
        self.socket = socket.create_connection((where.hostname, where.port), source_address=own)
        self.socket.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        key = base64.b64encode(os.urandom(16)).decode()
        head = f"GET {path} HTTP/1.1\r\nHost: {where.netloc}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        self.socket.sendall(f"{head}Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n".encode())
        while b"\r\n\r\n" not in self._data:
            self._data += self.socket.recv(4096)
        answer, _, self._data = self._data.partition(b"\r\n\r\n")
        if b" 101 " not in answer:
            raise Refused(answer)

    def hello(self, name: str) -> None:
        self.name = name
        self.say({"type": "hello", "subscriber": name, "window": 2000})

    def say(self, message: object) -> None:
        self._send(TEXT, msgspec.json.encode(message))

    def _send(self, kind: int, data: bytes) -> None:
        if len(data) < 126:
            size = struct.pack("!B", 128 | len(data))
        else:
            size = struct.pack("!BH", 254, len(data)) if len(data) < 2**16 else struct.pack("!BQ", 255, len(data))
        self.socket.sendall(bytes([128 | kind]) + size + bytes(4) + data)  # a mask of zeros leaves the data as it is

    def messages(self) -> Iterator[bytes]:
        """The messages that have come in; `when`: the time at which the kernel got the last part of them."""
        data, notes, _, _ = self.socket.recvmsg(1 << 20, 64)
        if not data:
            raise ConnectionError("the broker closed the connection")
        seconds, nanoseconds = struct.unpack("qq", notes[0][2])
        self.when = seconds + nanoseconds / 1e9
        self._data += data
        while frame := self._frame():
            kind, body = frame
            if kind == TEXT:
                yield body
            elif kind == PING:
                self._send(PONG, body)

    def deliveries(self) -> list[Delivery]:
        """The deliveries that have come in; acknowledged."""
        frames = [msgspec.json.decode(body, type=Frame) for body in self.messages()]
        found = [delivery for frame in frames for delivery in frame.deliveries]
        if found and frames[-1].first:
            self.say({"type": "ack", "ranges": [[1, frames[-1].first + len(frames[-1].deliveries) - 1]]})
        elif found:  # a broker before hitbox.json.2
            self.say({"type": "ack", "seqs": [delivery.seq for delivery in found]})
        return found

    def _frame(self) -> tuple[int, bytes] | None:
        if len(self._data) < 2:
            return None
        size, start = self._data[1] & 127, 2
        if size >= 126:
            start = 4 if size == 126 else 10
            if len(self._data) < start:
                return None
            size = int.from_bytes(self._data[2:start], "big")
        if len(self._data) < start + size:
            return None
        kind, body = self._data[0] & 15, self._data[start : start + size]
        self._data = self._data[start + size :]
        return kind, body


class Stamped:
    """All subscribers, connected; `got` holds (subscriber, delivery, when) of each event, in seconds since 1970."""

    def __init__(self, url: str, names: list[str]):
        self.got: dict[int, list[tuple[str, Delivery, float]]] = defaultdict(list)
        self._chosen = selectors.DefaultSelector()
        self._over = threading.Event()
        self._connections = [Connection(url) for _ in names]
        for name, connection in zip(names, self._connections, strict=True):
            connection.hello(name)
            self._chosen.register(connection.socket, selectors.EVENT_READ, connection)
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        while not self._over.is_set():
            for key, _ in self._chosen.select(0.2):
                for delivery in key.data.deliveries():
                    self.got[delivery.seq].append((key.data.name, delivery, key.data.when))

    def close(self) -> None:
        self._over.set()
        self._thread.join()
        for connection in self._connections:
            connection.socket.close()
