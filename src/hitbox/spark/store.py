"""Where snapshots lie: a folder that every host mounts, or any filesystem that pyarrow opens by its address.

A plain path is used in place. An address (`s3://...`, `gs://...`, `hdfs://...`, `file://...`) is copied once a host
into a local cache, under a lock; the Python workers of a host then share one memory-mapped copy either way. The first
worker of a host that opens a version verifies every byte and notes that; the others go by the note.

    $HITBOX_CACHE/3f9a.../lock
                          versions/00000007/...     the same layout as at home; the last two stay
                          verified/00000007.json    which files were verified: sizes, times, checksums

Object stores rename nothing, so there a version is written where it will stay, its manifest last, then CURRENT; a
version without a manifest is no version. One writer at a time.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import tempfile
import uuid
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import fs

from hitbox import snapshot
from hitbox.errors import SnapshotError

KEPT_COPIES = 2


def is_remote(path: str) -> bool:
    return "://" in path


def current(path: str) -> int:
    """The version that readers open."""
    if not is_remote(path):
        return snapshot.current(path)
    text = _read_text(path, "CURRENT")
    try:
        return snapshot._parse_current(text)
    except SnapshotError as problem:
        raise SnapshotError(f"the snapshot at {path} cannot be opened: {problem}") from None


def facts(path: str, version: int | None = None) -> dict[str, Any]:
    """The manifest of a version, read without fetching the rest."""
    if not is_remote(path):
        return snapshot.facts_of(path, version)
    number = current(path) if version is None else version
    with tempfile.TemporaryDirectory(prefix="hitbox-") as folder:
        place = Path(folder) / "versions" / f"{number:08d}"
        place.mkdir(parents=True)
        (place / "manifest.json").write_text(_read_text(path, f"versions/{number:08d}/manifest.json"))
        return snapshot.facts_of(folder, number)


def identity(facts: Mapping[str, Any]) -> int:
    """Tells a version from one that had its number before: a snapshot that is deleted and built again begins at 1."""
    return zlib.crc32(json.dumps(facts["files"], sort_keys=True).encode())


def local(path: str, version: int, expected: int, part: int = -1) -> str:
    """A local root that holds this version: the path itself, or a copy of an address in the cache of this host.

    Its bytes (of one part, where only that is asked for) have been verified on this host, once for all its workers.

    expected: the identity that the version has at home
    """
    root = _cache(path)
    if not is_remote(path):
        if not _verified(Path(path), root, version, expected, part):
            with _alone(root):
                if not _verified(Path(path), root, version, expected, part):
                    snapshot.read(path, version, parts=_parts(Path(path), version, part))
                    _note(Path(path), root, version, expected, part)
        return path
    if not _cached(root, version, expected):
        with _alone(root):
            if not _cached(root, version, expected):
                shutil.rmtree(root / "versions" / f"{version:08d}", ignore_errors=True)
                _fetch(path, version, root)
                _note(root, root, version, expected)
    return str(root)


def _cached(root: Path, version: int, expected: int) -> bool:
    return (root / "versions" / f"{version:08d}").is_dir() and _verified(root, root, version, expected)


def _parts(home: Path, version: int, part: int) -> list[str] | None:
    return None if part < 0 else [snapshot.facts_of(home, version).get("parts", [""])[part]]


def _verified(home: Path, cache: Path, version: int, expected: int, part: int = -1) -> bool:
    """Whether somebody on this host has verified these very files: none of them was written since."""
    try:
        text = _note_file(cache, version, part).read_text()
        return text == _note_text(home, version, expected)
    except OSError:
        return False


def _note(home: Path, cache: Path, version: int, expected: int, part: int = -1) -> None:
    """Note that a version was verified; a host whose cache cannot be written verifies it in each worker."""
    with contextlib.suppress(OSError, SnapshotError):
        file = _note_file(cache, version, part)
        file.parent.mkdir(parents=True, exist_ok=True)
        snapshot.replace(file, _note_text(home, version, expected))


def _note_file(cache: Path, version: int, part: int) -> Path:
    return cache / "verified" / (f"{version:08d}.json" if part < 0 else f"{version:08d}-{part}.json")


def _note_text(home: Path, version: int, expected: int) -> str:
    facts = snapshot.facts_of(home, version)
    folder = snapshot.folder_of(home, version)
    states = {name: (folder / f"{name}.npy").stat() for name in facts["files"]}
    files = {name: [state.st_size, state.st_mtime_ns, state.st_ino] for name, state in states.items()}
    return json.dumps({"identity": identity(facts), "expected": expected, "files": files})


@contextlib.contextmanager
def _alone(cache: Path) -> Iterator[None]:
    """One worker of this host at a time, where the cache can be written."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):
            (cache / "versions").mkdir(parents=True, exist_ok=True)
            lock = stack.enter_context(open(cache / "lock", "w"))
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _fetch(path: str, version: int, root: Path) -> None:
    system, base = _open(path)
    beside = root / f".fetching-{uuid.uuid4().hex}"
    try:
        place = beside / "versions" / f"{version:08d}"
        place.mkdir(parents=True)
        fs.copy_files(f"{base}/versions/{version:08d}", str(place), source_filesystem=system)
        snapshot.read(beside, version)
        os.rename(place, root / "versions" / f"{version:08d}")
    except OSError as problem:
        raise SnapshotError(f"cannot copy version {version} of the snapshot at {path}: {problem}") from problem
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    for old in snapshot.versions(root)[:-KEPT_COPIES]:  # whoever has one mapped keeps it
        if old != version:
            shutil.rmtree(root / "versions" / f"{old:08d}", ignore_errors=True)


