"""Searches: queries that look at any number of rows. Each has a connection of its own, so that nobody waits for it, and
ends after SEARCH_SECONDS."""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path
from typing import Any

import apsw

from hitbox.broker.clock import time
from hitbox.broker.store.checked_table import Row
from hitbox.protocol.errors import Overloaded

SEARCH_SECONDS = 5.0
BUSY_MILLISECONDS = 5_000
STEPS = 1_000
"""Steps of SQLite between two looks at the clock."""


class Reader:
    """Reads what is committed, from any thread; on a connection of its own after `separate`."""

    def __init__(self, db: apsw.Connection, path: Path):
        self._db, self._path, self._separate = db, path, False
        self._reading = threading.Lock()

    def separate(self) -> None:
        self._db, self._separate = self._connected(), True

    def _connected(self) -> apsw.Connection:
        connection = apsw.Connection(str(self._path), flags=apsw.SQLITE_OPEN_READONLY)
        connection.set_busy_timeout(BUSY_MILLISECONDS)
        return connection

    def read(self, query: str, values: Row | dict[str, Any] = ()) -> list[Row]:
        with self._reading:
            return list(self._db.execute(query, values))

    def search(self, query: str, values: dict[str, Any]) -> list[Row]:
        """Read with a query that may look at any number of rows: nobody else waits for it, and it ends in time."""
        if not self._separate:
            return search(self._db, query, values)
        with contextlib.closing(self._connected()) as connection:
            return search(connection, query, values)

    def close(self) -> None:
        self._db.close()


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
