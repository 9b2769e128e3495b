"""`hitbox admin backup` copies the store of a running broker; `hitbox admin restore` makes a data folder of the copy.

    TARGET/hitbox.db    the database as of one moment, by SQLite's backup interface
    TARGET/beacon       the commit marker of that moment

The index is not copied: it is built again at the first start. A copy is marked as one: the broker that is started with
it begins another history (see Store.begin_history). Both commands write to TARGET.partial, check everything
that `hitbox admin check` checks, and then rename it. After an error or an interrupt TARGET.partial is removed; if the
process was killed, the next run with the same target removes it.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import shutil
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import IO

import apsw

from hitbox.broker.store.commit_marker import FILE_NAME, CommitMarker
from hitbox.broker.store.disk import NO_ROOM, RESERVE_BYTES, Disk
from hitbox.broker.store.search import BUSY_MILLISECONDS
from hitbox.broker.store.store import Store, sync_folder
from hitbox.broker.upkeep.repair import store_problems
from hitbox.protocol.errors import BrokerError, Conflict, StoreDamaged, StoreFailed, StoreFull, Unknown

DATABASE = "hitbox.db"
STEP_PAGES = 1024
CHUNK = 2**20
SCRATCH = "backup.partial"
"""In the broker's folder, while it sends a backup."""
Progress = Callable[[int, int], object]


def backup(folder: Path, target: Path, progress: Progress = lambda done, total: None) -> list[str]:
    """Copy the store in a folder, whether its broker runs or not; returns what `hitbox admin check` would report."""
    if not (folder / DATABASE).is_file():
        raise Unknown(f"{folder} holds no broker: there is no {DATABASE}")
    with _draft(target) as draft:
        _copy_store(folder, draft, progress)
        return _finish(draft, f"the store in {folder} is damaged, so no backup was kept")


def receive(fetch: Callable[[IO[bytes]], object], target: Path) -> list[str]:
    """Keep a backup that a running broker sends: `fetch` writes the database to a file."""
    with _draft(target) as draft:
        with _created(draft / DATABASE) as file:
            fetch(file)
            _sync(file)
        try:
            with contextlib.closing(apsw.Connection(str(draft / DATABASE))) as db:
                ((commits,),) = db.execute("SELECT rows FROM ledger WHERE name = 'commits'")
        except (apsw.Error, ValueError) as problem:
            raise StoreDamaged(f"what the broker sent is no store: {problem}; nothing was kept") from None
        marker = CommitMarker(draft / FILE_NAME, Disk())
        marker.begin()
        marker.write(int(commits), sync=True)
        marker.close()
        return _finish(draft, "the backup was damaged on its way, and nothing was kept")


def restore(source: Path, folder: Path, progress: Progress = lambda done, total: None) -> list[str]:
    """Make a data folder from a backup; returns what `hitbox admin check` would report. The folder must be new."""
    for name in (DATABASE, FILE_NAME):
        if not (source / name).is_file():
            raise Unknown(f"{source} is no backup: there is no {name}")
    with _draft(folder) as draft:
        _copy_store(source, draft, progress)
        return _finish(draft, f"the backup {source} is damaged, and nothing was restored")


# ---- for a running broker


class Sender:
    """A copy of the store that is being sent. It has no name on the disk, so it is gone when it is closed."""

    def __init__(self, folder: Path):
        path = folder / SCRATCH
        needed = (folder / DATABASE).stat().st_size + RESERVE_BYTES
        if (free := Disk().space(folder)[1]) < needed:
            raise StoreFull(f"a backup needs {needed} bytes of free space for a while, and there are {free}")
        self._lock = _Lock(folder)
        try:
            path.unlink(missing_ok=True)
            _copy_database(folder / DATABASE, path, lambda done, total: None)
            self._file = path.open("rb")
            self.size = path.stat().st_size
        except (apsw.Error, OSError) as problem:
            kind = StoreFull if _is_full(problem) else StoreFailed
            raise kind(f"the store cannot be copied to {path}: {problem}") from problem
        finally:
            path.unlink(missing_ok=True)

    async def chunks(self) -> AsyncIterator[bytes]:
        with self._lock, self._file:
            while chunk := await asyncio.to_thread(self._file.read, CHUNK):
                yield chunk


def remove_remains(folder: Path) -> None:
    """Remove what a broker left that was killed while it copied its store."""
    for name in (SCRATCH, f"{SCRATCH}.lock"):  # nobody sends yet; an older version had the second one
        (folder / name).unlink(missing_ok=True)