@contextlib.contextmanager
def draft(path: str) -> Iterator[str]:
    """A place for the files of the next version, which executors reach; it vanishes unless it is published."""
    if not is_remote(path):
        with snapshot.draft(path) as folder:
            yield str(folder)
        return
    number = max([0, *_numbers(path)]) + 1
    place = f"{path.rstrip('/')}/versions/{number:08d}"
    try:
        yield place
    finally:
        system, base = _open(place)
        if system.get_file_info(f"{base}/manifest.json").type == fs.FileType.NotFound:
            with contextlib.suppress(OSError):
                system.delete_dir(base)


@contextlib.contextmanager
def filling(place: str) -> Iterator[Path]:
    """A local folder whose content goes to `place`, a draft or a part of one."""
    if not is_remote(place):
        yield Path(place)
        return
    with tempfile.TemporaryDirectory(prefix="hitbox-") as folder:
        yield Path(folder)
        system, base = _open(place)
        system.create_dir(base)
        fs.copy_files(folder, base, destination_filesystem=system)


@contextlib.contextmanager
def reading(place: str, names: list[str]) -> Iterator[Path]:
    """A local folder with these files of a draft."""
    if not is_remote(place):
        yield Path(place)
        return
    system, base = _open(place)
    with tempfile.TemporaryDirectory(prefix="hitbox-") as folder:
        for name in names:
            fs.copy_files(f"{base}/{name}", f"{folder}/{name}", source_filesystem=system)
        yield Path(folder)


def publish(path: str, place: str, meta: dict[str, Any], files: snapshot.Files) -> int:
    """Make a draft the current version; its number."""
    if not is_remote(path):
        return snapshot.publish(path, Path(place), meta, files)
    number = int(place.rpartition("/")[2])
    write_text(f"{place}/manifest.json", snapshot.manifest_text(meta, files))
    write_text(f"{path.rstrip('/')}/CURRENT", snapshot._current_text(number))
    system, base = _open(path)
    held = {int(pin["version"]) for name in names(f"{path}/pins") if (pin := _pin(path, f"pins/{name}"))}
    for old in _numbers(path):
        if old <= number - snapshot.KEEP and old not in held:
            with contextlib.suppress(OSError):
                system.delete_dir(f"{base}/versions/{old:08d}")
    return number


