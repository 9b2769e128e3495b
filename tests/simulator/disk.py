"""A disk in memory that fails as real disks do, for SQLite (as a VFS) and for the store's other files.

A write is visible to readers at once, and is safe after the file was synced. There are two kinds of crash:

    killed       the process ends: everything that was written is kept
    power cut    any part of what was not synced may be lost, down to single sectors, in any order

Each write, truncation and sync asks `Faults` first, which decides with a seeded random generator.
"""

from __future__ import annotations

import errno
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import apsw

from hitbox.broker.store.disk import Disk, File
from hitbox.protocol.errors import StoreFailed

SECTOR = 512
TEMPORARY = "temporary"
"""SQLite's temporary files, which are on another disk that is never full: in /tmp. Without a second connection SQLite
leaves them open, so they would never go away."""
KILLED, POWER_CUT = "killed", "power cut"


@dataclass
class Faults:
    """The probability of each fault per write or sync; `counts`: how many there were."""

    random: random.Random
    crash: float = 0.0
    eio: float = 0.0
    short: float = 0.0
    counts: Counter[str] = field(default_factory=Counter)

    def next(self) -> str | None:
        """The fault of this write or sync, if any."""
        if not (self.crash or self.eio or self.short):
            return None
        drawn = self.random.random()
        for name in ("crash", "eio", "short"):
            drawn -= getattr(self, name)
            if drawn < 0:
                return name
        return None


class Content:
    """A file: its visible data, its safe data, and what was written since the last sync."""

    def __init__(self, data: bytes = b"") -> None:
        self.data, self.safe = bytearray(data), bytearray(data)
        self.unsafe: list[tuple[int, bytes | None]] = []

    def write(self, data: bytes, at: int) -> None:
        _put(self.data, data, at)
        self.unsafe.append((at, bytes(data)))

    def resize(self, size: int) -> None:
        _resize(self.data, size)
        self.unsafe.append((size, None))

    def sync(self) -> None:
        for at, data in self.unsafe:
            _resize(self.safe, at) if data is None else _put(self.safe, data, at)
        self.unsafe.clear()

    def after_power_cut(self, rng: random.Random, counts: Counter[str]) -> bytes:
        share = rng.choice([0.0, 0.1, 0.5, 0.9, 1.0])
        left = bytearray(self.safe)
        for at, data in self.unsafe:
            if data is None:
                if rng.random() < share:
                    _resize(left, at)
                continue
            begin = lost = 0
            while begin < len(data):  # up to the next sector boundary
                end = min(begin + SECTOR - (at + begin) % SECTOR, len(data))
                if rng.random() < share:
                    _put(left, data[begin:end], at + begin)
                else:
                    lost += end - begin
                begin = end
            counts["write lost"] += lost == len(data)
            counts["write torn"] += 0 < lost < len(data)
        return bytes(left)


def _put(into: bytearray, data: bytes, at: int) -> None:
    if at > len(into):
        into.extend(bytes(at - len(into)))
    into[at : at + len(data)] = data


def _resize(data: bytearray, size: int) -> None:
    if size < len(data):
        del data[size:]
    else:
        data.extend(bytes(size - len(data)))


class SimulatedDisk(Disk):
    """All files of one store. After `crash` it is dead; `reboot` returns the disk as the next process finds it."""

    shared = False

    def __init__(
        self, faults: Faults, capacity: int, crashed: Callable[[], None], files: dict[str, bytes] | None = None
    ):
        self.files = {name: Content(data) for name, data in (files or {}).items()}
        self.faults, self.capacity, self._crashed = faults, capacity, crashed
        self.dead = self.off = False
        self.ended: str | None = None
        self.vfs = f"hitbox-simulated-{id(self)}"
        self._vfs = _Vfs(self)

    def close(self) -> None:
        self._vfs.unregister()

    def used(self) -> int:
        return sum(len(content.data) for name, content in self.files.items() if name != TEMPORARY)

    # ---- operations that may fail

    def crash(self, kind: str) -> None:
        self.faults.counts[kind] += 1
        self.dead, self.ended = True, kind
        self._crashed()

    def step(self, name: str, size: int, grow: int) -> int:
        """Before a write of `size` bytes that extends a file by `grow`: returns how many bytes may be written."""
        if self.off:
            return size
        if self.dead:
            raise OSError(errno.EIO, "the machine is off")
        match self.faults.next():
            case "crash":
                self.crash(self.faults.random.choice([KILLED, POWER_CUT]))
                raise OSError(errno.EIO, "the machine went off")
            case "eio":
                self.faults.counts["I/O error"] += 1
                raise OSError(errno.EIO, "simulated")
            case "short" if size:
                self.faults.counts["short write"] += 1
                return self.faults.random.randrange(size)
            case _:
                pass
        if grow > 0 and name != TEMPORARY and self.used() + grow > self.capacity:
            self.faults.counts["disk full"] += 1
            raise OSError(errno.ENOSPC, "simulated")
        return size

    def reboot(self, crashed: Callable[[], None], power_cut: bool) -> SimulatedDisk:
        """A new disk with what is left. This one still accepts writes, and ignores them."""
        rng = self.faults.random
        files = {
            name: content.after_power_cut(rng, self.faults.counts) if power_cut else bytes(content.data)
            for name, content in self.files.items()
        }
        self.dead = self.off = True
        return SimulatedDisk(self.faults, self.capacity, crashed, files)

    # ---- Disk

    def lock(self, folder: Path) -> Callable[[], None]:
        if self.dead:
            raise StoreFailed("the machine is off")
        return lambda: None

    def size(self, path: Path) -> int:
        content = self.files.get(str(path))
        return -1 if content is None else len(content.data)

    def open(self, path: Path) -> File:
        return _File(self, str(path))

    def protect(self, path: Path) -> None: ...

    def space(self, folder: Path) -> tuple[int, int]:
        return self.capacity, max(self.capacity - self.used(), 0)


