from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from hitbox.encoding.arrays import I32, I64, U8

U32 = NDArray[np.uint32]
Arrays = dict[str, NDArray[Any]]
Rows = tuple[I64, I32, I64, I64, U8]

MAX_ATTRIBUTES: int
BLOCK: int

class Segment:
    def __init__(self, kind: str, attributes: int, arrays: Arrays) -> None: ...
    def set_alive(self, alive: NDArray[np.uint64]) -> None: ...
    def check(self) -> None: ...
    def check_boxes(self, first: int, end: int, where: U32, base: int) -> int: ...
    def decode(self, positions: U32) -> Rows: ...
    def numbers(self, positions: U32) -> I64: ...
    def __len__(self) -> int: ...

class Tail:
    def __init__(self) -> None: ...
    def with_room(self, boxes: int, constraints: int) -> Tail: ...
    def stage(
        self,
        where: U32,
        freed: I64,
        numbers: I64,
        offsets: I64,
        attribute: I32,
        low: I64,
        high: I64,
        priority: U8,
        attributes: int,
    ) -> bool: ...
    def publish(self, where: U32) -> None: ...
    def remove(self, positions: U32) -> None: ...
    def remove_one(self, position: int) -> None: ...
    def decode(self, positions: U32) -> Rows: ...
    def living(self) -> U32: ...
    def numbers(self, positions: U32) -> I64: ...
    @property
    def live(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    def __len__(self) -> int: ...

def build(
    numbers: I64 | None,
    offsets: I64,
    attribute: I32,
    low: I64,
    high: I64,
    priority: U8,
    attributes: int,
    block: int,
    lines: int,
    band: int,
    kind: str,
    compact: bool,
    bitmap_share: float,
    first_seed: int,
    second_seed: int,
) -> list[tuple[str, Arrays, I64, U32]]: ...
def merge(
    segments: list[Segment],
    alive: list[NDArray[np.uint64]],
    attributes: int,
    block: int,
    lines: int,
    band: int,
    kind: str,
    compact: bool,
    bitmap_share: float,
    first_seed: int,
    second_seed: int,
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
def count(segments: list[Segment], tail: Tail, low: I64, high: I64, simd: str, threads: int) -> I64: ...

class EventPlan:
    def __init__(
        self,
        columns: list[tuple[Any, ...]],
        numbers: dict[str, Any],
        free: list[int],
        other_value: Callable[[int, Any, int], tuple[int, int]],
        other_event: Callable[[Any, int], dict[int, tuple[int, int]]],
        derived: Callable[[Any, int], dict[int, tuple[int, int]]] | None,
        epoch: datetime,
        plain_epoch: datetime,
        ignores: bool = False,
    ) -> None: ...
    def encode(self, events: list[Any], row: int) -> tuple[I64, I64]: ...

class Ids:
    @overload
    def __init__(self, numbers: I64, late: list[Any]) -> None: ...
    @overload
    def __init__(self, offsets: I64, data: U8, late: list[Any]) -> None: ...
    def list(self, slots: I32) -> list[Any]: ...
    def columns(self, slots: I32, events: I64 | None = None) -> tuple[I64, U8 | None]: ...
    def rank(self, id: int | str, order: I64 | None) -> int: ...
    @property
    def nbytes(self) -> int: ...

class Programs:
    def __init__(self, place: I64, words: I64, code: U32, shapes: I64) -> None: ...
    def check(self, attributes: int) -> None: ...
    def decide(
        self,
        slots: I32,
        keys: I64,
        lists: dict[int, I64 | None],
        texts: dict[int, bytes | None],
        now: int,
        allowed: I64,
        accounts: I32,
        left: I64,
    ) -> tuple[U8, I64]: ...
    def ends(self, slots: I64, attribute: int) -> I64: ...

class Owners:
    def __init__(
        self, owner: I64, exact: U8, count: I32, plain: bool, direct: bool, programs: Programs | None
    ) -> None: ...
    def slots(self, numbers: I32) -> I32: ...
    def settle(
        self, offsets: I64, numbers: I32, sure: U8 | None, low: I64, high: I64, free: Sequence[int], later: bool = False
    ) -> tuple[I64, I32, I64]: ...
    def look(
        self,
        offsets: I64,
        slots: I32,
        doubtful: I64,
        low: I64,
        high: I64,
        documents: DocumentBatch,
        row: int,
        each: int,
        together: int,
        in_all: int,
        now: int,
    ) -> tuple[I64, I32, I64, int]: ...

class DocumentPlan:
    def __init__(
        self,
        columns: list[tuple[Any, ...]],
        free: list[int],
        points: list[tuple[Any, ...]],
        details: list[tuple[Any, ...]],
        sets: list[tuple[Any, ...]],
        others: list[list[str]],
        declared: list[tuple[Any, ...]] | None,
        fold: Callable[[str, bool], str],
        allows: Callable[[str, str], bool] | None,
        epoch: datetime,
        plain_epoch: datetime,
    ) -> None: ...

class DocumentBatch:
    @overload
    def __init__(self, plan: DocumentPlan, events: list[Any], as_json: bool) -> None: ...
    @overload
    def __init__(self, plan: DocumentPlan, data: U8, offsets: I64) -> None: ...
    @property
    def low(self) -> I64: ...
    @property
    def left(self) -> I64: ...
    def __len__(self) -> int: ...

class EventMatcher:
    def __init__(
        self,
        segments: list[Segment],
        tail: Tail,
        simd: str,
        owners: Owners,
        ids: Ids,
        anchors: list[AnchorSegment],
        plan: EventPlan,
        documents: DocumentPlan | None,
    ) -> None: ...
    def mapping(
        self,
        event: Any,
        limit: int,
        as_list: bool,
        holds: Callable[[Any, list[int], bool, int, Any], list[bool]],
        sets: list[tuple[bytes, list[Any]]] | None = None,
        budget: Any = None,
    ) -> Any: ...
    def document(
        self,
        event: Any,
        as_json: bool,
        limit: int,
        as_list: bool,
        holds: Callable[[Any, list[int], bool, int, Any], list[bool]],
        each: int,
        together: int = -1,
        budget: Any = None,
        spent: I64 | None = None,
    ) -> Any: ...

class AnchorSegment:
    def __init__(
        self,
        numbers: I64,
        offsets: I64,
        attribute: I32,
        low: I64,
        high: I64,
        priority: U8,
        anchor_offsets: I64,
        anchors: U8,
        older: list[AnchorSegment],
        gone: I64,
        first_seed: int,
        second_seed: int,
    ) -> None: ...
    def rows(self, numbers: I64) -> U32: ...
    def living(self) -> U32: ...
    def decode(self, rows: U32) -> tuple[I64, I64, I32, I64, I64, U8, I64, U8]: ...
    def kill(self, rows: U32) -> None: ...
    def sets(self) -> list[bytes]: ...
    @property
    def live(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    def __len__(self) -> int: ...

@overload
def find_anchored(
    segments: list[AnchorSegment],
    documents: DocumentBatch,
    row: int,
    others: dict[int, list[tuple[bytes, list[Any]]]],
    low: I64,
    high: I64,
    points: I64,
    threads: int,
) -> tuple[I64, I32] | list[int]: ...
@overload
def find_anchored(
    segments: list[AnchorSegment],
    sets: list[tuple[bytes, list[Any]]],
    low: I64,
    high: I64,
    points: I64,
    threads: int,
) -> tuple[I64, I32]: ...
def clear_bits(bits: NDArray[np.uint64], positions: U32) -> None: ...
def clear_bit(bits: NDArray[np.uint64], position: int) -> None: ...
def crc32c(data: U8, before: int = 0, portable: bool = False) -> int: ...
def join_crc32c(first: int, second: int, second_size: int) -> int: ...
def start_in_background(work: Callable[[], None]) -> None: ...
def work_in_background() -> None: ...
def end_background_work() -> None: ...
def simd_levels() -> list[str]: ...

class Lock:
    def __init__(self) -> None: ...

class Read:
    def __init__(self, lock: Lock) -> None: ...
    def __enter__(self) -> None: ...
    def __exit__(self, kind: object, error: object, trace: object) -> None: ...

class Prepare:
    def __init__(self, lock: Lock) -> None: ...
    def __enter__(self) -> None: ...
    def __exit__(self, kind: object, error: object, trace: object) -> None: ...

class Commit:
    def __init__(self, lock: Lock) -> None: ...
    def __enter__(self) -> None: ...
    def __exit__(self, kind: object, error: object, trace: object) -> None: ...

class Piece:
    def __init__(self) -> None: ...
    def read(self) -> U8: ...
    def uses(self) -> I64: ...
    def __len__(self) -> int: ...

class ReadText:
    @property
    def strings(self) -> dict[int, list[str]] | None: ...
    def attributes(self) -> list[int]: ...

Question = tuple[int, bytes, list[int], list[bool]] | tuple[int, bytes]

class Reader:
    def __init__(
        self,
        attributes: list[tuple[int, bool, int, int, int, int]],
        text: int,
        depth: int,
        values: int,
        first_seed: int,
        second_seed: int,
    ) -> None: ...
    def read(self, offsets: I64, data: U8, wanted: U8, first: int, end: int, piece: Piece) -> int: ...
    def question(self) -> Question | None: ...
    def read_text(self, text: str) -> ReadText | Question | None: ...
    def make_one(
        self,
        read: ReadText,
        labels: dict[int, list[int]] | None,
        numbers: I32,
        most: int,
        few: int,
        about: list[tuple[int, int, int]],
        priority: int,
    ) -> tuple[bool, I64, I32, I64, I64, U8, tuple[bytes, bytes] | None] | None: ...
    def define(self, shape: int, attribute: int, any: bool, tests: list[int]) -> None: ...
    def define_constant(self, shape: int, always: bool) -> None: ...
    def define_pattern(
        self, shape: int, pattern: bytes, low: str | None, above: str | None, plain: bool, attribute: int
    ) -> None: ...
    def add_attribute(self, attribute: tuple[int, bool, int, int, int, int]) -> int: ...
    def refuse_pattern(self, shape: int, pattern: bytes) -> None: ...
    def strings(self, attribute: int) -> tuple[I64, U8]: ...
    def make(
        self,
        piece: Piece,
        keys: list[I64 | None],
        numbers: I32,
        most: I64,
        few: int,
        told: I32,
        low: I64,
        high: I64,
    ) -> tuple[I64, U8, I64, I32, I64, I64, tuple[I64, I64, U32, I64, I64]]: ...