def pin(path: str, name: str, version: int, batch: int) -> None:
    """Keep a version for a stream until it pins the next one."""
    if not is_remote(path):
        snapshot.pin(path, name, version, batch=batch)
        return
    write_text(f"{path.rstrip('/')}/pins/{name}.json", snapshot._pin_text({"version": version, "batch": batch}))
    facts(path, version)


def pinned(path: str, name: str) -> dict[str, Any] | None:
    return _pin(path, f"pins/{name}.json") if is_remote(path) else snapshot.pinned(path, name)


def require_writable(path: str, what: str) -> None:
    """An error before any work where a local folder cannot be written to."""
    if is_remote(path):
        return
    place = Path(path)
    while not place.exists():
        place = place.parent
    if not (place.is_dir() and os.access(place, os.W_OK | os.X_OK)):
        raise SnapshotError(f"cannot write {what} to {path}: no permission to write in {place}")


def write_text(address: str, text: str) -> None:
    """A small file, whole or not at all."""
    if not is_remote(address):
        file = Path(address)
        file.parent.mkdir(parents=True, exist_ok=True)
        snapshot.replace(file, text)
        return
    system, base = _open(address)
    system.create_dir(base.rpartition("/")[0])
    with system.open_output_stream(base) as out:
        out.write(text.encode())


def _open(address: str) -> tuple[Any, str]:
    try:
        system, base = fs.FileSystem.from_uri(address)
    except (pa.ArrowInvalid, OSError) as problem:
        raise SnapshotError(f"pyarrow cannot open {address}: {problem}") from None
    return system, str(base)


def _read_text(path: str, name: str) -> str:
    system, base = _open(path)
    try:
        with system.open_input_stream(f"{base}/{name}") as opened:
            return bytes(opened.read()).decode(errors="replace")
    except FileNotFoundError:
        raise SnapshotError(f"cannot open a snapshot at {path}: there is no {name}") from None
    except OSError as problem:
        raise SnapshotError(f"cannot open a snapshot at {path}: {problem}") from None


def _pin(path: str, name: str) -> dict[str, Any] | None:
    try:
        text = _read_text(path, name)
    except SnapshotError:
        return None
    return snapshot._parse_pin(f"{path}/{name}", text)


def names(folder: str) -> list[str]:
    """What lies in a folder, which need not exist."""
    system, base = _open(folder) if is_remote(folder) else (fs.LocalFileSystem(), folder)
    return [info.base_name for info in system.get_file_info(fs.FileSelector(base, allow_not_found=True))]


def _numbers(path: str) -> list[int]:
    return sorted(int(name) for name in names(f"{path}/versions") if name.isdigit())


def _cache(path: str) -> Path:
    root = os.environ.get("HITBOX_CACHE") or f"{tempfile.gettempdir()}/hitbox-cache-{os.getuid()}"
    return Path(root) / hashlib.sha256(path.rstrip("/").encode()).hexdigest()[:16]


def remove(address: str) -> None:
    """Delete a small file, or a folder; that there is none is fine."""
    system, base = _open(address) if is_remote(address) else (fs.LocalFileSystem(), address)
    kind = system.get_file_info(base).type
    with contextlib.suppress(FileNotFoundError):
        if kind == fs.FileType.Directory:
            system.delete_dir(base)
        elif kind == fs.FileType.File:
            system.delete_file(base)


def texts(folder: str) -> list[str]:
    """The small files of a folder, by name."""
    found = sorted(name for name in names(folder) if not name.startswith("."))
    if not is_remote(folder):
        return [Path(folder, name).read_text() for name in found]
    return [_read_text(folder, name) for name in found]


@contextlib.contextmanager
def one_writer(path: str) -> Iterator[None]:
    """Changes one after the other; the lock goes with the process that holds it."""
    if is_remote(path):
        yield
        return
    with open(Path(path) / ".writer", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
