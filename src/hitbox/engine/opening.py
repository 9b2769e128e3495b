"""The arrays of an engine that come from outside, such as memory-mapped files: segments, and the checks of all that
kernels use as an index (src/engine/format/validate.hpp)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hitbox.concurrency import pieces
from hitbox.encoding import array_checks
from hitbox.encoding.arrays import I64
from hitbox.engine._kernels import BLOCK
from hitbox.engine.content import KINDS, TAIL
from hitbox.engine.segment import NOWHERE, PER_ATTRIBUTE, U32, Segment
from hitbox.errors import DamagedArray

CHECKED = 128 * BLOCK
"""Positions checked per task."""


def open_segments(arrays: Mapping[str, NDArray[Any]], attributes: int) -> list[Segment]:
    """The segments; their arrays are not copied."""
    segments: list[Segment] = []
    for i, (kind, base, live) in enumerate(_table(arrays)):
        prefix = f"segment{i}."
        parts = {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}
        with _naming(prefix):
            segments.append(Segment(KINDS[kind], base, live, parts))
        few = segments[-1].attributes <= attributes
        array_checks.require(few, f"{prefix}{PER_ATTRIBUTE[KINDS[kind]][0]}", "it has too many attributes")
    return segments


def _table(arrays: Mapping[str, NDArray[Any]]) -> list[list[int]]:
    """(kind, base, living boxes) of each segment."""
    array_checks.require("segments" in arrays, "segments", "it is missing")
    table = arrays["segments"]
    good = table.dtype == np.int64 and table.ndim == 2 and table.shape[1] == 3
    array_checks.require(good, "segments", "it is no table of three columns")
    array_checks.bounds(table[:, 0], "segments", 0, len(KINDS) - 1)
    array_checks.bounds(table[:, 1], "segments", 0, TAIL)
    array_checks.bounds(table[:, 2], "segments", 1, TAIL)
    rows: list[list[int]] = table.tolist()
    return rows


def check_opened(segments: list[Segment], where: U32, tail: I64) -> None:
    """Whether segments hold what kernels can use, and `where` says of every living box where it is."""
    end = 0
    for segment in sorted(segments, key=lambda segment: segment.base):
        array_checks.require(end <= segment.base, "segments", "two segments have the same locations")
        end = segment.end
    array_checks.require(end <= TAIL, "segments", "there are too many locations")
    tasks, whose = [], []
    for i, segment in enumerate(segments):
        with _naming(f"segment{i}."):
            segment.kernel.check()
        for start in range(0, segment.size, CHECKED):
            tasks.append(partial(_check_boxes, segment, i, start, where))
            whose.append(i)
    living = np.bincount(whose, pieces.run(tasks), len(segments)) if tasks else np.zeros(0)
    for i, segment in enumerate(segments):
        array_checks.require(segment.live == living[i], "segments", f"segment {i} has {living[i]:.0f} living boxes")
    array_checks.bounds(tail, "tail.numbers", 0, len(where) - 1)
    there = np.arange(TAIL, TAIL + len(tail), dtype=np.uint32)
    array_checks.require((where[tail] == there).all(), "where", "a box of the tail is elsewhere")
    located = int(np.count_nonzero(where != NOWHERE))
    array_checks.require(located == living.sum() + len(tail), "where", "it has boxes that are nowhere")


def _check_boxes(segment: Segment, number: int, start: int, where: U32) -> int:
    with _naming(f"segment{number}."):
        return segment.kernel.check_boxes(start, start + CHECKED, where, segment.base)


@contextmanager
def _naming(prefix: str) -> Iterator[None]:
    """Turn an error of the native checks into one that names the array."""
    try:
        yield
    except ValueError as problem:
        name, _, reason = str(problem).partition(": ")
        raise DamagedArray(prefix + name, reason) from None
