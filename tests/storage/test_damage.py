"""Snapshots that are damaged, or forged with valid checksums: an error that names the file, never a crash."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import threading
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from numpy.lib import format as npy

from hitbox import Index, Schema
from hitbox.engine import _kernels
from hitbox.errors import SchemaError, SnapshotError
from hitbox.storage import array_files, snapshot

Array = np.ndarray[Any, Any]


def forged(path: Path, name: str, change: Callable[[Array], Array | None]) -> None:
    """Change an array of the current version, and its checksum with it."""
    facts = snapshot.facts_of(path)
    folder = snapshot.folder_of(path, facts.pop("version"))
    files = facts.pop("files")
    file = folder / f"{name}.npy"
    array = change(np.load(file))
    if array is None:
        del files[name]
    else:
        files[name] = array_files.write(file, array)
    (folder / "manifest.json").write_text(snapshot.manifest_text(facts, files))


def put(at: int, value: int) -> Callable[[Array], Array]:
    def change(array: Array) -> Array:
        array.reshape(-1)[at] = value
        return array

    return change


def everywhere(value: int) -> Callable[[Array], Array]:
    return lambda array: np.full_like(array, value)


def ones(array: Array) -> Array:
    """Every bit set."""
    return np.full(array.nbytes, 255, np.uint8).view(array.dtype)


def bitmaps() -> Index:
    rng = np.random.default_rng(0)
    low = rng.integers(0, 1000, 3000)
    index = Index(Schema({"a": "int", "s": "string"}), tail=64)
    index.load(pa.table({"id": np.arange(3000), "a_low": low, "a_high": low + 50}))
    for i in range(20):
        index.subscribe(5000 + i, f"a > {i} AND s = 'x{i:02d}'")
    return index


def postings() -> Index:
    index = Index(Schema({"a": "int", "b": "int"}), tail=16)
    for i in range(60):  # no multiple of 64: otherwise a segment may have no unused bit in its last word
        index.subscribe(f"id{i}", f"a = {i} AND b < {i}", priority=i % 10)
    return index


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    found = {}
    for make in (bitmaps, postings):
        found[make.__name__] = tmp_path_factory.mktemp(make.__name__)
        make().save(found[make.__name__])
    return found


BITMAP = "matcher.segment0."
FORGERIES: list[tuple[str, str, Callable[[Array], Array | None]]] = [
    ("bitmaps", BITMAP + "rows", everywhere(255)),
    ("bitmaps", BITMAP + "rows", lambda array: array[:-1]),
    ("bitmaps", BITMAP + "directory", put(0, 2**31)),
    ("bitmaps", BITMAP + "directory", put(1, 2**31)),
    ("bitmaps", BITMAP + "entries", everywhere(0xFFFF)),
    ("bitmaps", BITMAP + "entries", lambda array: array[:-40]),
    ("bitmaps", BITMAP + "order", everywhere(7)),
    ("bitmaps", BITMAP + "numbers", everywhere(255)),
    ("bitmaps", BITMAP + "alive", ones),
    ("bitmaps", BITMAP + "level_ends", put(3, 600)),
    ("bitmaps", BITMAP + "level_ends", put(15, 0)),
    ("bitmaps", BITMAP + "tile_level", everywhere(10)),
    ("bitmaps", BITMAP + "bands", put(9, 10**6)),
    ("bitmaps", BITMAP + "shift", everywhere(3)),
    ("bitmaps", BITMAP + "starts", lambda array: array[::-1]),
    ("bitmaps", BITMAP + "narrowest", everywhere(0)),
    ("bitmaps", BITMAP + "population", everywhere(10**9)),
    ("bitmaps", BITMAP + "bare", ones),
    ("bitmaps", BITMAP + "lines", lambda array: array[:-1]),
    ("bitmaps", BITMAP + "sizes", put(0, 10**6)),
    ("bitmaps", BITMAP + "sizes", put(2, 0)),
    ("bitmaps", BITMAP + "summary", lambda array: array.astype(np.int64)),
    ("bitmaps", BITMAP + "more", lambda array: None),
    ("bitmaps", "matcher.where", put(5, 2**32 - 2)),
    ("bitmaps", "matcher.where", put(5, 10**6)),
    ("bitmaps", "matcher.segments", put(2, 1)),
    ("bitmaps", "matcher.segments", put(0, 2)),
    ("bitmaps", "matcher.tail.attribute", everywhere(9)),
    ("bitmaps", "matcher.tail.offsets", put(1, -5)),
    ("bitmaps", "matcher.tail.priority", everywhere(200)),
    ("bitmaps", "catalog.first", put(3, 10**12)),
    ("bitmaps", "catalog.count", put(3, 2**31 - 1)),
    ("bitmaps", "catalog.owner", put(3, 10**6)),
    ("bitmaps", "catalog.owner", put(3, 4)),
    ("bitmaps", "catalog.ids", lambda array: array[:-1]),
    ("bitmaps", "catalog.where_offsets", put(3, 10**12)),
    ("bitmaps", "catalog.where_data", everywhere(255)),
    ("bitmaps", "dictionary0.offsets", put(1, 10**12)),
    ("bitmaps", "dictionary0.labels", lambda array: array[::-1]),
    ("bitmaps", "dictionary0.data", lambda array: array[::-1]),
    ("postings", BITMAP + "slots", ones),
    ("postings", BITMAP + "slots", lambda array: array[:-1]),
    ("postings", BITMAP + "key_start", put(1, 10**6)),
    ("postings", BITMAP + "key_begin", everywhere(0)),
    ("postings", BITMAP + "key_begin", put(2, 10**9)),
    ("postings", BITMAP + "filter", ones),
    ("postings", BITMAP + "start", everywhere(10**9)),
    ("postings", BITMAP + "words", ones),
    ("postings", BITMAP + "words", lambda array: array[:3]),
    ("postings", BITMAP + "levels", everywhere(255)),
    ("postings", BITMAP + "alive", ones),
    ("postings", BITMAP + "code_shift", everywhere(64)),
    ("postings", BITMAP + "numbers", everywhere(0)),
    ("postings", "catalog.ids_offsets", put(2, -1)),
]


@pytest.mark.parametrize("verify", [True, False])
@pytest.mark.parametrize(("kind", "name", "change"), FORGERIES, ids=lambda one: one if isinstance(one, str) else "")
def test_a_forged_array_is_refused(
    saved: dict[str, Path], tmp_path: Path, kind: str, name: str, change: Any, verify: bool
) -> None:
    source = snapshot.folder_of(saved[kind], 1)
    folder = snapshot.folder_of(tmp_path, 1)
    folder.mkdir(parents=True)
    for file in source.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    (tmp_path / "CURRENT").write_text(snapshot.current_text(1))
    Index.open(tmp_path, verify=verify)
    forged(tmp_path, name, change)
    with pytest.raises(SnapshotError, match=r"the snapshot file .*\.npy is damaged: ") as caught:
        Index.open(tmp_path, verify=verify)
    assert str(folder) in str(caught.value)


def test_damage_in_the_middle_of_a_large_file_is_noticed(tmp_path: Path) -> None:
    n = 120_000
    index = Index(Schema(dict.fromkeys("abcd", "int")))
    low = np.arange(n)
    index.load(
        pa.table({"id": low} | {f"{name}_{end}": low + i for name in "abcd" for i, end in enumerate(("low", "high"))})
    )
    index.save(tmp_path)
    folder = snapshot.folder_of(tmp_path, 1)
    large = [file for file in folder.glob("*.npy") if file.stat().st_size > 2 * 2**20]
    assert large
    rng = np.random.default_rng(5)
    for file in large:
        whole = file.read_bytes()
        for at in rng.integers(0, len(whole), 8).tolist():
            broken = bytearray(whole)
            broken[at] ^= 1 << int(rng.integers(0, 8))
            file.write_bytes(bytes(broken))
            with pytest.raises(SnapshotError, match="checksum"):
                Index.open(tmp_path)
        file.write_bytes(whole)
    assert len(Index.open(tmp_path)) == n


def test_the_checksum_is_crc32c_however_it_is_computed() -> None:
    assert _kernels.crc32c(np.frombuffer(b"123456789", np.uint8)) == 0xE3069283  # the published check value
    data = np.random.default_rng(1).integers(0, 256, 300_001, dtype=np.uint8)
    whole = _kernels.crc32c(data)
    assert whole == _kernels.crc32c(data, portable=True)
    for cut in (0, 1, 7, 49_152, 150_000, 300_001):
        first, second = _kernels.crc32c(data[:cut]), _kernels.crc32c(data[cut:])
        assert _kernels.crc32c(data[cut:], first) == whole
        assert _kernels.join_crc32c(first, second, len(data) - cut) == whole


def test_what_is_written_is_what_the_manifest_says(tmp_path: Path) -> None:
    for array in (np.arange(1_500_000), np.zeros(0, np.uint8), np.array([True, False]), np.zeros((0, 3), np.int64)):
        facts = array_files.write(tmp_path / "x.npy", array)
        raw = np.fromfile(tmp_path / "x.npy", np.uint8)
        assert facts == {"bytes": len(raw), "crc32c": _kernels.crc32c(raw)}
        assert np.array_equal(np.load(tmp_path / "x.npy"), array)
        back = array_files.read(tmp_path, {"x": facts}, verify=True)["x"]
        assert np.array_equal(back, array)
        assert (back.dtype, back.shape) == (array.dtype, array.shape)


INTERRUPTED = """
import signal, threading, time
from hitbox.concurrency import pieces