# ---- parts


def _is_full(problem: BaseException) -> bool:
    return isinstance(problem, (apsw.FullError, StoreFull)) or (
        isinstance(problem, OSError) and problem.errno in NO_ROOM
    )


class _Lock:
    """A locked folder, until it is closed or forgotten. A broker locks a file in its folder instead."""

    def __init__(self, path: Path):
        self._file = os.open(path, os.O_RDONLY)
        self.close = weakref.finalize(self, os.close, self._file)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self.close()
            raise Conflict(f"another backup or restore is using {path}; try again when it has ended") from None

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None:
        self.close()


@contextlib.contextmanager
def _draft(target: Path) -> Iterator[Path]:
    """A new folder that becomes `target` if nothing fails, and is removed otherwise."""
    _check_new(target)
    draft = target.with_name(f"{target.name}.partial")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        draft.mkdir(mode=0o700, exist_ok=True)
        lock = _Lock(draft)
    except OSError as problem:
        raise StoreFailed(f"{target} cannot be made: {problem}") from problem
    try:
        for old in draft.iterdir():  # of a run that was killed
            shutil.rmtree(old) if old.is_dir() else old.unlink()
        yield draft
        sync_folder(draft)
        _check_new(target)
        os.rename(draft, target)
        sync_folder(target.parent)
    except BaseException as problem:
        shutil.rmtree(draft, ignore_errors=True)
        if _is_full(problem):
            raise StoreFull(f"the disk of {target} is full; nothing was kept there") from problem
        if isinstance(problem, (apsw.Error, OSError)):
            raise StoreFailed(f"{target} cannot be made: {problem}") from problem
        raise
    finally:
        lock.close()


def _check_new(target: Path) -> None:
    if target.is_symlink() or (target.exists() and (not target.is_dir() or any(target.iterdir()))):
        raise Conflict(f"{target} exists already, and nothing is overwritten: name a new folder")


@contextlib.contextmanager
def _created(path: Path) -> Iterator[IO[bytes]]:
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        yield file


def _sync(file: IO[bytes]) -> None:
    file.flush()
    os.fsync(file.fileno())


def _copy_store(folder: Path, draft: Path, progress: Progress) -> None:
    """The marker first: it is written after each commit, so a later copy of the database has at least its commits."""
    if (folder / FILE_NAME).is_file():
        with _created(draft / FILE_NAME) as file:
            file.write((folder / FILE_NAME).read_bytes())
            _sync(file)
    _copy_database(folder / DATABASE, draft / DATABASE, progress)


def _copy_database(path: Path, target: Path, progress: Progress) -> None:
    """Copy a database as of one moment. Its broker may go on writing: a reader of the log does not block it."""
    with _created(target):
        pass
    try:
        _copy_pages(path, target, progress)
    except (apsw.CorruptError, apsw.NotADBError) as problem:
        raise StoreDamaged(f"{path} is damaged, and nothing was kept: {problem}") from None
    with target.open("rb") as file:
        os.fsync(file.fileno())


def _copy_pages(path: Path, target: Path, progress: Progress) -> None:
    address = f"{path.absolute().as_uri()}?mode=ro"
    flags = apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
    with contextlib.closing(apsw.Connection(address, flags=flags)) as old:
        old.set_busy_timeout(BUSY_MILLISECONDS)
        old.execute("BEGIN")
        list(old.execute("SELECT count(*) FROM sqlite_schema"))  # from here on it reads the state of this moment
        with contextlib.closing(apsw.Connection(str(target))) as new:
            new.execute("PRAGMA journal_mode=OFF; PRAGMA synchronous=OFF")  # synced later, removed if this fails
            with new.backup("main", old, "main") as copy:
                while not copy.done:
                    copy.step(STEP_PAGES)
                    progress(copy.page_count - copy.remaining, copy.page_count)


def _finish(draft: Path, damaged: str) -> list[str]:
    """Check the copy as a broker does at its start, and remove what only a running broker needs."""
    try:
        store = Store(draft)
    except StoreDamaged as problem:
        raise StoreDamaged(f"{damaged}: {problem.__cause__ or problem}") from None
    except StoreFull:
        raise
    except BrokerError as problem:
        raise StoreFailed(f"{damaged}: {problem}") from None
    with contextlib.closing(store):
        found = list(store_problems(store))
        store.mark_as_copy()
    for name in ("reserve", "lock", f"{DATABASE}-wal", f"{DATABASE}-shm"):
        (draft / name).unlink(missing_ok=True)
    return found
