"""The commit marker: a 64-byte file that holds the number of the last commit.

SQLite silently drops the tail of a damaged write-ahead log, because it cannot distinguish damage from a crash in the
middle of a commit. The marker can: it is written after every commit, so a store with fewer commits has lost some. Two
slots are written alternately, so that a torn write leaves the other slot whole. A failed write is tried again in the
same slot.

    slot:  "HITBEACN" | commits (u64) | zero (u64) | CRC-32 (u32) | padding      32 bytes

The marker is synced at most once per second, not once per commit. Written bytes survive the death of the process. After
a power cut the marker may be behind the store, which is harmless.
"""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

from hitbox.broker.clock import time
from hitbox.broker.store.disk import Disk
from hitbox.protocol.errors import StoreDamaged

FILE_NAME = "beacon"
"""In the store's folder. The name and MAGIC belong to format 1 of the store."""
MAGIC = b"HITBEACN"
SLOT = struct.Struct("<8sQQI4x")


class CommitMarker:
    def __init__(self, path: Path, disk: Disk):
        self.path = path
        self._file = disk.open(path)
        self._synced = 0.0
        self._next = 0  # the slot to write: never the one written last, so that one is always whole

    def read(self) -> int | None:
        """The number of the last commit; None if the marker was never written."""
        data = self._file.read(2 * SLOT.size, 0)
        if not any(data):
            return None
        slots = [self._slot(data[at : at + SLOT.size]) for at in (0, SLOT.size)]
        known = [commits for commits in slots if commits is not None]
        if not known:
            raise StoreDamaged(f"the commit marker {self.path} is damaged: neither of its slots can be read")
        self._next = 1 - slots.index(max(known))
        return max(known)

    def _slot(self, data: bytes) -> int | None:
        if len(data) < SLOT.size:
            return None
        magic, commits, _, crc = SLOT.unpack(data)
        return int(commits) if magic == MAGIC and crc == zlib.crc32(data[:24]) else None

    def begin(self) -> None:
        """Initialise both slots before the first commit: from now on one of them can always be read."""
        for slot in (0, 1):
            self._file.write(SLOT.pack(MAGIC, 0, 0, zlib.crc32(SLOT.pack(MAGIC, 0, 0, 0)[:24])), slot * SLOT.size)
        self._file.sync()

    def write(self, commits: int, sync: bool = False) -> None:
        head = SLOT.pack(MAGIC, commits, 0, 0)[:24]
        self._file.write(SLOT.pack(MAGIC, commits, 0, zlib.crc32(head)), self._next * SLOT.size)
        self._next = 1 - self._next
        now = time.monotonic()
        if sync or now - self._synced > 1:
            self._file.sync()
            self._synced = now

    def close(self) -> None:
        self._file.close()
