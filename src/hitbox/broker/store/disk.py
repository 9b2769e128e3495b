"""The files of a store besides SQLite's own, behind an interface that the simulator implements in memory."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import apsw

from hitbox.broker.errors import StoreFailed

NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


class File(Protocol):
    def read(self, size: int, at: int) -> bytes: ...

    def write(self, data: bytes, at: int) -> None: ...

    def sync(self) -> None: ...

    def size(self) -> int: ...

    def resize(self, size: int) -> None:
        """Cut the file, or make it longer with bytes that are set apart on the disk."""

    def close(self) -> None: ...


class Disk:
    """The real one."""

    vfs: str | None = None
    """SQLite's name of it; None for its default."""
    shared = True
    """Whether a second connection may read while the first one writes."""

    def lock(self, folder: Path) -> Callable[[], None]:
        """Make the folder, if need be, and take its lock; call what comes back to give the lock away."""
        folder.mkdir(parents=True, exist_ok=True)
        file = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(file)
            raise StoreFailed(f"{folder} is in use by another broker") from None
        return lambda: os.close(file)

    def size(self, path: Path) -> int:
        """Bytes of a file; -1 if there is none."""
        try:
            return path.stat().st_size
        except FileNotFoundError:
            return -1

    def open(self, path: Path) -> File:
        return _RealFile(path)

    def protect(self, path: Path) -> None:
        """Let nobody else read a file."""
        os.chmod(path, 0o600)

    def space(self, folder: Path) -> tuple[int, int]:
        """(bytes of the whole filesystem, bytes that are free)."""
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
            raise OSError(errno.ENOSPC, f"only a part of {len(data)} bytes could be written", str(self.path))

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
    """A file that only takes up space. It is given away when the disk is full, so that deletes can still be written.

    SQLite writes deletes to its log first, and moves the log into the database later: both need room. Half of it is for
    deletes alone; the other half is also for what must be written though it takes space.
    """

    def __init__(self, disk: Disk, path: Path):
        total, _ = disk.space(path.parent)
        self.bytes = min(RESERVE_BYTES, total // 16)
        self._disk, self._folder = disk, path.parent
        self._file = disk.open(path)

    def allocate(self) -> bool:
        """Take the space, as far as it is there; whether the disk has room, also beside the reserve."""
        for wanted in (self.bytes, self.bytes // 2):
            try:
                if self._file.size() < wanted:
                    self._file.resize(wanted)
            except OSError as problem:
                if problem.errno == errno.ENOSPC:
                    continue
                self.release(all=True)
                self.bytes = 0  # a limit of the file's size, or a filesystem that cannot set bytes apart
            return wanted == self.bytes and self._disk.space(self._folder)[1] >= self.bytes // 4
        return False

    def release(self, all: bool = False) -> None:
        kept = 0 if all else self.bytes // 2
        if self._file.size() > kept:
            self._file.resize(kept)

    def close(self) -> None:
        self._file.close()


RESERVE_BYTES = 32 * 2**20


def is_full(problem: BaseException, db: apsw.Connection) -> bool:
    """Whether an error means: no room. SQLite calls only some of these FULL."""
    if isinstance(problem, apsw.IOError):
        return getattr(problem, "extendedresult", 0) == apsw.SQLITE_IOERR_WRITE and db.system_errno in NO_ROOM
    return isinstance(problem, apsw.FullError) or (isinstance(problem, OSError) and problem.errno in NO_ROOM)
