from typing import Any

import numpy as np
from numpy.typing import NDArray

from hitbox.boxes import I32, I64, U8

U32 = NDArray[np.uint32]
Arrays = dict[str, NDArray[Any]]
Rows = tuple[I64, I32, I64, I64, U8]

MAX_ATTRIBUTES: int
BLOCK: int

class Segment:
    def __init__(self, kind: str, attributes: int, arrays: Arrays) -> None: ...
    def set_alive(self, alive: NDArray[np.uint64]) -> None: ...
    def decode(self, positions: U32) -> Rows: ...

class Tail:
    def __init__(self) -> None: ...
    def append(self, numbers: I64, offsets: I64, attribute: I32, low: I64, high: I64, priority: U8) -> None: ...
    def remove(self, positions: U32) -> None: ...
    def decode(self, positions: U32) -> Rows: ...
    def living(self) -> U32: ...
    def numbers(self, positions: U32) -> I64: ...
    def clear(self) -> None: ...
    @property
    def live(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    def __len__(self) -> int: ...

def build(
    attributes: int,
    numbers: I64,
    offsets: I64,
    attribute: I32,
    low: I64,
    high: I64,
    priority: U8,
    block: int,
    lines: int,
    band: int,
    kind: str,
) -> list[tuple[str, Arrays, I64, U32]]: ...
def match(
    segments: list[Segment],
    tail: Tail,
    low: I64,
    high: I64,
    simd: str,
    threads: int,
    top: int,
    bottom: int,
    limit: int,
) -> tuple[I64, I32, U8]: ...
def clear_bits(bits: NDArray[np.uint64], positions: U32) -> None: ...
def simd_levels() -> list[str]: ...
