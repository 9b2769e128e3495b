"""Publishers and receivers of a broker in one process: plain sockets that do little themselves, so that the broker is
the one that has to work."""

from __future__ import annotations

import selectors
import socket
import time
from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import urlsplit

import msgspec

from stamped import Connection, Refused

QUIET_SECONDS = 60.0
Events = Sequence[dict[str, Any]]


class HttpPublisher:
    """Publishes by HTTP on a connection that stays open."""

    def __init__(self, url: str):
        self._host = urlsplit(url).netloc
        self._data = b""
        self.socket = socket.create_connection(self._host.split(":"))  # type: ignore[arg-type]
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def publish(self, items: Events) -> None:
        body = msgspec.json.encode([{"event": event} for event in items])
        head = f"POST /v1/events HTTP/1.1\r\nHost: {self._host}\r\nContent-Type: application/json\r\n"
        self.socket.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)

    def answer(self) -> int | None:
        """The number of the first event; None while the answer is not complete."""
        more = self.socket.recv(1 << 16)
        if not more:
            raise ConnectionError("the broker closed the connection")
        self._data += more
        head, separator, body = self._data.partition(b"\r\n\r\n")
        lines = head.lower().split(b"\r\n")
        size = next((int(line[15:]) for line in lines if line.startswith(b"content-length:")), 0)
        if not separator or len(body) < size:
            return None
        assert b" 201 " in lines[0], self._data
        self._data = body[size:]
        return int(msgspec.json.decode(body[:size])["first"])


class SocketPublisher(Connection):
    """Publishes over a WebSocket. If the broker says that too many events wait, it sends the same ones again later."""

    def __init__(self, url: str):
        super().__init__(url, "/v1/publish")

    def publish(self, items: Events) -> None:
        self._items = items
        self.say({"type": "publish", "request": 1, "items": [{"event": event} for event in items]})

    def answer(self) -> int | None:
        for body in self.messages():
            found = msgspec.json.decode(body)
            if "first" in found:
                return int(found["first"])
            assert found["status"] == 429, found
            time.sleep(found["error"]["retry_after"])
            self.publish(self._items)
        return None


def publisher_of(url: str, http: bool = False) -> HttpPublisher | SocketPublisher:
    """A publisher over a socket, or by HTTP if that is wanted or the broker is of a version without publish socket."""
    if not http:
        try:
            return SocketPublisher(url)
        except Refused:
            pass
    return HttpPublisher(url)


def exchange(
    events: Events,
    batch: int,
    publishers: Sequence[Any],
    receivers: dict[Any, str],
    receive: Callable[[Any, str], int],
    wanted: int,
) -> dict[int, int]:
    """Publish all events, each publisher with one batch on its way, and receive until as much has come as is wanted.
    `receive(receiver, name)` reads what has come in, and returns how much it was. Closes the publishers, and returns
    what they answered for each batch, by the place of its first event."""
    chosen = selectors.DefaultSelector()
    starts = iter(range(0, len(events), batch))
    asked: dict[Any, int] = {}
    answers: dict[int, int] = {}

    def next_batch(publisher: Any) -> None:
        start = next(starts, None)
        if start is None:  # the broker closes a connection without requests after some seconds
            chosen.unregister(publisher.socket)
            publisher.socket.close()
        else:
            asked[publisher] = start
            publisher.publish(events[start : start + batch])

    for one in (*receivers, *publishers):
        chosen.register(one.socket, selectors.EVENT_READ, one)
    for one in publishers:
        next_batch(one)
    arrived, last = 0, time.monotonic()
    while asked or arrived < wanted:
        for key, _ in chosen.select(1.0):
            last, one = time.monotonic(), key.data
            if one in receivers:
                arrived += receive(one, receivers[one])
            elif (answer := one.answer()) is not None:
                answers[asked.pop(one)] = answer
                next_batch(one)
        assert time.monotonic() - last < QUIET_SECONDS, f"{arrived} of {wanted} arrived"
    chosen.close()
    return answers
