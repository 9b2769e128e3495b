"""A snapshot on disk: versions side by side, each a manifest and flat arrays that can be memory-mapped.

    path/CURRENT                         "00000002": the version that readers open
    path/versions/00000001/manifest.json format, schema, counts, size and checksum of every file
                           *.npy         the arrays of the catalog, the dictionaries and the matcher
                           {part}/*.npy  where several processes wrote it: the catalog and matcher of each part
    path/versions/00000002/...
    path/pins/{name}.json                a reader that may come back to its version, which therefore stays

A version is written under a temporary name, synced and renamed, then CURRENT is replaced: a crash leaves the old
version current. A version is never changed, so a reader that has one open keeps it. The last two versions stay, and
those that are pinned. Opening checks the manifest, every
file's size, every byte of files up to 4 MB and samples of larger ones; `verify=True` reads every byte.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import time
import uuid
import zlib
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hitbox.errors import SnapshotError

FORMAT = 6
KEEP = 2
SMALL = 4 * 2**20
PAGE = 2**16
STALE = 86_400
"""Seconds after which a draft that nobody published is taken for dead."""

Files = dict[str, dict[str, Any]]


def write(path: str | os.PathLike[str], meta: dict[str, Any], arrays: Mapping[str, NDArray[Any]]) -> int:
    """Write the next version under `path`, make it current, drop old versions; its number."""
    with draft(path) as folder:
        return publish(path, folder, meta, add(folder, arrays))


@contextlib.contextmanager
def draft(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A folder to `add` the arrays of the next version to; it vanishes unless it is published."""
    root = Path(path)
    with _saying(root):
        (root / "versions").mkdir(parents=True, exist_ok=True)
        _sweep(root)
        folder = root / f".draft-{uuid.uuid4().hex}"
        folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def add(folder: Path, arrays: Mapping[str, NDArray[Any]]) -> Files:
    """Write arrays into a draft, or a part of one; what the manifest says of them."""
    with _saying(folder.parent):
        folder.mkdir(exist_ok=True)
        files = {name: _write_array(folder / f"{name}.npy", array) for name, array in arrays.items()}
        _sync(folder)
        return files


def publish(path: str | os.PathLike[str], folder: Path, meta: dict[str, Any], files: Files) -> int:
    """Make a draft the current version."""
    root = Path(path)
    with _saying(root):
        _write_text(folder / "manifest.json", manifest_text(meta, files))
        _sync(folder)
        number = _publish(root, folder)
        held = pins(root)
        for old in versions(root):
            if old <= number - KEEP and old not in held:
                shutil.rmtree(root / "versions" / f"{old:08d}", ignore_errors=True)
        return number


def pin(path: str | os.PathLike[str], name: str, version: int, **facts: Any) -> None:
    """Keep a version until `name` pins another; a version that is gone already is an error."""
    folder = Path(path) / "pins"
    with _saying(Path(path)):
        folder.mkdir(exist_ok=True)
        replace(folder / f"{name}.json", json.dumps({"version": version, **facts}))
    if version not in versions(path):
        raise SnapshotError(f"version {version} of the snapshot at {path} is gone; open the current one")


def pinned(path: str | os.PathLike[str], name: str) -> dict[str, Any] | None:
    """What `name` pinned."""
    try:
        found: dict[str, Any] = json.loads((Path(path) / "pins" / f"{name}.json").read_text())
    except FileNotFoundError:
        return None
    return found


def pins(path: str | os.PathLike[str]) -> set[int]:
    """The versions that somebody may come back to."""
    names = [file.stem for file in (Path(path) / "pins").glob("*.json")]
    return {int(found["version"]) for name in names if (found := pinned(path, name))}


def versions(path: str | os.PathLike[str]) -> list[int]:
    """The versions that lie under `path`, oldest first."""
    folder = Path(path) / "versions"
    return sorted(int(p.name) for p in folder.iterdir() if p.name.isdigit()) if folder.is_dir() else []


def current(path: str | os.PathLike[str]) -> int:
    """The version that readers open."""
    try:
        text = (Path(path) / "CURRENT").read_text().strip()
    except OSError as problem:
        reason = "there is none" if isinstance(problem, FileNotFoundError) else (problem.strerror or problem)
        raise SnapshotError(f"cannot open a snapshot at {path}: {reason}") from None
    if not text.isdigit():
        raise SnapshotError(f"the snapshot at {path} is damaged: CURRENT holds {text[:40]!r}")
    return int(text)


def read(
    path: str | os.PathLike[str],
    version: int | None = None,
    verify: bool = False,
    parts: Collection[str] | None = None,
) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """The manifest and the memory-mapped arrays of a version, of all its parts or of some."""
    manifest = facts_of(path, version)
    folder = Path(path) / "versions" / f"{manifest['version']:08d}"
    arrays = {}
    for name, facts in manifest["files"].items():
        if parts is not None and "/" in name and name.partition("/")[0] not in parts:
            continue
        file = folder / f"{name}.npy"
        try:
            _check(file, facts, verify)
            mapped = np.load(file, mmap_mode="r", allow_pickle=False)
            arrays[name] = mapped.view(np.ndarray)  # the subclass makes every slice slower
        except SnapshotError:
            raise
        except (OSError, ValueError) as problem:
            raise SnapshotError(f"the snapshot file {file} is damaged: {problem}") from None
    return manifest, arrays


