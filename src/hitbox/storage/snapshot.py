"""A snapshot on disk: versions side by side, each a manifest and flat arrays that can be memory-mapped.

    path/CURRENT                         "00000002 6a3f09c1": the version that readers open, and a checksum
    path/versions/00000001/manifest.json format, schema, counts, size and checksum of every file
                           *.npy         the arrays of the catalog, the dictionaries and the matcher
                           {part}/*.npy  where several processes wrote it: the catalog and matcher of each part
    path/versions/00000002/...
    path/pins/{name}.json                a reader that may come back to its version, which therefore stays
    path/writer.lock                     locked by the writer that publishes; its content names that process
    path/.draft-{name}, {name}.owner     a version that is being written; the writer holds the lock on the second

A version is written under a temporary name, synced and renamed, then CURRENT is replaced: a crash leaves the old
version current. Numbering, renaming, CURRENT and the removal of old versions are one step under one lock, so any
number of writers may save, build and apply changes at once, and CURRENT only ever goes up. A version is never changed,
so a reader that has one open keeps it. The versions that `keep` covers stay (retention.py), and those that are pinned.
What writers that died left behind is removed by the next one. Opening checks the manifest and every byte of every file;
with `verify=False` only the manifest and the sizes of the files. In both cases the values that could do harm are
checked before they are used (encoding/array_checks.py).
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import time
import uuid
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from numpy.typing import NDArray

from hitbox.errors import DamagedArray, SnapshotError, WriterConflict
from hitbox.storage import array_files, retention, writer_lock
from hitbox.storage.addresses import local_folder
from hitbox.storage.array_files import damaged
from hitbox.storage.retention import Keep, Moment

FORMAT = 6
ID_TYPES = ("int", "string")
MAX_DIGITS = 18
"""The number of a version has at most this many digits."""
MAX_ATTEMPTS = 100
"""How often a reader starts over because writers replaced the version that it was opening."""

Files = dict[str, dict[str, Any]]
T = TypeVar("T")

_PART = re.compile(r"(?:[\w-][\w.-]*)?")
_FILE = re.compile(r"(?:[\w-][\w.-]*/)?[\w-][\w.-]*")


class Vacuumed(NamedTuple):
    """What `vacuum` removed: versions, files of any kind, and the bytes that were freed."""

    versions: list[int]
    files: int
    bytes: int


def write(
    path: str | os.PathLike[str], meta: dict[str, Any], arrays: Mapping[str, NDArray[Any]], keep: Keep | None = None
) -> int:
    """Write the next version under `path`, make it current, drop old versions; its number."""
    retention.check_keep(keep)
    with draft(path) as folder:
        return publish(path, folder, meta, add(folder, arrays), keep=keep)


@contextlib.contextmanager
def writing(path: str | os.PathLike[str], wait: float | None = None) -> Iterator[None]:
    """Keep other writers from publishing: for reading a version, changing it and publishing the result."""
    root = local_folder(path)
    with _naming_folder(root):
        root.mkdir(parents=True, exist_ok=True)
        with writer_lock.alone(root / "writer.lock", "publish a version", wait):
            yield


@contextlib.contextmanager
def draft(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A folder to `add` the arrays of the next version to; it vanishes unless it is published."""
    root = local_folder(path)
    folder = root / f".draft-{uuid.uuid4().hex}"
    owner = folder.with_suffix(".owner")
    with contextlib.ExitStack() as stack:
        with _naming_folder(root):
            (root / "versions").mkdir(parents=True, exist_ok=True)
            (root / "pins").mkdir(exist_ok=True)
            _sweep(root)
            # waits: another writer's clean-up may have opened the file before it was locked
            stack.enter_context(writer_lock.exclusive(owner, "write a version", writer_lock.WAIT_SECONDS))
            stack.callback(owner.unlink, missing_ok=True)
            stack.callback(_remove, folder)
            folder.mkdir()
        yield folder


