"""A barrier between events and changes: each event is matched against exactly the subscriptions made before it.

An event is inside from before it is stored until its matches are known. A change of subscriptions waits until no event
is inside; events that arrive during a change wait until it ends. The store commits in the same order, so after a crash
no event is left unmatched that is older than a stored change.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class ChangeBarrier:
    """Many events may be inside at once, or one change."""

    def __init__(self) -> None:
        self.events_inside = 0
        self._turn = asyncio.Lock()
        self._open, self._empty = asyncio.Event(), asyncio.Event()
        self._open.set()
        self._empty.set()

    def is_open(self) -> bool:
        """Whether events may enter: no change is waiting or running."""
        return self._open.is_set()

    async def opened(self) -> None:
        """Wait until events may enter."""
        while not self._open.is_set():
            await self._open.wait()

    async def enter(self, count: int) -> None:
        """Admit `count` events as soon as they may enter."""
        await self.opened()
        self.enter_now(count)

    def enter_now(self, count: int) -> None:
        """Admit `count` events; the barrier is open."""
        self.events_inside += count
        self._empty.clear()

    def leave(self, count: int) -> None:
        """`count` events have been matched, or were not stored."""
        self.events_inside -= count
        if not self.events_inside:
            self._empty.set()

    @asynccontextmanager
    async def exclusive(self) -> AsyncIterator[None]:
        """Make a change while no event is inside."""
        async with self._turn:
            self._open.clear()
            try:
                await self._empty.wait()
                yield
            finally:
                self._open.set()
