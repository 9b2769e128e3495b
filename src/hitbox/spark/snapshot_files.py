"""Snapshots in local and remote places: a folder that every host mounts, or an address that pyarrow can open.

Places are spelt as `addresses.resolve` returns them. A local path is used in place. A remote address
(`s3://...`, `gs://...`, `hdfs://...`) is copied once per host into a local cache, under a lock; the Python workers of a
host then share one memory-mapped copy either way. The first worker of a host that opens a version verifies every byte
and leaves a note; the others rely on the note.

    $HITBOX_CACHE/3f9a.../lock
                          versions/00000007/...       the same layout as in the original; the last two stay
                          verified/00000007.json      which files were verified: sizes, times, checksums
                          verified/00000007-3.json    the same for part 3 alone; only it and what parts share is copied

Object stores rename no folders, so there a draft is copied within the store, file by file, to where it will stay, its
manifest last, then CURRENT; a version without a manifest is no version. One writer at a time: local ones under the
lock of snapshot.py, remote ones under a lease (writer_lease.py).
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import tempfile
import time
import uuid
import zlib
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import fs

from hitbox.errors import SnapshotError
from hitbox.spark import writer_lease
from hitbox.storage import snapshot
from hitbox.storage.addresses import connect, is_remote, join, local_folder, without_passwords

KEPT_COPIES = 2
PARALLEL_COPIES = 8
"""Files of a version that are copied at the same time within a store."""

ALL, SHARED = -2, -1
"""Pieces of a version besides its parts: everything, and the files that belong to no part."""
SETTLE_SECONDS = writer_lease.SETTLE_SECONDS

FAILURES = (OSError, pa.ArrowException)
"""What pyarrow raises if a store fails."""


def current(path: str) -> int:
    """The version that readers open."""
    if not is_remote(path):
        return snapshot.current(path)
    text = _read_text(join(path, "CURRENT"))
    if text is None:
        there = _numbers(path)
        some = f", though there are versions {', '.join(map(str, there))}: give one (version=...)" if there else ""
        raise SnapshotError(f"cannot open a snapshot at {without_passwords(path)}: there is no CURRENT{some}")
    try:
        return snapshot.parse_current(text)
    except SnapshotError as problem:
        raise SnapshotError(f"the snapshot at {without_passwords(path)} cannot be opened: {problem}") from None


def facts(path: str, version: int | None = None) -> dict[str, Any]:
    """The manifest of a version, read without fetching the rest."""
    if not is_remote(path):
        return snapshot.facts_of(path, version)
    if version is None:
        return snapshot.latest(path, lambda number: facts(path, number), current)
    text = _read_text(join(path, "versions", f"{version:08d}", "manifest.json"))
    if text is None:
        raise snapshot.no_version(without_passwords(path), version, _numbers(path), _current_if_any(path))
    with tempfile.TemporaryDirectory(prefix="hitbox-") as folder:
        place = Path(folder) / "versions" / f"{version:08d}"
        place.mkdir(parents=True)
        (place / "manifest.json").write_text(text)
        return snapshot.facts_of(folder, version)


def identity(facts: Mapping[str, Any]) -> int:
    """Distinguishes a version from an earlier one with the same number: a snapshot that is built again starts at 1."""
    return zlib.crc32(json.dumps(facts["files"], sort_keys=True).encode())


def local(path: str, version: int, expected: int, parts: Iterable[int] | None = None) -> str:
    """A local root that holds this version: the path itself, or a copy of an address in the cache of this host.

    Its bytes have been verified on this host, once for all its workers.

    expected: the identity of the version in the original place
    parts: only these parts are needed, and what they share; by default all
    """
    cache = _cache(path)
    home = cache if is_remote(path) else Path(path)
    for piece in [ALL] if parts is None else [SHARED, *parts]:
        if not _verified(home, cache, version, expected, piece):
            with _alone(cache):
                if not _verified(home, cache, version, expected, piece):
                    if is_remote(path):
                        _fetch(path, version, cache, expected, piece)
                    names = snapshot.facts_of(home, version).get("parts", [""])
                    snapshot.read(home, version, parts=names if piece == ALL else () if piece < 0 else [names[piece]])
                    _note(home, cache, version, expected, piece)
    return str(home)


def _files(facts: Mapping[str, Any], piece: int) -> list[str]:
    """The files of one part, of none (those that all share), or of all."""
    if piece == ALL:
        return list(facts["files"])
    prefix = f"{facts['parts'][piece]}/" if piece >= 0 and "parts" in facts else ""
    return [name for name in facts["files"] if name.rpartition("/")[0] == prefix.rstrip("/")]


def _verified(home: Path, cache: Path, version: int, expected: int, piece: int) -> bool:
    """Whether a process of this host has verified these files, and none was written since."""
    try:
        text = _note_file(cache, version, piece).read_text()
        return text == _note_text(home, version, expected, piece)
    except (OSError, SnapshotError):
        return False


def _note(home: Path, cache: Path, version: int, expected: int, piece: int) -> None:
    """Note that files were verified; a host whose cache cannot be written verifies them in each worker."""
    with contextlib.suppress(OSError, SnapshotError):
        file = _note_file(cache, version, piece)
        file.parent.mkdir(parents=True, exist_ok=True)
        snapshot.replace(file, _note_text(home, version, expected, piece))


def _note_file(cache: Path, version: int, piece: int) -> Path:
    ending = {ALL: "", SHARED: "-shared"}.get(piece, f"-{piece}")
    return cache / "verified" / f"{version:08d}{ending}.json"


def _note_text(home: Path, version: int, expected: int, piece: int) -> str:
    facts = snapshot.facts_of(home, version)
    folder = snapshot.folder_of(home, version)
    states = {name: (folder / f"{name}.npy").stat() for name in _files(facts, piece)}
    files = {name: [state.st_size, state.st_mtime_ns, state.st_ino] for name, state in states.items()}
    return json.dumps({"identity": identity(facts), "expected": expected, "files": files})


@contextlib.contextmanager
def _alone(cache: Path) -> Iterator[None]:
    """One worker of this host at a time, if the cache can be written."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):
            (cache / "versions").mkdir(parents=True, exist_ok=True)
            lock = stack.enter_context(open(cache / "lock", "w"))
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _fetch(path: str, version: int, root: Path, expected: int, piece: int) -> None:
    """Copy files of a version into the cache. Until they are noted as verified, nobody uses them."""
    system, base = connect(path)
    there = facts(path, version)  # if this version is gone, the error lists those that exist
    place = root / "versions" / f"{version:08d}"
    with contextlib.suppress(SnapshotError):
        if place.is_dir() and identity(snapshot.facts_of(root, version)) != expected:
            shutil.rmtree(place, ignore_errors=True)  # of a snapshot that was deleted and built again
    beside = root / f".fetching-{uuid.uuid4().hex}"

    def fetch(name: str) -> None:
        for folder in (beside, place):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
        source = f"{base}/versions/{version:08d}/{name}"
        fs.copy_files(source, str(beside / name), source_filesystem=system)
        os.replace(beside / name, place / name)

    try:
        with ThreadPoolExecutor(PARALLEL_COPIES) as pool:
            list(pool.map(fetch, ["manifest.json", *(f"{name}.npy" for name in _files(there, piece))]))
    except FAILURES as problem:
        raise SnapshotError(
            f"cannot copy version {version} of the snapshot at {without_passwords(path)}: {problem}"
        ) from None
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    for old in snapshot.versions(root)[:-KEPT_COPIES]:  # processes that have it mapped keep it
        if old != version:
            shutil.rmtree(root / "versions" / f"{old:08d}", ignore_errors=True)


