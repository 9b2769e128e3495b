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
lock of snapshot.py, remote ones under a lease (writer_lease.py). Where the store has conditional puts, a writer also
claims the number of its version (`claim.json`), and replaces CURRENT only if nobody else did so meanwhile.
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
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import fs

from hitbox.errors import SnapshotError, WriterConflict
from hitbox.spark import small_objects, writer_lease
from hitbox.spark.small_objects import ABSENT, ANY, Overtaken, PlainObjects, SmallObjects
from hitbox.storage import retention, snapshot, writer_lock
from hitbox.storage.addresses import connect, is_remote, join, local_folder, without_passwords
from hitbox.storage.retention import Keep

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


def history(path: str) -> list[dict[str, Any]]:
    """The manifests of the versions, oldest first, the current one last; one that is damaged has only its number."""
    if not is_remote(path):
        return snapshot.history(path)
    now = current(path)
    with ThreadPoolExecutor(PARALLEL_COPIES) as pool:
        return list(pool.map(lambda number: _facts_if_any(path, number), [n for n in _numbers(path) if n <= now]))


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
    with writer_lease.alone(address, "publish a version", small_objects.of(path), remove, wait) as lease:
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
    lease = writer_lease.Lease(join(path, f"{name}.owner"), "write a version", small_objects.of(path))
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
            with _naming("write", address):
                with pa.OSFile(str(beside), "wb") as out:
                    yield out
                os.replace(beside, address)
        finally:
            beside.unlink(missing_ok=True)
        return
    content = pa.BufferOutputStream()  # closing a stream that failed halfway would publish half of a file
    yield content
    small_objects.put(address, content.getvalue())


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
        with _naming("write to", place):
            os.makedirs(place, exist_ok=True)


def take_over(path: str, version: int, place: str, files: Iterable[str]) -> None:
    """Add files of a version to a draft, without their content passing through this process."""
    names = [f"{name}.npy" for name in files]
    if is_remote(path):
        if names:
            _move(join(path, "versions", f"{version:08d}"), place, names)
        return
    source = snapshot.folder_of(path, version)
    with _naming("write to", place):
        for name in names:
            target = Path(place, name)
            target.parent.mkdir(exist_ok=True)
            try:
                os.link(source / name, target)
            except OSError:  # not every filesystem has links
                shutil.copyfile(source / name, target)


def publish(
    path: str,
    place: str,
    meta: dict[str, Any],
    files: snapshot.Files,
    base: int | None = None,
    *,
    operation: str,
    keep: Keep | None = None,
) -> int:
    """Make a draft the current version; its number. Where it was made from `base`, that must still be current.

    operation: what made the version, for `hs.versions`
    keep: which versions stay (retention.py)
    """
    if not is_remote(path):
        _remove_others(Path(place), files)
        return snapshot.publish(path, Path(place), meta, files, base, operation=operation, keep=keep)
    with writing(path) as lease:
        assert lease is not None
        objects = small_objects.of(path)
        before, tag = _current_and_tag(path, objects)
        if base is not None and before != base:
            raise snapshot.changed_since(without_passwords(path), base, before)
        number = _claimed(path, objects, max([0, before or 0, *_folders(path)]) + 1)
        home = join(path, "versions", f"{number:08d}")
        _move(place, home, [f"{name}.npy" for name in files])
        last = _last_facts(path, before)
        lease.check()
        meta = meta | retention.recorded(last, before, operation, keep)
        write_text(join(home, "manifest.json"), snapshot.manifest_text(meta, files))
        try:
            lease.check()
            objects.write(join(path, "CURRENT"), snapshot.current_text(number), tag)
        except SnapshotError as problem:
            now = _current_if_any(path)
            if now != number:
                remove(join(home, "manifest.json"))
                if isinstance(problem, Overtaken):
                    raise snapshot.changed_since(without_passwords(path), before or 0, now) from None
            if now != number or isinstance(problem, WriterConflict):  # otherwise only the store's answer was lost
                raise
        _retire(path, number, before, retention.in_force(last, keep))
        _sweep(path)
    return number


def _remove_others(place: Path, files: snapshot.Files) -> None:
    """Remove what tasks left in a draft whose result does not count, because they failed or another was faster."""
    parts = {name.partition("/")[0] for name in files if "/" in name}
    for entry in place.iterdir():
        if entry.is_dir() and entry.name not in parts:
            shutil.rmtree(entry, ignore_errors=True)


def _current_and_tag(path: str, objects: SmallObjects) -> tuple[int | None, str]:
    """The current version, and what CURRENT is to be replaced for; None where it is missing or damaged."""
    text, tag = objects.read(join(path, "CURRENT"))
    try:
        return None if text is None else snapshot.parse_current(text), tag
    except SnapshotError:
        return None, tag


def _claimed(path: str, objects: SmallObjects, number: int) -> int:
    """The number of the next version, which no other writer can get: its files are copied into that folder."""
    while objects.conditional:
        claim = json.dumps({"token": uuid.uuid4().hex, **writer_lock.owner("publish a version")})
        try:
            objects.write(join(path, "versions", f"{number:08d}", "claim.json"), claim, ABSENT)
            break
        except Overtaken:
            number += 1
    return number


