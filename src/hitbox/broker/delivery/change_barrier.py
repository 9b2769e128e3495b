"""Events pass, changes close the gate: each event is matched against exactly the subscriptions made before it.

An event is inside from before it is stored until its matches are known. A change of subscriptions waits until nobody is
inside, and events that come meanwhile wait outside. As the store commits in the same order, a crash cannot leave an
event unmatched behind a change that came after it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class ChangeBarrier:
    def __init__(self) -> None:
        self.events_inside = 0
        self._turn = asyncio.Lock()
        self._open, self._empty = asyncio.Event(), asyncio.Event()
        self._open.set()
        self._empty.set()

    async def enter(self, count: int) -> None:
        while not self._open.is_set():
            await self._open.wait()
        self.events_inside += count
        self._empty.clear()

    def leave(self, count: int) -> None:
        self.events_inside -= count
        if not self.events_inside:
            self._empty.set()

    @asynccontextmanager
    async def exclusive(self) -> AsyncIterator[None]:
        async with self._turn:
            self._open.clear()
            try:
                await self._empty.wait()
                yield
            finally:
                self._open.set()
