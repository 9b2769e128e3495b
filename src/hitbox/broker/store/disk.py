"""Access to the files of a store; the simulator implements the same interface in memory."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import apsw

from hitbox.protocol.errors import StoreFailed

NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


class File(Protocol):
    def read(self, size: int, at: int) -> bytes: ...

    def write(self, data: bytes, at: int) -> None: ...

    def sync(self) -> None: ...

    def size(self) -> int: ...

    def resize(self, size: int) -> None:
        """Truncate the file, or extend it with bytes that are allocated on disk."""

    def close(self) -> None: ...


class Disk:
    """The real disk."""

    vfs: str | None = None
    """Name of the SQLite VFS; None for the default."""
    shared = True
    """Whether a second connection may read while the first one writes."""

    def lock(self, folder: Path) -> Callable[[], None]:
        """Create the folder if it does not exist, and lock it; the returned function unlocks it."""
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        file = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(file)
            raise StoreFailed(
                f"the folder {folder} is in use by a running broker: stop it, or name another folder (--data); "
                "`hitbox admin` asks a running one if --data is left out"
            ) from None
        return lambda: os.close(file)

    def size(self, path: Path) -> int:
        """Size of a file in bytes; -1 if it does not exist."""
        try:
            return path.stat().st_size
        except FileNotFoundError:
            return -1

    def open(self, path: Path) -> File:
        return _RealFile(path)

    def protect(self, path: Path) -> None:
        """Make a file readable for its owner only."""
        os.chmod(path, 0o600)

    def space(self, folder: Path) -> tuple[int, int]:
        """(size of the filesystem, free space), in bytes."""
        found = os.statvfs(folder)
        return found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize


class _RealFile:
    def __init__(self, path: Path):
        self.path = path
        self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)

    def read(self, size: int, at: int) -> bytes:
        return os.pread(self._file, size, at)

    def write(self, data: bytes, at: int) -> None:
        if os.pwrite(self._file, data, at) != len(data):
            raise OSError(errno.ENOSPC, f"only part of {len(data)} bytes could be written", str(self.path))

    def sync(self) -> None:
        os.fdatasync(self._file)

    def size(self) -> int:
        return os.fstat(self._file).st_size

    def resize(self, size: int) -> None:
        if size > self.size():
            os.posix_fallocate(self._file, 0, size)
        else:
            os.ftruncate(self._file, size)

    def close(self) -> None:
        os.close(self._file)


class Reserve:
    """A file that reserves disk space. It is released when the disk is full, so that deletes can still be written.

    SQLite writes deletes to its log first and copies the log into the database later: both need space. Half of the
    reserve is for deletes only; the other half is also for mandatory writes, such as the deliveries of accepted events.
    """

    def __init__(self, disk: Disk, path: Path):
        total, _ = disk.space(path.parent)
        self.bytes = min(RESERVE_BYTES, total // 16)
        self._disk, self._folder = disk, path.parent
        self._file = disk.open(path)

    def allocate(self, more: int) -> bool:
        """Allocate the reserve; returns whether it is complete and the disk has `more` bytes, and a quarter of it."""
        for wanted in (self.bytes, self.bytes // 2):
            try:
                if self._file.size() < wanted:
                    self._file.resize(wanted)
            except OSError as problem:
                if problem.errno == errno.ENOSPC:
                    continue
                self.release(all=True)
                self.bytes = 0  # a limit on file size, or a filesystem that cannot allocate
            return wanted == self.bytes and self._disk.space(self._folder)[1] >= self.bytes // 4 + more
        return False

    def release(self, all: bool = False) -> None:
        """Free half of the reserve, or all of it."""
        kept = 0 if all else self.bytes // 2
        if self._file.size() > kept:
            self._file.resize(kept)

    def missing(self) -> int:
        """Bytes that it lacks: those that were released."""
        return self.bytes - self._file.size()

    def room(self) -> int:
        """Bytes that it can free, but for an eighth of the whole."""
        return self._file.size() - self.bytes // 8

    def close(self) -> None:
        self._file.close()


RESERVE_BYTES = 32 * 2**20


def is_full(problem: BaseException, db: apsw.Connection) -> bool:
    """Whether an error means that the disk is full. SQLite reports only some of these as SQLITE_FULL."""
    if isinstance(problem, apsw.IOError):
        return getattr(problem, "extendedresult", 0) == apsw.SQLITE_IOERR_WRITE and db.system_errno in NO_ROOM
    return isinstance(problem, apsw.FullError) or (isinstance(problem, OSError) and problem.errno in NO_ROOM)
