"""Slow lookups in the index and in the store run in two threads of their own.

To try or explain an event may visit every subscription, and a list of events has megabytes. On the event loop that
would delay all publishers and deliveries; many lookups at once in threads would compete with it for the processor.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import ParamSpec, TypeVar

from hitbox.broker.errors import Overloaded

AT_ONCE = 2
P = ParamSpec("P")
T = TypeVar("T")


class Lookups:
    """At most `most` lookups are running or waiting."""

    def __init__(self, most: int):
        self.most = most
        self.waiting = 0
        self._turn = asyncio.Semaphore(AT_ONCE)
        self._threads = ThreadPoolExecutor(AT_ONCE, "hitbox-lookup")

    async def run(self, look: Callable[P, T], *args: P.args, **named: P.kwargs) -> T:
        """The result of `look`. Raises Overloaded if too many are waiting already."""
        if self.waiting >= self.most:
            raise Overloaded(f"{self.waiting} requests to try, explain or list events are waiting already", 1)
        self.waiting += 1
        try:
            async with self._turn:
                # shielded: if the request is cancelled the thread still runs, and must count until it ends
                work = asyncio.get_running_loop().run_in_executor(self._threads, partial(look, *args, **named))
                try:
                    return await asyncio.shield(work)
                finally:
                    await asyncio.wait([work])
        finally:
            self.waiting -= 1
