"""A store as an older version of the broker wrote it."""

from __future__ import annotations

import contextlib
from pathlib import Path

from hitbox.broker.store.store import Store


def make_format_1(folder: Path) -> None:
    """Turn the store of a stopped broker back into format 1: every delivery is a row, and there is no log."""
    with contextlib.closing(Store(folder)) as store:
        with store.transaction():
            store.settle(store.recent.count)
        with store.transaction():
            store.put_meta("format", 1)
            store.db.execute("DROP TABLE log")
            store.db.execute("DELETE FROM ledger WHERE name = 'log'")
