"""A sealed segment as Python sees it: named flat arrays, which may be read-only maps of files, and its living boxes.

Deleting clears a bit of `alive`, the only array that ever changes; a read-only one is copied at the first delete.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hitbox.encoding.arrays import I64, LEVELS, Boxes
from hitbox.engine import _kernels

DEAD_SHARE, MIN_DEAD = 0.2, 256
"""Share of deleted boxes from which a segment is rebuilt, and how many there must be."""

NOWHERE = (1 << 32) - 1
"""The location of a box that is not there."""

COMPACT_SIZE = 7
"""Where the sizes of a bitmap segment say that it is compact; others are shorter."""

PER_ATTRIBUTE = {"bitmap": ("narrowest", 0), "dense": ("list_at", 0), "postings": ("key_begin", 1)}
"""By kind: an array with a value per attribute, and how many more it has."""

U32 = NDArray[np.uint32]
Arrays = dict[str, NDArray[Any]]


@dataclass(slots=True, eq=False)
class Segment:
    kind: str
    base: int
    """Location of its position 0 in the engine's one line of locations."""
    live: int
    arrays: Arrays
    kernel: _kernels.Segment = field(init=False)
    size: int = field(init=False)
    """Positions; some may hold no box."""
    attributes: int = field(init=False)
    """How many attributes there were when it was built: its boxes constrain no other ones."""
    members: int = field(init=False)
    """How many boxes it was built from."""
    _enough: float = field(init=False)

    def __post_init__(self) -> None:
        self.attributes = _attributes(self.kind, self.arrays)
        self.kernel = _kernels.Segment(self.kind, self.attributes, dict(self.arrays))
        self.size = len(self.kernel)
        self.members = int(self.arrays["sizes"][2]) if self.kind == "bitmap" else self.size
        self._enough = self.members - max(DEAD_SHARE * self.members, MIN_DEAD)

    @property
    def hollow(self) -> bool:
        """Whether so many of its boxes are gone that it should be built again."""
        return self.live < self._enough

    def band(self, level: int) -> int | None:
        """The least urgent level that shares blocks with this one, in a bitmap segment; None where a more urgent one
        does, or where there are no such boxes."""
        bands = self.arrays["bands"].reshape(LEVELS, 2)
        first, last = bands[level]
        sharing = np.flatnonzero((bands[:, 0] == first) & (bands[:, 1] == last))
        return int(sharing[0]) if first < last and level == sharing[-1] else None

    @property
    def compact(self) -> bool:
        """Whether it is a bitmap segment in the smaller form (src/engine/format/bitmap.hpp)."""
        return self.kind == "bitmap" and bool(self.arrays["sizes"][COMPACT_SIZE:].any())

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in self.arrays.values())

    @property
    def end(self) -> int:
        return self.base + self.size

    def writable_alive(self) -> NDArray[np.uint64]:
        """`alive`, or a copy where it is read-only, for `delete`."""
        alive = self.arrays["alive"]
        return alive if alive.flags.writeable else alive.copy()

    def delete(self, positions: U32, alive: NDArray[np.uint64]) -> None:
        """Clears the bits of some living boxes in `alive`, which `writable_alive` gave."""
        self._set_alive(alive)
        _kernels.clear_bits(alive, positions)
        self.live -= len(positions)

    def delete_one(self, position: int, alive: NDArray[np.uint64]) -> None:
        self._set_alive(alive)
        _kernels.clear_bit(alive, position)
        self.live -= 1

    def _set_alive(self, alive: NDArray[np.uint64]) -> None:
        if alive is not self.arrays["alive"]:
            self.kernel.set_alive(alive)
            self.arrays["alive"] = alive

    def boxes(self, positions: U32) -> Boxes:
        return Boxes(*self.kernel.decode(positions))

    def numbers(self, positions: U32) -> I64:
        return self.kernel.numbers(positions)


def _attributes(kind: str, arrays: Arrays) -> int:
    """The number of attributes, which is the length of one of the arrays; a ValueError says what is wrong with it."""
    name, more = PER_ATTRIBUTE[kind]
    length = len(arrays[name]) if name in arrays and arrays[name].ndim == 1 else 0
    if not more < length <= _kernels.MAX_ATTRIBUTES + more:
        raise ValueError(f"{name}: {'it is out of range' if name in arrays else 'it is missing'}")
    return length - more
