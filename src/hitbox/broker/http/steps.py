"""The steps of a connection that run side by side: reading, writing, waiting for its end."""

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
