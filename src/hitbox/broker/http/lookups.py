"""Long looks at the index, in a thread and two at a time, so that events go on meanwhile.

To try out or explain an event may mean a look at every subscription. On the event loop that would hold up every
publisher and delivery; many at once, in threads, would take the processor from it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from hitbox.broker.errors import Overloaded

AT_ONCE = 2
P = ParamSpec("P")
T = TypeVar("T")


class Lookups:
    def __init__(self, most: int):
        self.most = most
        self.waiting = 0
        self._turn = asyncio.Semaphore(AT_ONCE)

    async def run(self, look: Callable[P, T], *args: P.args, **named: P.kwargs) -> T:
        """What `look` returns; refused where too many wait already."""
        if self.waiting >= self.most:
            raise Overloaded(f"{self.waiting} requests to try out or explain something wait already", 1)
        self.waiting += 1
        try:
            async with self._turn:
                # shielded: the thread goes on where its requester has gone, and the turn is its own until it ends
                work = asyncio.ensure_future(asyncio.to_thread(look, *args, **named))
                try:
                    return await asyncio.shield(work)
                finally:
                    await asyncio.wait([work])
        finally:
            self.waiting -= 1
