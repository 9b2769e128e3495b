"""The space that the store takes: its largest size, the log of SQLite, the reserve, and what happens on a full disk."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path

import apsw

from hitbox.broker.store.disk import Disk, Reserve

CHECKPOINT_BYTES = 16 * 2**20
SMALL_BYTES = 128 * 1024
MOST_PAGES = 2**32 - 2
COMMIT_PAGES = 4
"""Pages that are in use in a transaction, so that only its end writes them to the log; more than there are."""
FRAME_BYTES = 24
"""Before each page in the log."""
MOVED_PAGES = 3
"""Pages that SQLite writes to its log to move one page: the page itself, and those that refer to it."""
log = logging.getLogger("hitbox.broker")


class Space:
    """`maintenance_errors`: what failed after a commit and will be tried again, {name: reason}."""

    def __init__(self, disk: Disk, folder: Path, db: apsw.Connection):
        self.disk, self.folder, self.db, self.path = disk, folder, db, folder / "hitbox.db"
        self.maintenance_errors: dict[str, str] = {}
        self._pages = 0
        self.page = int(db.pragma("page_size"))
        self.reserve = Reserve(disk, folder / "reserve")
        self._checkpoint_bytes = self.next_checkpoint = min(CHECKPOINT_BYTES, self.reserve.bytes // 2)

    def set_max_bytes(self, max_bytes: int | None) -> None:
        """Set the maximum size of the database; None: no limit."""
        self._max_bytes = max_bytes
        self._limit = MOST_PAGES if max_bytes is None else min(max(max_bytes // self.page, 1), MOST_PAGES)
        self.db.pragma("max_page_count", self._limit)

    def check_room(self) -> None:
        """Raise FullError if what is about to be committed could not be copied from SQLite's log into the database
        later, even with the reserve. Such a log would never be emptied, so nothing could be written any more."""
        growth = self.db.pragma("page_count") * self.page - self.disk.size(self.path)
        if growth <= max(self.reserve.room(), 0):
            return  # whatever the log takes of the disk, it does not take the reserve
        self.db.cache_flush()  # the log takes more than the pages that are new: all that were changed
        room = self.disk.space(self.folder)[1] + self.reserve.room()
        if growth + COMMIT_PAGES * self.page > room:
            raise apsw.FullError(f"{growth:,} bytes more would not fit")

    @contextlib.contextmanager
    def maintenance(self, name: str) -> Iterator[None]:
        """Run work that may fail without harm and is tried again later."""
        try:
            yield
        except (apsw.Error, OSError) as problem:
            if name not in self.maintenance_errors:
                log.warning("%s: the %s could not be written: %s", self.folder, name, problem)
            self.maintenance_errors[name] = str(problem)
        else:
            self.maintenance_errors.pop(name, None)

    def committed(self) -> None:
        """Copy the log into the database, if it is large."""
        if self._pages * self.page > self.next_checkpoint:
            with self.maintenance("checkpoint"):
                self.db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
            # After a failure: do not try again at every commit.
            late = self._pages * self.page if "checkpoint" in self.maintenance_errors else 0
            self.next_checkpoint = self._checkpoint_bytes + late
            self._pages = 0

    def release(self, all: bool = False) -> None:
        """Release the reserve: half of it for mandatory writes, all of it for deletes."""
        with self.maintenance("reserve"):
            self.reserve.release(all)
        self.db.pragma("max_page_count", min(self._limit + self._limit // 16 + 8, MOST_PAGES))
        self._shrink()
        if "checkpoint" in self.maintenance_errors and not all:  # it returns more than it takes, but needs it first
            with self.maintenance("reserve"):
                self.reserve.release(all=True)
            self._shrink()

    def restore_reserve(self) -> bool:
        """Allocate the reserve again; returns whether there is space for all writes again."""
        while not self.reserve.allocate(max(self._checkpoint_bytes - self.sizes()["store_log"], 0)):
            with self.maintenance("reserve"):
                self.reserve.release()
            if not self._shrink():
                return False
        if "checkpoint" in self.maintenance_errors:
            self._shrink()
            if "checkpoint" in self.maintenance_errors:
                return False
        pages = self.db.pragma("page_count") - self.db.pragma("freelist_count")
        if pages > self._limit - self._limit // 16:
            return False
        self.db.pragma("max_page_count", self._limit)
        return True

    def _shrink(self) -> bool:
        """Return the space of the log and of some deleted pages to the disk; returns whether there may be more."""
        free = self.db.pragma("freelist_count")
        with self.maintenance("checkpoint"):
            self.db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)  # first: the rest needs room in the log
            room = (self.disk.space(self.folder)[1] // (self.page + FRAME_BYTES) - COMMIT_PAGES) // MOVED_PAGES
            if (some := min(max(self.reserve.bytes // 8 // self.page, 16), room, free)) > 0:
                list(self.db.execute(f"PRAGMA incremental_vacuum({some})"))
                self.db.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        return bool(self.db.pragma("freelist_count") < free)

    def what_is_full(self) -> str:
        """Whichever is nearer: the largest size that the settings allow, or the end of the disk."""
        if self._max_bytes is None or self._max_bytes - self.used_bytes() >= self.disk.space(self.folder)[1]:
            return "the disk is full"
        return (
            f"the store has reached the setting max_store_bytes ({self._max_bytes}), though the disk has room: raise "
            "it, or acknowledge or remove what is pending"
        )

    def count_pages(self, _db: object, _name: str, pages: int) -> int:
        """SQLite calls this after each commit: so many pages are in the log."""
        self._pages = pages
        return apsw.SQLITE_OK

    def used_bytes(self) -> int:
        """Bytes of the database that are in use."""
        pages = self.db.pragma("page_count") - self.db.pragma("freelist_count")
        return int(pages * self.db.pragma("page_size"))

    def sizes(self) -> dict[str, int]:
        """Bytes of the store's files, and free space of the disk, from any thread."""
        files = {"store_database": "hitbox.db", "store_log": "hitbox.db-wal", "store_reserve": "reserve"}
        found = {name: max(self.disk.size(self.folder / file), 0) for name, file in files.items()}
        return {**found, "disk_free": self.disk.space(self.folder)[1]}

    def most_on_disk(self) -> int:
        """How large the database may be, so that the disk has room for the reserve, for the log of SQLite, and some
        more: retention makes room before the disk is full, and when it is."""
        sizes = self.sizes()
        room = sizes["store_database"] + sizes["store_log"] + sizes["disk_free"] - self.reserve.missing()
        return room - self._checkpoint_bytes - self.reserve.bytes // 2