def vacuum(path: str, keep: Keep | None = None) -> snapshot.Vacuumed:
    """Remove what nobody can need: versions that `keep` does not cover, and what dead writers left behind."""
    if not is_remote(path):
        return snapshot.vacuum(path, keep)
    current(path)  # an error if there is no snapshot
    with writing(path):
        number, there, before = current(path), _folders(path), _usage(path)
        _retire(path, number, number, retention.in_force(facts(path, number), keep))
        for above in _folders(path):
            if above > number and above not in _numbers(path):  # a writer died before it wrote the manifest
                remove(join(path, "versions", f"{above:08d}"))
        _sweep(path)
        after, left = _usage(path), set(_folders(path))
    removed = [old for old in there if old not in left]
    return snapshot.Vacuumed(removed, max(0, before[0] - after[0]), max(0, before[1] - after[1]))


def _usage(path: str) -> tuple[int, int]:
    """How many files there are, and their bytes."""
    system, base = connect(path)
    try:
        found = system.get_file_info(fs.FileSelector(base, allow_not_found=True, recursive=True))
    except FAILURES as problem:
        raise SnapshotError(f"cannot list {without_passwords(path)}: {problem}") from None
    sizes = [info.size or 0 for info in found if info.type == fs.FileType.File]
    return len(sizes), sum(sizes)


def _facts_if_any(path: str, number: int) -> dict[str, Any]:
    try:
        return facts(path, number)
    except SnapshotError:
        return {"version": number}


def _last_facts(path: str, before: int | None) -> dict[str, Any]:
    """What the next version takes over: the manifest of the current version, or of the newest one before it."""
    for number in reversed(_folders(path)):
        if (before is None or number <= before) and len(found := _facts_if_any(path, number)) > 1:
            return found
    return {}


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


def _retire(path: str, number: int, before: int | None, keep: int | timedelta) -> None:
    """Remove old versions: those that `keep` covers stay, and those that are pinned."""
    there = _folders(path)
    were_current = [old for old in there if old < number and (before is None or old <= before)]
    kept = retention.kept([*were_current, number], keep, lambda n: retention.time_of(_facts_if_any(path, n)))
    try:
        kept |= pinned_versions(path)
    except SnapshotError:  # a damaged pin: it may keep any version
        return
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

    On a store with conditional puts, the first who writes wins. On other stores a pin counts only after
    SETTLE_SECONDS: whoever finds none writes one, and the last of those who write at the same time wins.
    """
    if not is_remote(path):
        return snapshot.pin_once(path, name, **facts)
    address = join(path, "pins", f"{name}.json")
    found = _pin(address)
    if found is not None and found["settled"]:
        return found
    objects = small_objects.of(path)
    if found is None:
        text = snapshot.pin_text({"version": current(path), **facts, "settled": objects.conditional})
        with contextlib.suppress(Overtaken):  # another task was first
            objects.write(address, text, ABSENT)
    if not objects.conditional:
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


def pinned_versions(path: str) -> set[int]:
    """The versions that a stream may come back to: all pins below `pins`, in folders as well."""
    if not is_remote(path):
        return snapshot.pins(path)
    system, base = connect(join(path, "pins"))
    try:
        found = system.get_file_info(fs.FileSelector(base, allow_not_found=True, recursive=True))
    except FAILURES as problem:
        raise SnapshotError(f"cannot list {without_passwords(join(path, 'pins'))}: {problem}") from None
    files = [info.path[len(base) + 1 :] for info in found if info.path.endswith(".json")]
    pins = [_pin(join(path, "pins", file)) for file in files]
    return {int(pin["version"]) for pin in pins if pin and not snapshot.expired(pin)}


def require_writable(path: str, what: str) -> None:
    """Raise an error before any work if a local folder cannot be written to, or a store does not answer."""
    if is_remote(path):
        names(path)
        return
    place = Path(path)
    while not place.exists():
        place = place.parent
    if not place.is_dir():
        raise SnapshotError(f"cannot write {what} to {path}: {place} is a file, not a folder")
    if not os.access(place, os.W_OK | os.X_OK):
        raise SnapshotError(f"cannot write {what} to {path}: no permission to write in {place}")


def write_text(address: str, text: str) -> None:
    """A small file, whole or not at all."""
    if not is_remote(address):
        file = Path(address)
        with _naming("write", address):
            file.parent.mkdir(parents=True, exist_ok=True)
            snapshot.replace(file, text)
        return
    PlainObjects().write(address, text, ANY)


def _read_text(address: str) -> str | None:
    """A small file; None where there is none."""
    return PlainObjects().read(address)[0]


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


@contextlib.contextmanager
def _naming(what: str, address: str) -> Iterator[None]:
    """Turn an error of the local filesystem into one that says what failed where."""
    try:
        yield
    except OSError as problem:
        raise SnapshotError(f"cannot {what} {address}: {problem.strerror or problem}") from None


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
    return _current_and_tag(path, PlainObjects())[0]


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
        with _naming("read", folder):
            return [Path(folder, name).read_text() for name in found]
    return [text for name in found if (text := _read_text(join(folder, name))) is not None]