@contextlib.contextmanager
def writing(path: str, wait: float | None = None) -> Iterator[writer_lease.Lease | None]:
    """Keep other writers from publishing: for reading a version, changing it and publishing the result."""
    if not is_remote(path):
        with snapshot.writing(path, wait):
            yield None
        return
    address = join(path, "writer.json")
    with writer_lease.alone(address, "publish a version", _read_json, write_text, remove, wait) as lease:
        yield lease


@contextlib.contextmanager
def draft(path: str) -> Iterator[str]:
    """A new place for the files of the next version, which executors can write; it is removed unless published."""
    if not is_remote(path):
        with snapshot.draft(path) as folder:
            yield str(folder)
        return
    _sweep(path)
    name = f".draft-{uuid.uuid4().hex}"
    lease = writer_lease.Lease(join(path, f"{name}.owner"), "write a version", _read_json, write_text)
    lease.sign()
    lease.renew()
    try:
        yield join(path, name)
    finally:
        with contextlib.suppress(SnapshotError, *FAILURES):
            remove(join(path, name))
        lease.end(remove)


@contextlib.contextmanager
def filling(place: str) -> Iterator[Path]:
    """A local folder whose content goes to `place`, a draft or a part of one."""
    if not is_remote(place):
        yield Path(place)
        return
    with tempfile.TemporaryDirectory(prefix="hitbox-") as folder:
        yield Path(folder)
        system, base = connect(place)
        try:
            system.create_dir(base)
            fs.copy_files(folder, base, destination_filesystem=system)
        except FAILURES as problem:
            raise SnapshotError(f"cannot write to {without_passwords(place)}: {problem}") from None


