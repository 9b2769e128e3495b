"""Searches: queries that look at any number of rows. Each has a connection of its own, so that nobody waits for it, and
ends after SEARCH_SECONDS."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw

from hitbox.broker.clock import time
from hitbox.protocol.errors import Overloaded

SEARCH_SECONDS = 5.0
STEPS = 1_000
"""Steps of SQLite between two looks at the clock."""


@contextlib.contextmanager
def reading(path: Path, busy_milliseconds: int) -> Iterator[apsw.Connection]:
    """Another connection to a store, to read what is committed."""
    with contextlib.closing(apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)) as connection:
        connection.set_busy_timeout(busy_milliseconds)
        yield connection


def search(connection: apsw.Connection, query: str, values: dict[str, Any]) -> list[tuple[Any, ...]]:
    """The rows that a query finds; it may use `casefold`. Raises Overloaded if it takes too long."""
    ends = time.monotonic() + SEARCH_SECONDS
    connection.create_scalar_function("casefold", _casefold, deterministic=True)
    connection.set_progress_handler(lambda: time.monotonic() >= ends, STEPS)
    try:
        return list(connection.execute(query, values))
    except apsw.InterruptError:
        raise Overloaded(
            f"the search was ended after {SEARCH_SECONDS:g} seconds: name a subscriber, or ask for fewer",
            SEARCH_SECONDS,
        ) from None
    finally:
        connection.set_progress_handler(None)


def _casefold(*texts: object) -> str:
    """The texts, one after the other, for a comparison whatever the case. SQLite's `lower` knows ASCII letters only."""
    return "".join(map(str, texts)).casefold()