class _File:
    """A file for the store; the methods beginning with x make it a file for SQLite."""

    def __init__(self, disk: SimulatedDisk, name: str):
        self._disk, self._name = disk, name
        self._content = disk.files.setdefault(name, Content())

    def read(self, size: int, at: int) -> bytes:
        return bytes(self._content.data[at : at + size])

    def write(self, data: bytes, at: int) -> None:
        allowed = self._disk.step(self._name, len(data), at + len(data) - len(self._content.data))
        self._content.write(data[:allowed], at)
        if allowed < len(data):
            raise OSError(errno.ENOSPC, "a part was written")

    def sync(self) -> None:
        self._disk.step(self._name, 0, 0)
        self._content.sync()

    def size(self) -> int:
        return len(self._content.data)

    def resize(self, size: int) -> None:
        self._disk.step(self._name, 0, size - len(self._content.data))
        self._content.resize(size)

    def close(self) -> None: ...

    def xRead(self, amount: int, offset: int) -> bytes:
        return self.read(amount, offset)

    def xWrite(self, data: bytes, offset: int) -> None:
        try:
            self.write(data, offset)
        except OSError as problem:
            raise _sqlite(problem, apsw.SQLITE_IOERR_WRITE) from None

    def xSync(self, flags: int) -> None:
        try:
            self.sync()
        except OSError as problem:
            raise _sqlite(problem, apsw.SQLITE_IOERR_FSYNC) from None

    def xTruncate(self, size: int) -> None:
        try:
            self.resize(size)
        except OSError as problem:
            raise _sqlite(problem, apsw.SQLITE_IOERR_TRUNCATE) from None

    def xFileSize(self) -> int:
        return self.size()

    def xClose(self) -> None: ...

    def excepthook(self, kind: Any, problem: Any, trace: Any) -> None: ...

    def xLock(self, level: int) -> None: ...

    def xUnlock(self, level: int) -> None: ...

    def xCheckReservedLock(self) -> bool:
        return False

    def xFileControl(self, op: int, pointer: int) -> bool:
        return False

    def xSectorSize(self) -> int:
        return 4096

    def xDeviceCharacteristics(self) -> int:
        return apsw.SQLITE_IOCAP_POWERSAFE_OVERWRITE


def _sqlite(problem: OSError, code: int) -> Exception:
    return apsw.exception_for(apsw.SQLITE_FULL if problem.errno == errno.ENOSPC else code)


class _Vfs(apsw.VFS):
    def __init__(self, disk: SimulatedDisk):
        self._disk = disk
        super().__init__(disk.vfs or "", "")

    def xOpen(self, name: Any, flags: list[int]) -> Any:
        text = name.filename() if isinstance(name, apsw.URIFilename) else name
        flags[1] = flags[0]
        return _File(self._disk, text or TEMPORARY)

    def xAccess(self, pathname: str, flags: int) -> bool:
        return pathname in self._disk.files

    def xDelete(self, filename: str, syncdir: bool) -> None:
        if self._disk.dead and not self._disk.off:
            raise apsw.exception_for(apsw.SQLITE_IOERR_DELETE)
        if self._disk.files.pop(filename, None) is None:
            raise apsw.exception_for(apsw.SQLITE_IOERR_DELETE_NOENT)

    def excepthook(self, kind: Any, problem: Any, trace: Any) -> bool:
        """SQLite cannot report this error, because it is cleaning up after another one."""
        return True

    def xFullPathname(self, name: str) -> str:
        return name
