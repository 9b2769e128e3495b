"""Messages of a subscriber to the broker, over whichever connection there is now, and the answers to requests."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence
from typing import Any

from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed

from hitbox.client.errors import error_of
from hitbox.client.wire import FIRST_PAUSE, encoded
from hitbox.protocol.errors import StoreFailed

MOST_NUMBERS = 10_000
"""Maximum of numbers in one message: a limit of the broker."""


class Channel:
    def __init__(self) -> None:
        self.socket: ClientConnection | None = None
        """The connection; None while there is none."""
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._requests = itertools.count(1)

    async def send(self, message: dict[str, Any]) -> bool:
        """False where there is no connection."""
        try:
            if self.socket is not None:
                await self.socket.send(encoded(message).decode())
                return True
        except ConnectionClosed:
            pass
        return False

    async def send_parts(self, kind: str, field: str, values: Sequence[Any]) -> bool:
        """As many messages as the values need; False where one of them was not sent."""
        for start in range(0, len(values), MOST_NUMBERS):
            if not await self.send({"type": kind, field: values[start : start + MOST_NUMBERS]}):
                return False
        return True

    async def ask(self, message: dict[str, Any]) -> bool:
        """Send a request whose answer nobody waits for."""
        return await self.send({**message, "request": next(self._requests)})

    async def request(self, message: dict[str, Any], alive: Callable[[], bool]) -> dict[str, Any]:
        """Send a request and wait for its answer; sent again on the next connection if this one is lost, as long as
        `alive` says that there may be another one."""
        while True:
            request = next(self._requests)
            waiting = self._answers[request] = asyncio.get_running_loop().create_future()
            try:
                if await self.send({**message, "request": request}):
                    answer: dict[str, Any] = await waiting
                    if answer["type"] == "error":
                        raise error_of(answer)
                    return answer
            except ConnectionClosed:
                pass
            finally:
                self._answers.pop(request, None)
            if not alive():
                raise StoreFailed("the connection to the broker is closed")
            await asyncio.sleep(FIRST_PAUSE)

    def answered(self, message: dict[str, Any]) -> None:
        waiting = self._answers.get(message["request"])
        if waiting is not None and not waiting.done():
            waiting.set_result(message)

    def lost(self, problem: Exception | None = None) -> None:
        """There is no connection any more: requests are sent again, or end with `problem`."""
        self.socket = None
        for waiting in self._answers.values():
            if not waiting.done():
                waiting.set_exception(problem or ConnectionClosed(None, None))