def add(folder: Path, arrays: Mapping[str, NDArray[Any]]) -> Files:
    """Write arrays into a draft, or a part of one; returns their entries in the manifest."""
    with _naming_folder(folder.parent):
        folder.mkdir(exist_ok=True)
        files = {name: array_files.write(folder / f"{name}.npy", array) for name, array in arrays.items()}
        _sync(folder)
        return files


def publish(
    path: str | os.PathLike[str],
    folder: Path,
    meta: dict[str, Any],
    files: Files,
    base: int | None = None,
    *,
    operation: str = "save",
    keep: Keep | None = None,
) -> int:
    """Make a draft the current version; where it was made from version `base`, that one must still be current."""
    root = local_folder(path)
    with _naming_folder(root), writing(root):
        before = _current_if_any(root)
        if base is not None and before != base:
            raise changed_since(str(path), base, before)
        number = max([0, before or 0, *versions(root)]) + 1
        if number >= 10**MAX_DIGITS:
            raise SnapshotError(f"no version can follow {number - 1} of the snapshot at {root}: save elsewhere")
        last = _last_facts(root, before)
        _write_text(
            folder / "manifest.json",
            manifest_text(meta | retention.recorded(last, before, operation, keep), files),
        )
        _sync(folder)
        _make_current(root, folder, number)
        _tidy(root, number, before, retention.in_force(last, keep))
    return number


def vacuum(path: str | os.PathLike[str], keep: Keep | None = None) -> Vacuumed:
    """Remove what nobody can need: versions that `keep` does not cover, and what dead writers left behind."""
    root = local_folder(path)
    current(root)  # an error if there is no snapshot, and nothing is made there
    with _naming_folder(root), writing(root):
        number, there, before = current(root), versions(root), _usage(root)
        _tidy(root, number, number, retention.in_force(facts_of(root, number), keep))
        after, left = _usage(root), set(versions(root))
    removed = [old for old in there if old not in left]
    return Vacuumed(removed, max(0, before[0] - after[0]), max(0, before[1] - after[1]))