done = []

def work():
    time.sleep(0.01)
    done.append(1)

threading.Timer(0.1, signal.raise_signal, [signal.SIGINT]).start()
try:
    pieces.run([work] * 10_000)
except KeyboardInterrupt:
    print("interrupted after", len(done))
"""


def test_an_interrupt_ends_the_work_between_two_pieces() -> None:
    """In a process of its own: in this one the test runner's own callbacks may swallow the interrupt."""
    done = subprocess.run([sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, timeout=200)
    assert done.stdout.startswith("interrupted after"), done.stderr
    assert int(done.stdout.split()[-1]) < 5_000


def test_a_damaged_pin_says_what_to_do(tmp_path: Path) -> None:
    bitmaps().save(tmp_path)
    snapshot.pin(tmp_path, "stream", 1, batch=4)
    assert snapshot.pinned(tmp_path, "stream") == {"version": 1, "batch": 4}
    file = tmp_path / "pins" / "stream.json"
    whole = file.read_bytes()
    for bit in range(8 * len(whole)):
        broken = bytearray(whole)
        broken[bit // 8] ^= 1 << bit % 8
        file.write_bytes(bytes(broken))
        with pytest.raises(SnapshotError, match=r"stream.json is damaged.*delete it"):
            snapshot.pinned(tmp_path, "stream")


@pytest.mark.parametrize(("number", "advice"), [(99, "upgrade hitbox"), (5, "build it again")])
def test_another_format_says_what_to_do(tmp_path: Path, number: int, advice: str) -> None:
    bitmaps().save(tmp_path)
    file = snapshot.folder_of(tmp_path, 1) / "manifest.json"
    facts = json.loads(file.read_text().partition("\n")[2])
    body = json.dumps(facts | {"format": number, "written_by": "hitbox 7.1"})
    file.write_text(json.dumps({"crc32": zlib.crc32(body.encode())}) + "\n" + body + "\n")
    with pytest.raises(SnapshotError, match=rf"format {number}, written by hitbox 7.1; this is hitbox .*{advice}"):
        Index.open(tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        {"id_type": "float"},
        {"matcher": "nothing"},
        {"parts": ["../../elsewhere"]},
        {"parts": [3]},
        {"schema": [{"name": "a"}]},
        {"schema": 4},
        {"schema": None},
        {"subscriptions": None},
        {"subscriptions": "9"},
        {"sequence": "zz"},
        {"changes": []},
        {"changes": {"last": "x", "faded": 0}},
        {"files": {"../x": {"bytes": 1, "crc32c": 1}}},
        {"files": {"x": {}}},
        {"files": 3},
    ],
    ids=str,
)
def test_a_forged_manifest_is_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    postings().save(tmp_path)
    facts = snapshot.facts_of(tmp_path)
    folder = snapshot.folder_of(tmp_path, facts.pop("version"))
    facts |= change
    files = facts.pop("files")
    (folder / "manifest.json").write_text(snapshot.manifest_text(facts, files))
    with pytest.raises(SnapshotError, match="is damaged"):
        Index.open(tmp_path)


@pytest.mark.parametrize("name", ["CURRENT", "manifest.json", "catalog.priority.npy"])
def test_a_pipe_instead_of_a_file_is_not_waited_for(tmp_path: Path, name: str) -> None:
    bitmaps().save(tmp_path)
    file = tmp_path / name if name == "CURRENT" else snapshot.folder_of(tmp_path, 1) / name
    file.unlink()
    os.mkfifo(file)
    with pytest.raises(SnapshotError, match="it is not a regular file"):
        Index.open(tmp_path)


def with_priority_file(path: Path, raw: bytes) -> None:
    """Put a file in the place of an array, with a manifest that agrees."""
    facts = snapshot.facts_of(path)
    folder = snapshot.folder_of(path, facts.pop("version"))
    files = facts.pop("files")
    (folder / "catalog.priority.npy").write_bytes(raw)
    files["catalog.priority"] = {"bytes": len(raw), "crc32c": _kernels.crc32c(np.frombuffer(raw, np.uint8))}
    (folder / "manifest.json").write_text(snapshot.manifest_text(facts, files))


def header_of(text: str) -> bytes:
    """A header of an .npy file, with the right length."""
    body = text.encode().ljust(117) + b"\n"
    return array_files.MAGIC + len(body).to_bytes(2, "little") + body


FIRST = "{'descr': '|u1', 'fortran_order': False, 'shape': "


@pytest.mark.parametrize(
    "head",
    [
        b"",
        b"\x93NUMPY",
        header_of("{'descr': "),
        header_of("[" * 3000),
        header_of("{[]: 1}"),
        header_of("{'descr': '|O', 'fortran_order': False, 'shape': (3020,), }"),
        header_of("{'descr': '>i8', 'fortran_order': False, 'shape': (3020,), }"),
        header_of("{'descr': '<f3', 'fortran_order': False, 'shape': (3020,), }"),
        header_of("{'descr': '|u1', 'fortran_order': True, 'shape': (3020,), }"),
        header_of("{'shape': (3020,), 'descr': '|u1', 'fortran_order': False, }"),
        header_of(FIRST + "(03020,), }"),
        header_of(FIRST + "(-3020,), }"),
        header_of(FIRST + "(3_020,), }"),
        header_of(FIRST + "(3020, ), }"),
        header_of(FIRST + "(3020), }"),
        header_of(FIRST + "(), }"),
        header_of(FIRST + "(3019,), }"),
        header_of(FIRST + "(30200000000000000000000,), }"),
        header_of(FIRST + "(0, 999999999999999999), }"),
        header_of(FIRST + "(999999999999999999, 999999999999999999), }"),
        header_of(FIRST + "(302, 5, 2), }"),
        header_of(FIRST + "(3020,), }\t"),
        header_of(FIRST + "(3020,), }").replace(b"\x01\x00", b"\x02\x00", 1),
        header_of(FIRST + "(3020,), }").replace(b"}", b"}\n"),
        header_of(FIRST + "(3020,), }" + 64 * " "),
    ],
)
@pytest.mark.parametrize("verify", [True, False])
def test_a_forged_header_is_refused(tmp_path: Path, head: bytes, verify: bool) -> None:
    bitmaps().save(tmp_path)
    whole = (snapshot.folder_of(tmp_path, 1) / "catalog.priority.npy").read_bytes()
    good, data = whole[:128], whole[128:]
    assert good == header_of(FIRST + "(3020,), }")
    with_priority_file(tmp_path, whole)
    assert len(Index.open(tmp_path, verify=verify)) == 3020
    with_priority_file(tmp_path, head + data)
    with pytest.raises(SnapshotError, match=r"catalog\.priority\.npy is damaged"):
        Index.open(tmp_path, verify=verify)


def test_headers_are_those_of_numpy() -> None:
    for dtype in array_files.DTYPES.values():
        for shape in ((0,), (7,), (10**18 - 1,), (3, 0), (12, 345)):
            head = array_files.header(dtype, shape)
            magic = io.BytesIO(head)
            assert npy.read_magic(magic) == (1, 0)
            assert npy.read_array_header_1_0(magic) == (shape, False, dtype)
            assert magic.tell() == len(head)
            assert len(head) % array_files.ALIGNMENT == 0
            assert len(head) <= array_files.LONGEST_HEADER


def test_threads_open_while_others_save(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No thread uses the parser of Python: it fails at times while other threads do (`AST constructor recursion depth
    mismatch`, CPython 3.11)."""

    def parse(*_: object) -> None:
        raise AssertionError("a header was read as Python")

    monkeypatch.setattr("ast.literal_eval", parse)
    index = postings()
    index.save(tmp_path / "0")
    wrong: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for turn in range(10):
                if number % 2:
                    index.save(tmp_path / str(number))
                assert len(Index.open(tmp_path / "0", verify=bool(turn % 2))) == 60
        except BaseException as problem:
            wrong.append(problem)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.parametrize("grid", [(["0", "1e999999999"], "1"), (["0", "1"], "1e-999999999"), (["0", "9" * 500], "1")])
def test_a_number_of_endless_digits_takes_no_time(grid: tuple[list[str], str]) -> None:
    with pytest.raises(SchemaError):
        Schema({"a": {"type": "float", "domain": grid[0], "precision": grid[1]}})
