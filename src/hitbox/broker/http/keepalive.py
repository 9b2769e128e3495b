"""Which WebSockets still have a client: one timer asks all of them in turn.

    asked, has not answered      the client is gone: the connection is closed
    has sent something           it is there, nothing is asked
    otherwise                    a ping

A connection is looked at every PING_SECONDS. If there are many, the pings of all of them together would take more of a
core than the work: beyond PINGS_PER_SECOND times PING_SECONDS connections, each is looked at less often. The kernel
looks, too (`probe`): it notices a machine or a network that is gone, at no cost to the broker.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from itertools import islice
from typing import Protocol

PING_SECONDS = 20.0
PINGS_PER_SECOND = 100
TICK_SECONDS = 0.5
MOST_PER_TICK = 200
"""Connections that are looked at without a turn for others."""
PROBES = {"TCP_KEEPIDLE": 60, "TCP_KEEPINTVL": 20, "TCP_KEEPCNT": 3}


class Watched(Protocol):
    """A connection."""

    def has_client(self) -> bool:
        """Whether the last ping was answered; asks again, if nothing else has come meanwhile."""

    def close_silent(self) -> None: ...


class Keepalive:
    def __init__(self) -> None:
        self._due: dict[Watched, float] = {}  # in the order in which they are looked at
        self._timer: asyncio.TimerHandle | None = None

    def watch(self, one: Watched) -> None:
        loop = asyncio.get_running_loop()
        self._due[one] = loop.time() + self.interval()
        if self._timer is None:
            self._timer = loop.call_later(TICK_SECONDS, self._tick)

    def forget(self, one: Watched) -> None:
        self._due.pop(one, None)

    def interval(self) -> float:
        return max(PING_SECONDS, len(self._due) / PINGS_PER_SECOND)

    def _tick(self) -> None:
        loop = asyncio.get_running_loop()
        now = loop.time()
        for one, due in list(islice(self._due.items(), MOST_PER_TICK)):
            if due > now:
                break
            del self._due[one]
            if one.has_client():
                self._due[one] = now + self.interval()
            else:
                one.close_silent()
        self._timer = loop.call_later(TICK_SECONDS, self._tick) if self._due else None


def probe(connection: socket.socket) -> None:
    """Let the kernel find out whether the other side is still there."""
    with contextlib.suppress(OSError):  # it has gone already
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in PROBES.items():
            if hasattr(socket, name):
                connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
