"""Long loops on the event loop: everybody else gets a turn now and then."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import TypeVar

AT_ONCE = 500
T = TypeVar("T")


async def in_turns(items: Iterable[T]) -> AsyncIterator[T]:
    """The items as they are now; after every AT_ONCE of them, others have their turn, and may change what they wish."""
    for number, one in enumerate(list(items), 1):
        yield one
        if number % AT_ONCE == 0:
            await asyncio.sleep(0)