def facts_of(path: str | os.PathLike[str], version: int | None = None) -> dict[str, Any]:
    """The manifest of a version, with its number."""
    number = current(path) if version is None else version
    return _read_manifest(Path(path) / "versions" / f"{number:08d}") | {"version": number}


def part(arrays: Mapping[str, NDArray[Any]], name: str) -> dict[str, NDArray[Any]]:
    """The arrays whose names begin with `name.`, without it."""
    return {key[len(name) + 1 :]: array for key, array in arrays.items() if key.startswith(f"{name}.")}


def _publish(root: Path, draft: Path) -> int:
    number = max([0, *versions(root)]) + 1
    while True:
        try:
            os.rename(draft, root / "versions" / f"{number:08d}")
            break
        except OSError:
            if not (root / "versions" / f"{number:08d}").exists():
                raise
            number += 1  # another writer was faster
    _sync(root / "versions")
    replace(root / "CURRENT", f"{number:08d}\n")
    return number


def replace(file: Path, text: str) -> None:
    """Write a small file so that a crash leaves the old one or the new one."""
    beside = file.with_name(f".{file.name}-{uuid.uuid4().hex}")
    try:
        _write_text(beside, text)
        os.replace(beside, file)
    finally:
        beside.unlink(missing_ok=True)
    _sync(file.parent)


def _sweep(root: Path) -> None:
    """Remove what writers that were killed left behind."""
    for folder in root.glob(".draft-*"):
        with contextlib.suppress(OSError):
            if time.time() - folder.stat().st_mtime > STALE:
                shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _saying(root: Path) -> Iterator[None]:
    try:
        yield
    except OSError as problem:
        raise SnapshotError(f"cannot write a snapshot to {root}: {problem.strerror or problem}") from problem


def _write_array(file: Path, array: NDArray[Any]) -> dict[str, Any]:
    with open(file, "wb") as out:
        np.save(out, np.ascontiguousarray(array), allow_pickle=False)
        out.flush()
        os.fsync(out.fileno())
    size = file.stat().st_size
    return {"bytes": size, "crc32": _checksum(file, size, whole=True), "sample": _checksum(file, size, whole=False)}


def _checksum(file: Path, size: int, whole: bool) -> int:
    """CRC-32 of a file, or of sixteen pages spread over it."""
    crc = 0
    with open(file, "rb") as opened:
        if whole or size <= SMALL:
            while piece := opened.read(2**22):
                crc = zlib.crc32(piece, crc)
        else:
            for at in np.linspace(0, size - PAGE, 16).astype(int).tolist():
                opened.seek(at)
                crc = zlib.crc32(opened.read(PAGE), crc)
    return crc


def _check(file: Path, facts: Mapping[str, Any], verify: bool) -> None:
    size = file.stat().st_size
    if size != facts["bytes"]:
        raise SnapshotError(f"the snapshot file {file} is damaged: {size} bytes where {facts['bytes']} were written")
    if _checksum(file, size, verify) != facts["crc32" if verify else "sample"]:
        raise SnapshotError(f"the snapshot file {file} is damaged: its checksum is wrong")


def manifest_text(meta: Mapping[str, Any], files: Files) -> str:
    body = json.dumps({"format": FORMAT, **meta, "files": files}, indent=1)
    return json.dumps({"crc32": zlib.crc32(body.encode())}) + "\n" + body + "\n"


def _read_manifest(folder: Path) -> dict[str, Any]:
    file = folder / "manifest.json"
    try:
        head, _, body = file.read_text().partition("\n")
        found: dict[str, Any] = json.loads(body)
        intact = json.loads(head)["crc32"] == zlib.crc32(body[:-1].encode())
    except OSError as problem:
        raise SnapshotError(f"cannot open the snapshot version {folder}: {problem.strerror or problem}") from None
    except (ValueError, KeyError, TypeError):
        raise SnapshotError(f"the snapshot file {file} is damaged: it cannot be read") from None
    if isinstance(found, dict) and isinstance(found.get("format"), int) and found["format"] != FORMAT:
        mend = "upgrade hitbox" if found["format"] > FORMAT else "build it again"
        raise SnapshotError(
            f"the snapshot at {folder} has format {found['format']}; this hitbox reads {FORMAT}: {mend}"
        )
    if not intact:
        raise SnapshotError(f"the snapshot file {file} is damaged: its checksum is wrong")
    return found


def _write_text(file: Path, text: str) -> None:
    with open(file, "w") as out:
        out.write(text)
        out.flush()
        os.fsync(out.fileno())


def _sync(folder: Path) -> None:
    with contextlib.suppress(OSError):  # not every filesystem syncs directories
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
