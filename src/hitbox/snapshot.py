"""A snapshot on disk: versions side by side, each a manifest and flat arrays that can be memory-mapped.

    path/CURRENT                         "00000002": the version that readers open
    path/versions/00000001/manifest.json format, schema, counts, size and checksum of every file
                           *.npy         the arrays of the catalog, the dictionaries and the matcher
    path/versions/00000002/...

A version is written under a temporary name, synced and renamed, then CURRENT is replaced: a crash leaves the old
version current. A version is never changed, so a reader that has one open keeps it. Opening checks the manifest, every
file's size, every byte of files up to 4 MB and samples of larger ones; `verify=True` reads every byte.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import uuid
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hitbox.errors import SnapshotError

FORMAT = 1
KEEP = 2
SMALL = 4 * 2**20
PAGE = 2**16


def write(path: str | os.PathLike[str], meta: dict[str, Any], arrays: Mapping[str, NDArray[Any]]) -> int:
    """Write the next version under `path`, make it current, drop versions older than the last two; its number."""
    root = Path(path)
    try:
        (root / "versions").mkdir(parents=True, exist_ok=True)
        draft = root / f".draft-{uuid.uuid4().hex}"
        draft.mkdir()
        try:
            files = {name: _write_array(draft / f"{name}.npy", array) for name, array in arrays.items()}
            _write_text(draft / "manifest.json", _manifest({"format": FORMAT, **meta, "files": files}))
            _sync(draft)
            number = _publish(root, draft)
        finally:
            shutil.rmtree(draft, ignore_errors=True)
        for old in versions(root):
            if old <= number - KEEP:
                shutil.rmtree(root / "versions" / f"{old:08d}", ignore_errors=True)
    except OSError as problem:
        raise SnapshotError(f"cannot write a snapshot to {root}: {problem.strerror or problem}") from problem
    return number


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
    path: str | os.PathLike[str], version: int | None = None, verify: bool = False
) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """The manifest and the memory-mapped arrays of a version."""
    number = current(path) if version is None else version
    folder = Path(path) / "versions" / f"{number:08d}"
    manifest = _read_manifest(folder)
    arrays = {}
    for name, facts in manifest["files"].items():
        file = folder / f"{name}.npy"
        try:
            _check(file, facts, verify)
            arrays[name] = np.load(file, mmap_mode="r", allow_pickle=False)
        except SnapshotError:
            raise
        except (OSError, ValueError) as problem:
            raise SnapshotError(f"the snapshot file {file} is damaged: {problem}") from None
    return manifest, arrays


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
    beside = root / f".current-{uuid.uuid4().hex}"
    try:
        _write_text(beside, f"{number:08d}\n")
        os.replace(beside, root / "CURRENT")
    finally:
        beside.unlink(missing_ok=True)
    _sync(root)
    return number


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


def _manifest(facts: dict[str, Any]) -> str:
    body = json.dumps(facts, indent=1)
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
    if isinstance(found, dict) and isinstance(found.get("format"), int) and found["format"] > FORMAT:
        raise SnapshotError(
            f"the snapshot at {folder} has format {found['format']}; this hitbox reads up to {FORMAT}: upgrade hitbox"
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