@contextlib.contextmanager
def new_file(address: str) -> Iterator[pa.NativeFile]:
    """A file that appears when it is whole: of several attempts to write it, one stays."""
    if not is_remote(address):
        beside = Path(address).with_name(f".{Path(address).name}-{uuid.uuid4().hex}")
        try:
            with pa.OSFile(str(beside), "wb") as out:
                yield out
            os.replace(beside, address)
        except OSError as problem:
            raise SnapshotError(f"cannot write {address}: {problem.strerror or problem}") from None
        finally:
            beside.unlink(missing_ok=True)
        return
    content = pa.BufferOutputStream()  # closing a stream that failed halfway would publish half of a file
    yield content
    _put(address, content.getvalue())


def open_file(address: str) -> pa.NativeFile:
    """A file for reading anywhere in it, memory-mapped if it is local."""
    try:
        if not is_remote(address):
            return pa.memory_map(address)
        system, base = connect(address)
        return system.open_input_file(base)
    except FAILURES as problem:
        raise SnapshotError(f"cannot read {without_passwords(address)}: {problem}") from None


def make_folder(place: str) -> None:
    """An empty folder, if the filesystem has folders."""
    if not is_remote(place):
        os.makedirs(place, exist_ok=True)


def take_over(path: str, version: int, place: str, files: Iterable[str]) -> None:
    """Add files of a version to a draft, without their content passing through this process."""
    names = [f"{name}.npy" for name in files]
    if is_remote(path):
        if names:
            _move(join(path, "versions", f"{version:08d}"), place, names)
        return
    source = snapshot.folder_of(path, version)
    for name in names:
        target = Path(place, name)
        target.parent.mkdir(exist_ok=True)
        try:
            os.link(source / name, target)
        except OSError:  # not every filesystem has links
            shutil.copyfile(source / name, target)


def publish(path: str, place: str, meta: dict[str, Any], files: snapshot.Files, base: int | None = None) -> int:
    """Make a draft the current version; its number. Where it was made from `base`, that must still be current."""
    if not is_remote(path):
        return snapshot.publish(path, Path(place), meta, files, base)
    with writing(path) as lease:
        assert lease is not None
        before = _current_if_any(path)
        if base is not None and before != base:
            raise snapshot.changed_since(without_passwords(path), base, before)
        number = max([0, before or 0, *_folders(path)]) + 1
        home = join(path, "versions", f"{number:08d}")
        _move(place, home, [f"{name}.npy" for name in files])
        lease.check()
        write_text(join(home, "manifest.json"), snapshot.manifest_text(meta, files))
        lease.check()
        write_text(join(path, "CURRENT"), snapshot.current_text(number))
        _retire(path, number, before)
        _sweep(path)
    return number


