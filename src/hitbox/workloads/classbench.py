"""Packet-classification rules in ClassBench format, from a file: boxes that hitbox did not generate.

    @source/prefix  destination/prefix  low : high (source port)  low : high (destination port)  protocol/mask  ...

A rule is a box over five attributes; a field that allows everything is no constraint. The first rule is the most
urgent, so the tenths of the file become the priorities 9 down to 0. An event is a packet inside some rule.
"""

from __future__ import annotations

import gzip
import os
import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from hitbox.encoding.arrays import I64, LEVELS, Boxes, Points, Space
from hitbox.errors import WorkloadError
from hitbox.workloads.base import EVENT_ATTRIBUTES, EVENTS, Workload
from hitbox.workloads.draws import units

FIELDS = ("source", "destination", "source_port", "destination_port", "protocol")
TOP = np.array([2**32 - 1, 2**32 - 1, 2**16 - 1, 2**16 - 1, 2**8 - 1], np.int64)
_ADDRESS = r"(\d+)\.(\d+)\.(\d+)\.(\d+)/(\d+)"
_PORTS = r"(\d+)\s*:\s*(\d+)"
_HEX = r"0x([0-9a-fA-F]+)"
_RULE = re.compile(rf"@{_ADDRESS}\s+{_ADDRESS}\s+{_PORTS}\s+{_PORTS}\s+{_HEX}/{_HEX}")


@dataclass(frozen=True, kw_only=True)
class ClassBench(Workload):
    """Rules from a ClassBench file.

    Attributes
    ----------
    path: the file, plain or gzipped, as given or below the directory in the environment variable HITBOX_DATA
    n: rules to take from the file's start (0: all); the file repeats where rows beyond its end are asked for
    """

    n: int = 0
    path: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        low, _ = _rules(self.path, os.environ.get("HITBOX_DATA", ""))
        self.require(self.n <= len(low), "n", f"exceeds the {len(low)} rules of {self.path}")
        object.__setattr__(self, "n", self.n or len(low))

    @property
    def attributes(self) -> tuple[str, ...]:
        return FIELDS

    @property
    def space(self) -> Space:
        return Space(np.zeros(len(TOP), np.int64), TOP.copy())

    def _dense(self) -> tuple[I64, I64]:
        return _rules(self.path, os.environ.get("HITBOX_DATA", ""))

    def _boxes(self, rows: I64) -> Boxes:
        low, high = self._dense()
        number = rows % len(low)
        used = (low[number] > 0) | (high[number] < TOP)
        offsets = np.zeros(len(rows) + 1, np.int64)
        np.cumsum(used.sum(axis=1), out=offsets[1:])
        attribute = np.nonzero(used)[1].astype(np.int32)
        priority = (LEVELS - 1 - number * LEVELS // len(low)).astype(np.uint8)
        return Boxes(offsets, attribute, low[number][used], high[number][used], priority)

    def _points(self, rows: I64) -> Points:
        low, high = self._dense()
        rule = (units(self.seed, EVENT_ATTRIBUTES, rows, 1)[:, 0] * self.n).astype(np.int64)
        inside = units(self.seed, EVENTS, rows, len(TOP)) * (high[rule] - low[rule] + 1)
        return Points.of(low[rule] + inside.astype(np.int64))


def read(path: Path) -> tuple[I64, I64]:
    """(rules, 5) arrays of low and high."""
    low, high = [], []
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            rule = _RULE.match(line)
            if rule is None:
                raise WorkloadError(f"{path.name}, line {number}: not a ClassBench rule: {line.strip()[:80]!r}")
            bounds = _bounds(rule.groups())
            if any(lo > hi or hi > top for (lo, hi), top in zip(bounds, TOP.tolist(), strict=True)):
                raise WorkloadError(f"{path.name}, line {number}: a field is out of range: {line.strip()[:80]!r}")
            low.append([lo for lo, _ in bounds])
            high.append([hi for _, hi in bounds])
    if not low:
        raise WorkloadError(f"{path.name} contains no rule")
    return np.array(low, np.int64), np.array(high, np.int64)


def _bounds(groups: tuple[str, ...]) -> list[tuple[int, int]]:
    ports = [int(text) for text in groups[10:14]]
    protocol, mask = int(groups[14], 16), int(groups[15], 16)
    return [
        _prefix(groups[0:5]),
        _prefix(groups[5:10]),
        (ports[0], ports[1]),
        (ports[2], ports[3]),
        (protocol, protocol) if mask else (0, 255),
    ]


def _prefix(parts: tuple[str, ...]) -> tuple[int, int]:
    a, b, c, d, length = (int(part) for part in parts)
    if max(a, b, c, d) > 255 or length > 32:
        return (1, 0)  # the caller reports an empty interval with its line
    free = (1 << (32 - length)) - 1
    address = (a << 24 | b << 16 | c << 8 | d) & ~free
    return address, address | free


@lru_cache(maxsize=4)
def _rules(path: str, directory: str) -> tuple[I64, I64]:
    places = [Path(path), Path(directory, path)] if path else []
    for place in places:
        if place.is_file():
            return read(place)
    raise WorkloadError(
        f"workload 'classbench' reads a rule file, but there is none at path={path!r}; "
        "give path=..., or set HITBOX_DATA to the directory that holds it"
    )
