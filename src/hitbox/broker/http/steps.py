"""The steps of a connection that run side by side: reading, writing, waiting for its end.

Small things are done without a step, in the middle of somebody else's work: a delivery is sent where it is matched, an
acknowledgement is handled where it is read. What goes wrong there concerns nobody else, and ends this connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any


@asynccontextmanager
async def until_one_ends(*steps: Coroutine[Any, Any, Any]) -> AsyncIterator[list[Exception]]:
    """Run steps until one of them ends, cancel the others, and hand out what they raised. If the connection itself is
    cancelled, the body runs all the same, before that goes on."""
    tasks = [asyncio.create_task(step) for step in steps]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        yield [one for one in results if isinstance(one, Exception)]


class Ending:
    """The end of a connection: somebody asked for it (`ended`), or something failed outside of its steps."""

    def __init__(self, ended: asyncio.Event):
        self._ended = ended
        self._problem: Exception | None = None

    def fail(self, problem: Exception) -> None:
        self._problem = self._problem or problem
        self._ended.set()

    async def wait(self) -> None:
        """The step that waits for it. Raises what failed."""
        await self._ended.wait()
        if self._problem is not None:
            raise self._problem