def _move(place: str, home: str, files: list[str]) -> None:
    """Copy within the store, without a download."""
    system, source = connect(place)
    _, target = connect(home)

    def move(name: str) -> None:
        try:
            system.copy_file(f"{source}/{name}", f"{target}/{name}")
        except (
            NotImplementedError,
            *FAILURES,
        ):  # S3 cannot copy a file above 5 GB in one request, Hadoop cannot copy at all
            fs.copy_files(
                f"{source}/{name}", f"{target}/{name}", source_filesystem=system, destination_filesystem=system
            )

    try:
        for folder in sorted({f"{target}/{name}".rpartition("/")[0] for name in files} | {target}):
            system.create_dir(folder)
        with ThreadPoolExecutor(PARALLEL_COPIES) as pool:
            list(pool.map(move, files))
    except FAILURES as problem:
        raise SnapshotError(f"cannot publish {without_passwords(home)}: {problem}") from None


def _retire(path: str, number: int, before: int | None) -> None:
    """Remove old versions: the last KEPT_VERSIONS that were current stay, and those that are pinned."""
    there = _folders(path)
    were_current = [old for old in there if old < number and (before is None or old <= before)]
    try:
        pins = [_pin(join(path, "pins", name)) for name in names(join(path, "pins")) if name.endswith(".json")]
    except SnapshotError:  # a damaged pin: it may keep any version
        return
    held = {int(pin["version"]) for pin in pins if pin and not snapshot.expired(pin)}
    kept = {*were_current[max(0, len(were_current) - snapshot.KEPT_VERSIONS + 1) :], *held}
    for old in there:
        if old < number and old not in kept:
            with contextlib.suppress(SnapshotError, *FAILURES):
                remove(join(path, "versions", f"{old:08d}", "manifest.json"))
                remove(join(path, "versions", f"{old:08d}"))


def _sweep(path: str) -> None:
    """Remove the drafts of writers that died."""
    there = {name for name in names(path) if name.startswith(".draft-")}
    for name in sorted({name.removesuffix(".owner") for name in there}):
        owner = join(path, f"{name}.owner")
        found = _read_json(owner) if f"{name}.owner" in there else None
        if found is None or writer_lease.void(found):
            with contextlib.suppress(SnapshotError, *FAILURES):
                remove(join(path, name))
                remove(owner)


def pin(path: str, name: str, version: int, batch: int) -> None:
    """Keep a version for a stream until it pins the next one."""
    if not is_remote(path):
        snapshot.pin(path, name, version, batch=batch)
        return
    write_text(join(path, "pins", f"{name}.json"), snapshot.pin_text({"version": version, "batch": batch}))
    facts(path, version)


def pin_once(path: str, name: str, **facts: Any) -> dict[str, Any]:
    """What `name` pinned; if that is nothing yet, it pins the current version. All who ask get the same answer.

    pyarrow has no conditional put. So on an object store a pin counts only after SETTLE_SECONDS: whoever finds none
    writes one, and the last of those who write at the same time wins.
    """
    if not is_remote(path):
        return snapshot.pin_once(path, name, **facts)
    address = join(path, "pins", f"{name}.json")
    found = _pin(address)
    if found is None:
        write_text(address, snapshot.pin_text({"version": current(path), **facts, "settled": False}))
    elif found["settled"]:
        return found
    time.sleep(SETTLE_SECONDS)
    found = _pin(address)
    if found is None:
        raise SnapshotError(f"the pin {without_passwords(address)} was removed while it was in use")
    if not found["settled"]:
        found["settled"] = True
        write_text(address, snapshot.pin_text(found))
    return found


