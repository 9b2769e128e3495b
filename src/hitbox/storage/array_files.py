"""Arrays as .npy files with a checksum (CRC-32C): written, memory-mapped or copied into memory, verified.

Checksums are computed from what is in memory while a file is written, and from the map that will be used when it is
opened: in pieces and on all cores.
"""

from __future__ import annotations

import contextlib
import errno
import math
import mmap
import os
import re
import stat
import sys
from collections.abc import Callable, Mapping
from functools import partial
from io import BufferedReader
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hitbox.concurrency import pieces
from hitbox.errors import SnapshotError

PIECE_BYTES = 16 * 2**20
SMALL_FILE_BYTES = 2**20
"""Files up to this size are verified without a thread of their own."""
WRITE_BYTES = 4 * 2**20
"""Bytes written at a time: few enough to be still in the cache when their checksum is computed."""
ALIGNMENT = 64
MAGIC = b"\x93NUMPY\x01\x00"
HEADER = re.compile(
    rb"\{'descr': '(...)', 'fortran_order': False, 'shape': \(([0-9]{1,18}),(?: ([0-9]{1,18}))?\), \} *\n"
)
LONGEST_HEADER = 256
DTYPES = {dtype.str.encode(): dtype for dtype in map(np.dtype, "?bBhHiIqQfd")}
"""What arrays in files are made of: plain numbers."""
NOT_DAMAGED = {errno.ENOMEM, errno.EACCES, errno.EPERM, errno.EMFILE, errno.ENFILE}
"""Reasons not to be able to read a file that may be intact."""
POPULATE_READ = 22  # madvise: map all cached pages at once instead of one by one (Linux 5.14)


def write(file: Path, array: NDArray[Any]) -> dict[str, Any]:
    """Write a file and sync it; returns its entry in the manifest."""
    from hitbox.engine import _kernels

    array = np.ascontiguousarray(array)
    head = header(array.dtype, array.shape)
    data = array.reshape(-1).view(np.uint8)
    checksum = _kernels.crc32c(np.frombuffer(head, np.uint8))
    with open(file, "wb") as out:
        out.write(head)
        for start in range(0, len(data), WRITE_BYTES):
            piece = data[start : start + WRITE_BYTES]
            out.write(piece.data)
            checksum = _kernels.crc32c(piece, checksum)
        out.flush()
        os.fsync(out.fileno())
    return {"bytes": len(head) + len(data), "crc32c": checksum}


def header(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    """The start of an .npy file, version 1.0; the data after it is aligned."""
    text = f"{{'descr': {dtype.str!r}, 'fortran_order': False, 'shape': {shape!r}, }}".encode()
    padded = text.ljust(-(-(len(MAGIC) + 3 + len(text)) // ALIGNMENT) * ALIGNMENT - len(MAGIC) - 3) + b"\n"
    return MAGIC + len(padded).to_bytes(2, "little") + padded


def read(
    folder: Path, files: Mapping[str, Mapping[str, Any]], verify: bool, mapped: bool = True
) -> dict[str, NDArray[Any]]:
    """The arrays that `files` lists, read-only: maps, or copies in memory; their sizes are checked, and every byte if
    asked."""
    maps = {name: _memory(folder / f"{name}.npy", facts, mapped) for name, facts in files.items()}
    if verify:
        _verify(folder, maps, files)
    arrays = {}
    for name, memory in maps.items():
        try:
            arrays[name] = _array(memory)
        except ValueError as problem:
            raise damaged(folder / f"{name}.npy", str(problem)) from None
    return arrays


def open_file(file: Path) -> BufferedReader:
    """A plain file, open for reading; anything else is an OSError. Opening a pipe does not wait for its writer."""
    opened = open(os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb")  # noqa: SIM115
    if stat.S_ISREG(os.fstat(opened.fileno()).st_mode):
        return opened
    opened.close()
    raise OSError(errno.EINVAL, "it is not a regular file")


def read_small(file: Path) -> bytes:
    """What a small file holds."""
    with open_file(file) as opened:
        return opened.read()


def damaged(file: Path, reason: str) -> SnapshotError:
    return SnapshotError(f"the snapshot file {file} is damaged: {reason}")


def _memory(file: Path, facts: Mapping[str, Any], mapped: bool) -> mmap.mmap:
    try:
        with open_file(file) as opened:
            size = os.fstat(opened.fileno()).st_size
            if size != facts["bytes"]:
                raise damaged(file, f"{size} bytes instead of the {facts['bytes']} that were written")
            if mapped:
                return mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
            memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            if opened.readinto(memory) != size:
                raise damaged(file, "it became shorter while it was read")
            return memory
    except (OSError, ValueError) as problem:
        if isinstance(problem, OSError) and problem.errno in NOT_DAMAGED:
            raise SnapshotError(f"cannot read the snapshot file {file}: {problem.strerror}") from None
        raise damaged(file, getattr(problem, "strerror", None) or str(problem)) from None


def _array(memory: mmap.mmap) -> NDArray[Any]:
    """The array that a file holds; its header must be the one that `header` writes, to the byte. NumPy's reader
    parses headers as Python source, which fails at times while other threads do the same (CPython 3.11)."""
    head = memory[:LONGEST_HEADER]
    parsed = HEADER.match(head, len(MAGIC) + 2)
    if parsed is None or parsed[1] not in DTYPES:
        raise ValueError("it holds an array that hitbox does not write")
    dtype, shape = DTYPES[parsed[1]], tuple(int(size) for size in parsed.groups()[1:] if size)
    start = parsed.end()
    if head[:start] != header(dtype, shape):
        raise ValueError("its header is not as hitbox writes it")
    if start + math.prod(shape) * dtype.itemsize != len(memory):
        raise ValueError("its header does not fit its length")
    array: NDArray[Any] = np.frombuffer(memory, np.uint8)[start:].view(dtype).reshape(shape)
    array.setflags(write=False)
    return array


def _verify(folder: Path, maps: Mapping[str, mmap.mmap], files: Mapping[str, Mapping[str, Any]]) -> None:
    from hitbox.engine import _kernels

    tasks: list[Callable[[], int]] = []
    sizes: list[tuple[str, int]] = []
    checksums = {}
    for name, memory in maps.items():
        if len(memory) < SMALL_FILE_BYTES:
            checksums[name] = _kernels.crc32c(np.frombuffer(memory, np.uint8))
            continue
        for start in range(0, len(memory), PIECE_BYTES):
            tasks.append(partial(_checksum, memory, start))
            sizes.append((name, min(PIECE_BYTES, len(memory) - start)))
    for (name, size), checksum in zip(sizes, pieces.run(tasks), strict=True):
        checksums[name] = _kernels.join_crc32c(checksums.get(name, 0), checksum, size)
    for name, checksum in checksums.items():
        if checksum != files[name]["crc32c"]:
            raise damaged(folder / f"{name}.npy", "its checksum is wrong")


def _checksum(memory: mmap.mmap, start: int) -> int:
    from hitbox.engine import _kernels

    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            memory.madvise(POPULATE_READ, start, min(PIECE_BYTES, len(memory) - start))
    return _kernels.crc32c(np.frombuffer(memory, np.uint8)[start : start + PIECE_BYTES])