def history(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """The manifests of the versions, oldest first, the current one last; one that is damaged has only its number."""
    root = local_folder(path)
    now = current(root)
    return [_facts_if_any(root, number) for number in versions(root) if number <= now]


def chosen(path: str | os.PathLike[str], version: int | None, as_of: Moment | None) -> int | None:
    """The version to open: the one given, the one that was current at a time, or None for the current one."""
    if as_of is None:
        return version
    retention.check_choice(version, as_of)
    return retention.current_at(path, as_of, history(path))


def changed_since(path: str, base: int, now: int | None) -> WriterConflict:
    """The error for a writer whose work began with a version that is no longer current."""
    return WriterConflict(
        f"the snapshot at {path} has changed: this change was made to version {base}, and version {now} is now "
        "current; nothing was published, do it again"
    )


def make_current(path: str | os.PathLike[str], version: int | None = None) -> int:
    """Repair a snapshot whose CURRENT is lost or damaged: the newest intact version, or the one given; its number."""
    root = local_folder(path)
    with writing(root):
        for number in [version] if version is not None else reversed(versions(root)):
            try:
                read(root, number, verify=True)
            except SnapshotError:
                if version is not None:
                    raise
                continue
            with _naming_folder(root):
                replace(root / "CURRENT", current_text(number))
            return number
    raise SnapshotError(f"there is no intact version at {path}")


def pin(path: str | os.PathLike[str], name: str, version: int, **facts: Any) -> None:
    """Keep a version until `name` pins another; a version that is gone already is an error."""
    root = local_folder(path)
    with _naming_folder(root):
        file = root / "pins" / f"{name}.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        with _pinning(root):  # or it might be removed between the look and the pin
            if version not in versions(root):
                raise no_version(root, version, versions(root), _current_if_any(root))
            replace(file, pin_text({"version": version, **facts}))


def pin_once(path: str | os.PathLike[str], name: str, **facts: Any) -> dict[str, Any]:
    """What `name` pinned; if that is nothing yet, it pins the current version. All who ask get the same answer."""
    pin = pinned(path, name)
    if pin is not None:
        return pin
    root = local_folder(path)
    with _naming_folder(root):
        (root / "pins").mkdir(exist_ok=True)
        with _pinning(root):
            pin = pinned(root, name)
            if pin is None:
                pin = {"version": current(root), **facts}
                replace(root / "pins" / f"{name}.json", pin_text(pin))
    return pin


def pinned(path: str | os.PathLike[str], name: str) -> dict[str, Any] | None:
    """What `name` pinned."""
    file = local_folder(path) / "pins" / f"{name}.json"
    try:
        return parse_pin(str(file), array_files.read_small(file).decode(errors="replace"))
    except FileNotFoundError:
        return None
    except OSError as problem:
        raise SnapshotError(f"cannot read the pin {file}: {problem.strerror or problem}") from None


def pin_text(facts: Mapping[str, Any]) -> str:
    """What the file of a pin holds: the facts and a checksum of them."""
    return json.dumps({**facts, "crc32": zlib.crc32(json.dumps(facts, sort_keys=True).encode())})


def parse_pin(file: str, text: str) -> dict[str, Any]:
    """The facts of a pin; anything that `pin_text` would not write is an error."""
    try:
        pin: dict[str, Any] = json.loads(text)
        del pin["crc32"]
        if isinstance(pin["version"], int) and text == pin_text(pin):
            return pin
    except (ValueError, KeyError, TypeError, RecursionError):
        pass
    raise SnapshotError(
        f"the pin {file} is damaged: it no longer says which version its reader may come back to; "
        "delete it, and start that reader with a new checkpoint"
    )


def pins(path: str | os.PathLike[str]) -> set[int]:
    """The versions that are pinned."""
    folder = local_folder(path) / "pins"
    names = [str(file.relative_to(folder).with_suffix("")) for file in folder.rglob("*.json")]
    all_pins = [pinned(path, name) for name in names]
    return {int(pin["version"]) for pin in all_pins if pin and not expired(pin)}


def expired(pin: Mapping[str, Any]) -> bool:
    """Whether a pin no longer holds its version: nobody came back for it in time."""
    return bool(pin.get("expires", math.inf) < time.time())


def versions(path: str | os.PathLike[str]) -> list[int]:
    """The versions that lie under `path`, oldest first."""
    folder = local_folder(path) / "versions"
    try:
        return numbered(entry.name for entry in folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as problem:
        raise SnapshotError(f"cannot list {folder}: {problem.strerror or problem}") from None


def numbered(names: Iterable[str]) -> list[int]:
    """The numbers of the folders that are versions, lowest first; other names are ignored."""
    digits = [name for name in names if name.isascii() and name.isdigit() and len(name) <= MAX_DIGITS]
    return sorted(int(name) for name in digits if name == f"{int(name):08d}")


def current(path: str | os.PathLike[str]) -> int:
    """The version that readers open."""
    try:
        text = array_files.read_small(local_folder(path) / "CURRENT").decode(errors="replace")
    except OSError as problem:
        if isinstance(problem, FileNotFoundError) and (there := versions(path)):
            raise SnapshotError(
                f"cannot open the snapshot at {path}: CURRENT is missing, though there are versions "
                f"{', '.join(map(str, there))}; open one by its number (version=...), or make the newest intact one "
                f"current again with hitbox.storage.snapshot.make_current({str(path)!r})"
            ) from None
        reason = "there is none" if isinstance(problem, FileNotFoundError) else (problem.strerror or problem)
        raise SnapshotError(f"cannot open a snapshot at {path}: {reason}") from None
    try:
        return parse_current(text)
    except SnapshotError as problem:
        raise SnapshotError(f"the snapshot at {path} cannot be opened: {problem}") from None


def current_text(number: int) -> str:
    """What CURRENT holds: the number of a version and a checksum of it."""
    digits = f"{number:08d}"
    return f"{digits} {zlib.crc32(digits.encode()):08x}\n"


def parse_current(text: str) -> int:
    """The number of the version that CURRENT names; anything that `current_text` would not write is an error."""
    digits = text.partition(" ")[0].strip()
    plain = digits.isascii() and digits.isdigit() and len(digits) <= MAX_DIGITS
    if plain and text == current_text(int(digits)):
        return int(digits)
    if plain and text.strip() == digits:
        raise SnapshotError(f"CURRENT holds {digits} without a checksum: an older hitbox wrote it; build it again")
    raise SnapshotError(
        f"CURRENT is damaged: it holds {text[:40]!r}; open a version of the folder `versions` by its number "
        "(version=...), or build it again"
    )


def read(
    path: str | os.PathLike[str],
    version: int | None = None,
    verify: bool = True,
    parts: Collection[str] | None = None,
    mapped: bool = True,
) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """The manifest and the arrays of a version, memory-mapped or copied, of all its parts or of some."""
    if version is None:
        return latest(path, lambda number: read(path, number, verify, parts, mapped))
    manifest = facts_of(path, version)
    folder = folder_of(path, manifest["version"])
    files = {
        name: facts
        for name, facts in manifest["files"].items()
        if parts is None or "/" not in name or name.partition("/")[0] in parts
    }
    return manifest, array_files.read(folder, files, verify, mapped)


def check_version(version: object) -> None:
    """Raise an error unless a version is a whole number."""
    if isinstance(version, bool) or not hasattr(version, "__index__"):
        raise SnapshotError(f"a version is a whole number, not {version!r:.80}")


def folder_of(path: str | os.PathLike[str], version: int) -> Path:
    """Where the files of a version lie."""
    return local_folder(path) / "versions" / f"{version:08d}"


def facts_of(path: str | os.PathLike[str], version: int | None = None) -> dict[str, Any]:
    """The manifest of a version, with its number."""
    if version is None:
        return latest(path, lambda number: facts_of(path, number))
    check_version(version)
    folder = local_folder(path) / "versions" / f"{version:08d}"
    if not os.path.isdir(folder):
        raise no_version(path, version, versions(path), _current_if_any(local_folder(path)))
    return _read_manifest(folder) | {"version": version}


@contextlib.contextmanager
def naming(folder: Path, prefix: str = "") -> Iterator[None]:
    """Turn an error about a damaged array into one that names its file."""
    try:
        yield
    except DamagedArray as problem:
        raise damaged(folder / f"{prefix}{problem.name}.npy", problem.reason) from None


def part(arrays: Mapping[str, NDArray[Any]], name: str) -> dict[str, NDArray[Any]]:
    """The arrays whose names begin with `name.`, without it."""
    return {key[len(name) + 1 :]: array for key, array in arrays.items() if key.startswith(f"{name}.")}


def latest(path: Any, opened: Callable[[int], T], now: Callable[[Any], int] | None = None) -> T:
    """What `opened` makes of the current version, and again of the next where a writer removed it meanwhile."""
    now = now or current
    number = now(path)
    for _ in range(MAX_ATTEMPTS):
        try:
            return opened(number)
        except SnapshotError:
            newer = now(path)
            if newer == number:
                raise
            number = newer
    raise SnapshotError(
        f"cannot open the snapshot at {path}: it was replaced {MAX_ATTEMPTS} times while it was being opened"
    )


def no_version(path: object, number: int, there: Collection[int], now: int | None) -> SnapshotError:
    """The error for a version that is not there, which lists those that are."""
    listed = ", ".join(f"{n} (current)" if n == now else str(n) for n in there) or "none"
    repair = f"; repair it with hitbox.storage.snapshot.make_current({str(path)!r})" if number == now and there else ""
    return SnapshotError(
        f"cannot open version {number} of the snapshot at {path}: it is gone; versions there: {listed}{repair}"
    )


def _current_if_any(root: Path) -> int | None:
    try:
        return current(root)
    except SnapshotError:
        return None


def _make_current(root: Path, folder: Path, number: int) -> None:
    place = root / "versions" / f"{number:08d}"
    os.rename(folder, place)
    try:
        _sync(root / "versions")
        replace(root / "CURRENT", current_text(number))
    except BaseException:
        if _current_if_any(root) != number:
            _hide(place)
            _sweep(root)  # at once: the disk may be full
        raise


def _facts_if_any(root: Path, number: int) -> dict[str, Any]:
    try:
        return _read_manifest(folder_of(root, number)) | {"version": number}
    except SnapshotError:
        return {"version": number}


def _last_facts(root: Path, before: int | None) -> dict[str, Any]:
    """What the next version takes over: the manifest of the current version, or of the newest one before it."""
    for number in reversed(versions(root)):
        if (before is None or number <= before) and len(facts := _facts_if_any(root, number)) > 1:
            return facts
    return {}


def _tidy(root: Path, number: int, before: int | None, keep: int | timedelta) -> None:
    """Remove what is no longer needed. The new version is current already, so failures are left to the next writer."""
    with contextlib.suppress(OSError, SnapshotError):
        _retire(root, number, before, keep)
    with contextlib.suppress(OSError):
        for beside in root.glob(".CURRENT-*"):
            beside.unlink(missing_ok=True)
        _sweep(root)


def _retire(root: Path, number: int, before: int | None, keep: int | timedelta) -> None:
    """Take old versions out of sight: a reader finds a version whole or not at all."""
    with _pinning(root):
        there = versions(root)
        were_current = [old for old in there if old < number and (before is None or old <= before)]
        kept = retention.kept([*were_current, number], keep, lambda n: retention.time_of(_facts_if_any(root, n)))
        try:
            kept |= pins(root)
        except SnapshotError:  # a damaged pin: it may keep any version
            return
        for old in there:
            if old not in kept and old < number:
                _hide(root / "versions" / f"{old:08d}")


def _usage(root: Path) -> tuple[int, int]:
    """How many files there are, and their bytes, but for locks; a file that several versions share counts once."""
    usage = {}
    for folder, _, names in os.walk(root):
        for name in names:
            if name.endswith(".lock"):
                continue
            with contextlib.suppress(OSError):  # a draft of a writer that is at work
                state = os.stat(os.path.join(folder, name), follow_symlinks=False)
                usage[state.st_dev, state.st_ino] = state.st_size
    return len(usage), sum(usage.values())


def _hide(place: Path) -> None:
    with contextlib.suppress(OSError):
        os.rename(place, place.with_name(f".gone-{place.name}-{uuid.uuid4().hex}"))


@contextlib.contextmanager
def _pinning(root: Path) -> Iterator[None]:
    """Keep readers from pinning while old versions are removed; takes a moment only."""
    with writer_lock.alone(root / "pins" / ".lock", "pin a version"):
        yield


def replace(file: Path, text: str) -> None:
    """Write a small file so that a crash leaves the old one or the new one."""
    beside = file.with_name(f".{file.name}-{uuid.uuid4().hex}")
    try:
        _write_text(beside, text)
        os.replace(beside, file)
    finally:
        beside.unlink(missing_ok=True)
    _sync(file.parent)


def _remove(folder: Path) -> None:
    import shutil  # imports compressors, which `import hitbox` should not wait for

    shutil.rmtree(folder, ignore_errors=True)


def _sweep(root: Path) -> None:
    """Remove what writers that died left behind: drafts that no process has locked, versions half removed."""
    for owner in root.glob(".draft-*.owner"):
        with contextlib.suppress(OSError, WriterConflict), writer_lock.exclusive(owner, "remove a dead draft", wait=0):
            _remove(owner.with_suffix(""))
            owner.unlink(missing_ok=True)
    for folder in root.glob(".draft-*"):
        if folder.suffix != ".owner" and not folder.with_suffix(".owner").exists():
            _remove(folder)
    for gone in (root / "versions").glob(".gone-*"):
        _remove(gone)
        with contextlib.suppress(OSError):  # a file that had the name of a version
            gone.unlink()


@contextlib.contextmanager
def _naming_folder(root: Path) -> Iterator[None]:
    try:
        yield
    except OSError as problem:
        raise SnapshotError(f"cannot write a snapshot to {root}: {problem.strerror or problem}") from problem


def manifest_text(meta: Mapping[str, Any], files: Files) -> str:
    return _sealed(json.dumps({"format": FORMAT, "written_by": _hitbox(), **meta, "files": files}, indent=1) + "\n")


def _sealed(body: str) -> str:
    return json.dumps({"crc32": zlib.crc32(body[:-1].encode())}) + "\n" + body


def _hitbox() -> str:
    from importlib import metadata  # takes a tenth of the time of `import hitbox`, and only writers need it

    try:
        return f"hitbox {metadata.version('hitbox')}"
    except metadata.PackageNotFoundError:  # run from a folder, not installed
        return "hitbox"


def _read_manifest(folder: Path) -> dict[str, Any]:
    file = folder / "manifest.json"
    try:
        text = array_files.read_small(file).decode()
        body = text.partition("\n")[2]
        manifest: dict[str, Any] = json.loads(body)
        intact = text == _sealed(body)
    except OSError as problem:
        raise SnapshotError(f"cannot open the snapshot version {folder}: {problem.strerror or problem}") from None
    except (ValueError, RecursionError):
        raise damaged(file, "it cannot be read") from None
    if not intact:
        raise damaged(file, "its checksum is wrong")
    if not isinstance(manifest, dict) or not isinstance(manifest.get("format"), int):
        raise damaged(file, "it does not say which format it has")
    if manifest["format"] != FORMAT:
        raise _other_format(folder, manifest["format"], str(manifest.get("written_by") or ""))
    reason = _wrong_with(manifest)
    if reason:
        raise damaged(file, reason)
    return manifest


def _other_format(folder: Path, number: int, writer: str) -> SnapshotError:
    there = f"the snapshot at {folder} has format {number}" + (f", written by {writer}" if writer else "")
    here = f"this is {_hitbox()}, which reads format {FORMAT}"
    if number > FORMAT:
        return SnapshotError(f"{there}; {here}: open it with {writer or 'a newer hitbox'} (upgrade hitbox)")
    return SnapshotError(
        f"{there}; {here}: build it again from its subscriptions (Index.load and save, or `hitbox build`), "
        f"or open it with {writer or 'the hitbox that wrote it'}"
    )


def _wrong_with(manifest: Mapping[str, Any]) -> str | None:
    """Why a manifest whose checksum is right cannot be used; no file may lie outside of the version's folder."""
    files, parts = manifest.get("files"), manifest.get("parts", [""])
    if not isinstance(files, dict) or not all(_FILE.fullmatch(name) for name in files):
        return "a file has a name that hitbox does not write"
    for facts in files.values():
        if not isinstance(facts, dict) or not all(isinstance(facts.get(key), int) for key in ("bytes", "crc32c")):
            return "it does not say the size and the checksum of every file"
    if not isinstance(parts, list) or not parts or not all(isinstance(name, str) for name in parts):
        return "it does not list its parts"
    if not all(_PART.fullmatch(name) for name in parts):
        return "a part has a name that hitbox does not write"
    if len(set(parts)) < len(parts):
        return "it lists a part twice"
    if manifest.get("id_type") not in ID_TYPES or not isinstance(manifest.get("matcher"), str):
        return "it names a type of ids or a matcher that does not exist"
    if not isinstance(manifest.get("schema"), dict | list):
        return "it does not say the schema"
    changes = manifest.get("changes", {"last": 0, "faded": 0})
    if not isinstance(changes, dict):
        return "it does not say which changes were applied"
    numbers = [manifest.get("subscriptions"), manifest.get("sequence", 0), changes.get("last"), changes.get("faded")]
    if not all(isinstance(number, int) for number in numbers):
        return "a count or a sequence number is none"
    return None


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