def pinned(path: str, name: str) -> dict[str, Any] | None:
    return _pin(join(path, "pins", f"{name}.json")) if is_remote(path) else snapshot.pinned(path, name)


def require_writable(path: str, what: str) -> None:
    """Raise an error before any work if a local folder cannot be written to, or a store does not answer."""
    if is_remote(path):
        names(path)
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
    _put(address, text.encode())


def _put(address: str, content: Any) -> None:
    """Write a file of a store in one go."""
    system, base = connect(address)
    try:
        system.create_dir(base.rpartition("/")[0])
        with system.open_output_stream(base) as out:
            out.write(content)
    except FAILURES as problem:
        raise SnapshotError(f"cannot write {without_passwords(address)}: {problem}") from None


def _read_text(address: str) -> str | None:
    """A small file; None where there is none."""
    system, base = connect(address)
    try:
        with system.open_input_stream(base) as opened:
            return bytes(opened.read()).decode(errors="replace")
    except FileNotFoundError:
        return None
    except FAILURES as problem:
        raise SnapshotError(f"cannot read {without_passwords(address)}: {problem}") from None


def _read_json(address: str) -> dict[str, Any] | None:
    """The JSON object in a small file; None if there is no file or no valid object."""
    try:
        found = json.loads(_read_text(address) or "")
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _pin(address: str) -> dict[str, Any] | None:
    """The content of a pin; None if there is none, an error if it is damaged."""
    text = _read_text(address)
    return None if text is None else snapshot.parse_pin(without_passwords(address), text)


def names(folder: str) -> list[str]:
    """The entries of a folder, which need not exist."""
    system, base = connect(folder) if is_remote(folder) else (fs.LocalFileSystem(), folder)
    try:
        return [info.base_name for info in system.get_file_info(fs.FileSelector(base, allow_not_found=True))]
    except FAILURES as problem:
        raise SnapshotError(f"cannot list {without_passwords(folder)}: {problem}") from None


def _folders(path: str) -> list[int]:
    """The numbers that are taken, by versions and by what writers that died left of them."""
    return snapshot.numbered(names(join(path, "versions")))


def _numbers(path: str) -> list[int]:
    """The versions there."""
    system, base = connect(path)
    manifests = {number: f"{base}/versions/{number:08d}/manifest.json" for number in _folders(path)}
    return [n for n, file in manifests.items() if system.get_file_info(file).type == fs.FileType.File]


def _current_if_any(path: str) -> int | None:
    """The current version; None where CURRENT is missing or damaged, but not where the store does not answer."""
    text = _read_text(join(path, "CURRENT"))
    try:
        return None if text is None else snapshot.parse_current(text)
    except SnapshotError:
        return None


def _cache(path: str) -> Path:
    given = os.environ.get("HITBOX_CACHE")
    root = local_folder(given) if given else Path(tempfile.gettempdir()) / f"hitbox-cache-{os.getuid()}"
    return root / hashlib.sha256(path.encode()).hexdigest()[:16]


def remove(address: str) -> None:
    """Delete a small file or a folder, if it exists."""
    system, base = connect(address) if is_remote(address) else (fs.LocalFileSystem(), address)
    try:
        kind = system.get_file_info(base).type
        if kind == fs.FileType.Directory:
            system.delete_dir(base)
        elif kind == fs.FileType.File:
            system.delete_file(base)
    except FileNotFoundError:
        pass
    except FAILURES as problem:
        raise SnapshotError(f"cannot remove {without_passwords(address)}: {problem}") from None


def texts(folder: str) -> list[str]:
    """The small files of a folder, by name."""
    found = sorted(name for name in names(folder) if not name.startswith("."))
    if not is_remote(folder):
        return [Path(folder, name).read_text() for name in found]
    return [text for name in found if (text := _read_text(join(folder, name))) is not None]
