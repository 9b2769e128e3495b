"""The client's side of /v1/publish: one connection, many publishes in flight (see http/publish_socket.py)."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Callable
from typing import Any

import msgspec
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed

MESSAGE_BYTES = "hitbox-message-bytes"
LARGEST = 2**20
"""Larger publishes go by HTTP: on a socket they would delay all others."""
AROUND = 64
"""Bytes of a message beside its items, at most."""


class ConnectionLost(Exception):
    """The connection ended before the answer came: nobody knows whether the events were accepted."""


class PublishSocket:
    """A connection that is opened when it is needed, and again after it was lost."""

    def __init__(self, open_socket: Callable[[], Any]):
        self._open_socket = open_socket
        self.closed = False
        self.largest = LARGEST
        """Bytes of the items of one message; the broker may take fewer, and says so when the connection opens."""
        self._opening = asyncio.Lock()
        self._socket: ClientConnection | None = None
        self._reader: asyncio.Task[None] | None = None
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self._requests = itertools.count(1)

    async def open(self) -> None:
        """Connect, if there is no connection. Raises what opening a WebSocket raises, or ConnectionLost."""
        async with self._opening:
            if self._reader is None or self._reader.done() or self._reader.get_loop() != asyncio.get_running_loop():
                socket = await self._open_socket()
                if self.closed:
                    await socket.close()
                    raise ConnectionLost("the client was closed")
                limit = socket.response.headers.get(MESSAGE_BYTES, "")
                self.largest = min(LARGEST, int(limit) - AROUND) if limit.isdecimal() else LARGEST
                self._socket = socket
                self._reader = asyncio.create_task(self._read(self._socket))

    async def publish(self, items: bytes) -> Any:
        """Send a list of items, as JSON, and return the answer. Raises ConnectionLost."""
        request = next(self._requests)
        answer = self._answers[request] = asyncio.get_running_loop().create_future()
        try:
            if self._socket is None:
                raise ConnectionLost("the connection is closed")
            await self._socket.send(b'{"type":"publish","request":%d,"items":%b}' % (request, items), text=True)
            return await answer
        except ConnectionClosed as problem:
            raise ConnectionLost(str(problem)) from None
        finally:
            del self._answers[request]

    async def _read(self, socket: ClientConnection) -> None:
        problem = ConnectionLost("the connection was lost")
        try:
            while True:
                message = msgspec.json.decode(await socket.recv())
                answer = self._answers.get(message["request"])
                if answer is not None and not answer.done():
                    answer.set_result(message)
        except (ConnectionClosed, msgspec.DecodeError, RecursionError, KeyError, TypeError) as reason:
            problem = ConnectionLost(f"the connection was lost: {reason}")
        finally:
            for answer in self._answers.values():
                if not answer.done():
                    answer.set_exception(problem)
            with contextlib.suppress(ConnectionClosed, OSError):
                await socket.close()

    async def close(self) -> None:
        """Disconnect, for good. Publishes without an answer raise ConnectionLost."""
        self.closed = True
        if self._reader is not None and self._reader.get_loop() is asyncio.get_running_loop():
            self._reader.cancel()
            await asyncio.gather(self._reader, return_exceptions=True)
        self._socket = self._reader = None
