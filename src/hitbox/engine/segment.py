"""A sealed segment as Python sees it: named flat arrays, which may be read-only maps of files, and its living boxes.

Deleting clears a bit of `alive`, the only array that ever changes; a read-only one is copied at the first delete.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hitbox.boxes import I64, LEVELS, Boxes
from hitbox.engine import _kernels

U32 = NDArray[np.uint32]
Arrays = dict[str, NDArray[Any]]


@dataclass(slots=True)
class Segment:
    kind: str
    attributes: int
    base: int
    """Location of its position 0 in the engine's one line of locations."""
    live: int
    arrays: Arrays
    kernel: _kernels.Segment = field(init=False)

    def __post_init__(self) -> None:
        self.kernel = _kernels.Segment(self.kind, self.attributes, dict(self.arrays))

    @property
    def size(self) -> int:
        return len(self.arrays["numbers"])

    @property
    def members(self) -> int:
        """How many boxes it was built from."""
        return int(self.arrays["sizes"][2]) if self.kind == "bitmap" else self.size

    def holds(self, level: int) -> bool:
        """Whether blocks of this priority exist, in a bitmap segment."""
        ends = self.arrays["level_end"]
        before = ends[LEVELS - 2 - level] if level < LEVELS - 1 else 0
        return bool(ends[LEVELS - 1 - level] > before)

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in self.arrays.values())

    def living(self) -> U32:
        bits = np.unpackbits(self.arrays["alive"].view(np.uint8), bitorder="little")
        return np.flatnonzero(bits).astype(np.uint32)

    def delete(self, positions: U32) -> None:
        alive = self.arrays["alive"]
        if not alive.flags.writeable:
            alive = self.arrays["alive"] = alive.copy()
            self.kernel.set_alive(alive)
        _kernels.clear_bits(alive, positions)
        self.live -= len(positions)

    def boxes(self, positions: U32) -> Boxes:
        return Boxes(*self.kernel.decode(positions))

    def numbers(self, positions: U32) -> I64:
        found: I64 = self.arrays["numbers"][positions].astype(np.int64)
        return found
