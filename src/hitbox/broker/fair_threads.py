"""Threads for work that may take long and that anybody may ask for: lookups, replays, the predicates of live streams.

To try or explain an event may visit every subscription, a list of events has megabytes, and a replay matches all stored
events. On the event loop that would delay all publishers and deliveries; much of it at once in threads would compete
with it for the processor; and in the threads that everything else uses it would stop everything else.

So each kind has a few threads of its own. A principal has half of them at a time, and its other work waits without
being in the way of anybody else's.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import ParamSpec, TypeVar

from hitbox.broker.access.principals import LOCAL
from hitbox.protocol.errors import Overloaded

P = ParamSpec("P")
T = TypeVar("T")


class Shares:
    """Turns of each principal: so many at a time, as long as it has or awaits any. `waiting`: how many of each."""

    def __init__(self) -> None:
        self.waiting = Counter[str]()
        self._turns: dict[str, asyncio.Semaphore] = {}

    @asynccontextmanager
    async def turn(self, principal: str, share: int) -> AsyncIterator[None]:
        turn = self._turns.setdefault(principal, asyncio.Semaphore(share))
        with held(self.waiting, principal):
            try:
                async with turn:
                    yield
            finally:
                if self.waiting[principal] == 1:
                    del self._turns[principal]


@contextmanager
def held(counts: Counter[str], name: str) -> Iterator[None]:
    """Count one more of a name meanwhile. Names of which there is none are forgotten: there are always new ones."""
    counts[name] += 1
    try:
        yield
    finally:
        counts[name] -= 1
        if not counts[name]:
            del counts[name]


class FairThreads:
    """`most`: how much of one principal may run or wait; None: anything."""

    def __init__(self, name: str, threads: int, most: int | None = None):
        self.most = most
        self._shares = Shares()
        self._count = threads
        self._turn = asyncio.Semaphore(threads)
        self._threads = ThreadPoolExecutor(threads, name)

    @property
    def waiting(self) -> int:
        """How much is running or waiting."""
        return self._shares.waiting.total()

    async def run(self, principal: str, work: Callable[P, T], *args: P.args, **named: P.kwargs) -> T:
        """The result of `work`, for this principal. Raises Overloaded if too much of it is waiting already."""
        count = self._shares.waiting[principal]
        if self.most is not None and count >= self.most:
            raise Overloaded(f"{count} requests to try, explain or list events are waiting already", 1)
        share = self._count if principal == LOCAL else max(self._count // 2, 1)
        async with self._shares.turn(principal, share), self._turn:
            # shielded: if the request is cancelled the thread still runs, and must count until it ends
            running = asyncio.get_running_loop().run_in_executor(self._threads, partial(work, *args, **named))
            try:
                return await asyncio.shield(running)
            finally:
                await asyncio.wait([running])

    def end(self) -> None:
        self._threads.shutdown(wait=False)
