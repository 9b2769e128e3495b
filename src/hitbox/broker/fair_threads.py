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
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import ParamSpec, TypeVar

from hitbox.broker.access.principals import LOCAL
from hitbox.protocol.errors import Overloaded

P = ParamSpec("P")
T = TypeVar("T")


class FairThreads:
    """`most`: how much of one principal may run or wait; None: anything."""

    def __init__(self, name: str, threads: int, most: int | None = None):
        self.most = most
        self._waiting: Counter[str] = Counter()
        self._count = threads
        self._turn = asyncio.Semaphore(threads)
        self._turns_of: dict[str, asyncio.Semaphore] = {}
        self._threads = ThreadPoolExecutor(threads, name)

    @property
    def waiting(self) -> int:
        """How much is running or waiting."""
        return self._waiting.total()

    async def run(self, principal: str, work: Callable[P, T], *args: P.args, **named: P.kwargs) -> T:
        """The result of `work`, for this principal. Raises Overloaded if too much of it is waiting already."""
        if self.most is not None and self._waiting[principal] >= self.most:
            count = self._waiting[principal]
            raise Overloaded(f"{count} requests to try, explain or list events are waiting already", 1)
        if principal not in self._turns_of:
            share = self._count if principal == LOCAL else max(self._count // 2, 1)
            self._turns_of[principal] = asyncio.Semaphore(share)
        turn = self._turns_of[principal]
        self._waiting[principal] += 1
        try:
            async with turn, self._turn:
                # shielded: if the request is cancelled the thread still runs, and must count until it ends
                running = asyncio.get_running_loop().run_in_executor(self._threads, partial(work, *args, **named))
                try:
                    return await asyncio.shield(running)
                finally:
                    await asyncio.wait([running])
        finally:
            self._waiting[principal] -= 1
            if not self._waiting[principal]:
                del self._waiting[principal], self._turns_of[principal]

    def end(self) -> None:
        self._threads.shutdown(wait=False)
