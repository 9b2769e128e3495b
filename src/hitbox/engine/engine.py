"""The engine: sealed segments, a short tail of new boxes, and tombstones.

    insert ->  tail (unindexed rows, scanned linearly) -> sealed when it is full -> merged by `prepare`
    delete ->  one bit in a segment's `alive`

    where[number] -> location     segment: base + position; tail: TAIL + position; NOWHERE where not in use

A segment is bitmap blocks (ranges), a dense segment (ranges so wide that many boxes match an event) or keyed postings
(equalities); the native builder chooses by the data.
Everything is flat arrays, so a snapshot is these arrays as files, and opening it maps them without reading them.

Matching may run in many threads at once. Changes come one at a time, in two steps: `change` and `prepare` build what
is new while matching goes on, and the commit that they return, which must be alone (the index's lock), swaps it in.
Options:
- `tail`: boxes in the tail before they are sealed into a segment;
- `block`: boxes per block;
- `lines`: constraints per block from which an attribute gets bitmap lines;
- `band`: boxes from which priority levels get blocks of their own;
- `kind`: "bitmap", "dense" or "postings" instead of a choice by the data;
- `simd`: an instruction set instead of the best available;
- `seed`: two 64-bit numbers, the hash seed of postings, for tests. By default each segment draws a random one, so that
  nobody can choose values with equal hashes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from hitbox.concurrency import pieces
from hitbox.encoding import array_checks
from hitbox.encoding.arrays import I32, I64, LEVELS, U8, Boxes, Hits, Points, Space
from hitbox.encoding.values import brief
from hitbox.engine import _kernels
from hitbox.engine._kernels import BLOCK, MAX_ATTRIBUTES
from hitbox.engine.segment import U32, Arrays, Segment
from hitbox.errors import DamagedArray, MatcherError
from hitbox.matchers.base import Matcher, check_choice, check_count

TAIL = 1 << 31
NOWHERE = (1 << 32) - 1
KINDS = ("bitmap", "postings", "dense")
CHECKED = 128 * BLOCK
"""Positions checked per task."""
MAX_SCALAR_BOXES = 32
"""Boxes that are looked at one by one."""
DEAD_SHARE = 0.2
"""Share of deleted boxes from which a segment is rebuilt."""
DENSE_SHARE = 0.5
"""Share of the attributes that boxes constrain from which two-sided boxes go to bitmaps."""
NONE, NO_BOXES = np.zeros(0, np.int64), Boxes.of([])


class Engine(Matcher):
    intervals = True
    ordered = True
    threaded = True

    def __init__(
        self,
        space: Space,
        *,
        tail: int = 128,
        block: int = BLOCK,
        lines: int = 24,
        band: int = 1 << 17,
        kind: str = "auto",
        simd: str | None = None,
        seed: tuple[int, int] | None = None,
    ) -> None:
        if not 1 <= space.attributes <= MAX_ATTRIBUTES:
            raise MatcherError(f"the engine holds 1 to {MAX_ATTRIBUTES} attributes, not {space.attributes}")
        check_count("tail", tail, 1, TAIL)
        check_count("block", block, 1, BLOCK)
        check_count("lines", lines, 0, TAIL)
        check_count("band", band, 1, TAIL)
        check_choice("kind", kind, ("auto", *KINDS))
        _check_seed(seed)
        self.space = space
        self.simd = _simd(simd)
        self._options = (block, lines, band)
        self._forced = kind
        self._seed = seed
        self._tail_limit = tail
        self._tail = _kernels.Tail()
        self._segments: list[Segment] = []
        self._where = np.zeros(0, np.uint32)

    # --- changes

    def insert(self, numbers: I64, boxes: Boxes) -> None:
        self.change(NONE, numbers, boxes)()

    def delete(self, numbers: I64) -> None:
        self.change(numbers, NONE, NO_BOXES)()

    def change(self, delete: I64, numbers: I64, boxes: Boxes) -> Callable[[], None]:
        """As `Matcher.change` says. All that takes long or needs memory happens here and changes nothing that anybody
        can see, so an error or an interrupt leaves what was there; the commit only writes what is prepared."""
        delete = np.ascontiguousarray(delete, np.int64)
        numbers = np.ascontiguousarray(numbers, np.int64)
        if not len(delete) and not len(numbers):
            return lambda: None
        where = self._locate(delete)
        self._check(numbers, boxes, delete)
        gone = [(segment, positions, segment.writable_alive()) for segment, _, positions in self._by_segment(where)]
        dead = where[where >= TAIL] - np.uint32(TAIL) if _ends(where)[1] >= TAIL else where[:0]
        lost = {segment: len(positions) for segment, positions, _ in gone}
        kept = [segment for segment in self._segments if segment.live > lost.get(segment, 0)]

        few = 0 < len(numbers) < self._tail_limit
        full = few and len(self._tail) + len(numbers) >= self._tail_limit
        appended = few and not full
        added: list[tuple[Segment, I64, U32]] = []
        if full:
            stay = np.setdiff1d(self._tail.living(), dead)
            before, held = self._tail.numbers(stay), Boxes(*self._tail.decode(stay))
            added = self._seal(np.concatenate([before, numbers]), Boxes.concat([held, boxes]), kept)
        elif not few:
            added = self._seal(numbers, boxes, kept)
        self._make_room(_ends(numbers)[1] + 1)
        tail, locations = self._tail, np.zeros(0, np.uint32)
        if full:
            tail = _kernels.Tail()
        elif appended:
            tail = self._tail = self._tail.with_room(len(numbers), len(boxes.attribute))
            locations = np.arange(TAIL + len(tail), TAIL + len(tail) + len(numbers), dtype=np.uint32)

        def commit() -> None:
            if appended:
                tail.append(numbers, boxes.offsets, boxes.attribute, boxes.low, boxes.high, boxes.priority)
            self._where[delete] = NOWHERE
            if appended:
                self._where[numbers] = locations
            for segment, positions, alive in gone:
                segment.delete(positions, alive)
            if len(dead) and not full:
                tail.remove(dead)
            self._tail = tail
            self._adopt(kept, added)

        return commit

    def prepare(self) -> Callable[[], None] | None:
        """Merges what has grown many or hollow. Matching may go on meanwhile, changes may not; the returned commit
        swaps the result in and must be alone. None where nothing is worth doing."""
        chosen = self._worth_merging()
        if not chosen:
            return None
        taken: list[tuple[I64, Boxes]] = []
        positions = self._tail.living()
        if len(positions):
            taken.append((self._tail.numbers(positions), Boxes(*self._tail.decode(positions))))
        for segment in chosen:
            positions = segment.living()
            taken.append((segment.numbers(positions), segment.boxes(positions)))
        kept = [segment for segment in self._segments if segment not in chosen]
        numbers = np.concatenate([one for one, _ in taken])
        added = self._seal(numbers, Boxes.concat([boxes for _, boxes in taken]), kept)
        self._make_room(len(self._where))
        tail = _kernels.Tail()

        def commit() -> None:
            self._tail = tail
            self._adopt(kept, added)

        return commit

    # --- matching

    def match(self, points: Points, threads: int = 1) -> Hits:
        return Hits(*self._match(points, threads=threads)[:2])

    def match_top(self, points: Points, limit: int) -> I32:
        """The `limit` most urgent matches of the one event in `points`."""
        return self._match(points, limit=max(0, limit))[1]

    def match_event(
        self,
        plan: _kernels.EventPlan,
        owners: _kernels.Owners,
        ids: _kernels.Ids,
        event: Any,
        limit: int,
        holds: Callable[[Any, list[int]], list[bool]],
        as_list: bool,
    ) -> Any:
        """The ids of the subscriptions that one event matches, most urgent first, at most `limit` (-1: all): everything
        from the mapping to its ids in one native call. `holds(event, slots)` decides where boxes leave doubt."""
        kernels = [segment.kernel for segment in self._segments]
        return _kernels.match_event(plan, kernels, self._tail, self.simd, owners, ids, event, limit, holds, as_list)

    def match_levels(self, points: Points) -> Iterator[tuple[int, I32]]:
        """(priority, numbers) of the one event in `points`, a level at a time, most urgent first, as asked for.
        Blocks are visited when the first level that they hold is asked for; postings and the tail, which are cheap,
        at once."""
        if len(points) != 1:
            raise MatcherError(f"match_levels takes one event at a time, got {len(points)}")
        bitmaps = [segment for segment in self._segments if segment.kind == "bitmap"]
        others = [segment for segment in self._segments if segment.kind != "bitmap"]
        empty = _kernels.Tail()
        found = [_by_level(self._match(points, segments=others))]
        for level in reversed(range(LEVELS)):
            for segment in bitmaps:
                bottom = segment.band(level)
                if bottom is not None:
                    found.append(
                        _by_level(self._match(points, segments=[segment], tail=empty, top=level, bottom=bottom))
                    )
            parts = [one[level] for one in found if len(one[level])]
            if parts:
                yield level, parts[0] if len(parts) == 1 else np.concatenate(parts)

    def count(self, points: Points, threads: int = 1) -> I64:
        """How many boxes each point meets."""
        self._check_points(points)
        kernels = [segment.kernel for segment in self._segments]
        return np.diff(_kernels.count(kernels, self._tail, points.low, points.high, self.simd, threads))

    # --- state

    def boxes(self, numbers: I64) -> Boxes:
        where = self._locate(numbers)
        found: list[Boxes] = []
        rows: list[NDArray[np.intp]] = [np.flatnonzero(where >= TAIL)]
        if len(rows[0]):
            found.append(Boxes(*self._tail.decode(where[rows[0]] - np.uint32(TAIL))))
        for segment, some, positions in self._by_segment(where):
            rows.append(some)
            found.append(segment.boxes(positions))
        return Boxes.concat(found).take(np.argsort(np.concatenate(rows)))

    def numbers(self) -> I64:
        return np.flatnonzero(self._where != NOWHERE)

    def __len__(self) -> int:
        return self._tail.live + sum(segment.live for segment in self._segments)

    def nbytes(self) -> int:
        return self._where.nbytes + self._tail.nbytes + sum(segment.nbytes for segment in self._segments)

    def describe(self) -> dict[str, Any]:
        """What is held where, for people and benchmarks."""
        segments = [
            {"kind": one.kind, "boxes": one.live, "dead": one.members - one.live, "bytes": one.nbytes}
            for one in self._segments
        ]
        return {"segments": segments, "tail": self._tail.live, "bytes": self.nbytes(), "simd": self.simd}

    def arrays(self) -> dict[str, NDArray[Any]]:
        """The complete state as named flat arrays, for `from_arrays`."""
        positions = self._tail.living()
        numbers = self._tail.numbers(positions)
        where = self._where
        if len(numbers):
            where = where.copy()
            where[numbers] = np.arange(TAIL, TAIL + len(numbers), dtype=np.uint32)
        fields = ("tail.offsets", "tail.attribute", "tail.low", "tail.high", "tail.priority")
        found: dict[str, NDArray[Any]] = {"where": where, "tail.numbers": numbers}
        found.update(zip(fields, self._tail.decode(positions), strict=True))
        kinds = [KINDS.index(segment.kind) for segment in self._segments]
        found["segments"] = np.array(
            [[kind, one.base, one.live] for kind, one in zip(kinds, self._segments, strict=True)], np.int64
        ).reshape(-1, 3)
        for i, segment in enumerate(self._segments):
            found.update({f"segment{i}.{name}": array for name, array in segment.arrays.items()})
        return found

    @classmethod
    def from_arrays(cls, space: Space, arrays: Mapping[str, NDArray[Any]], **options: Any) -> Self:
        """An engine on arrays that `arrays` gave, which may be read-only maps of files. Nothing is copied before it is
        changed; what kernels use as an index is checked first (src/engine/format/validate.hpp)."""
        engine = cls(space, **options)
        engine._where = array_checks.column(arrays, "where", np.uint32)
        array_checks.require(len(engine._where) <= TAIL, "where", "it is too long")
        for i, (kind, base, live) in enumerate(_segments_of(arrays)):
            prefix = f"segment{i}."
            parts = {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}
            with _naming(prefix):
                engine._segments.append(Segment(KINDS[kind], space.attributes, base, live, parts))
        numbers, boxes = array_checks.boxes(arrays, "tail.", space.attributes)
        engine._check_opened(numbers)
        if len(numbers):
            engine._tail.append(numbers, boxes.offsets, boxes.attribute, boxes.low, boxes.high, boxes.priority)
        return engine

    def _check_opened(self, tail: I64) -> None:
        """Whether segments hold what kernels can use, and `where` says of every living box where it is."""
        end = 0
        for segment in sorted(self._segments, key=lambda one: one.base):
            array_checks.require(end <= segment.base, "segments", "two segments have the same locations")
            end = segment.base + segment.size
        array_checks.require(end <= TAIL, "segments", "there are too many locations")
        tasks, whose = [], []
        for i, segment in enumerate(self._segments):
            with _naming(f"segment{i}."):
                segment.kernel.check()
            for start in range(0, segment.size, CHECKED):
                tasks.append(partial(_check_boxes, segment, i, start, self._where))
                whose.append(i)
        living = np.bincount(whose, pieces.run(tasks), len(self._segments)) if tasks else np.zeros(0)
        for i, segment in enumerate(self._segments):
            array_checks.require(segment.live == living[i], "segments", f"segment {i} has {living[i]:.0f} living boxes")
        array_checks.bounds(tail, "tail.numbers", 0, len(self._where) - 1)
        there = np.arange(TAIL, TAIL + len(tail), dtype=np.uint32)
        array_checks.require((self._where[tail] == there).all(), "where", "a box of the tail is elsewhere")
        located = int(np.count_nonzero(self._where != NOWHERE))
        array_checks.require(located == living.sum() + len(tail), "where", "it has boxes that are nowhere")

    # --- inside

    def _check_points(self, points: Points) -> None:
        if points.low.shape[1] != self.space.attributes:
            raise MatcherError(f"points have {points.low.shape[1]} attributes, the space {self.space.attributes}")

    def _match(
        self,
        points: Points,
        segments: list[Segment] | None = None,
        tail: _kernels.Tail | None = None,
        threads: int = 1,
        top: int = LEVELS - 1,
        bottom: int = 0,
        limit: int = -1,
    ) -> tuple[I64, I32, U8]:
        self._check_points(points)
        kernels = [segment.kernel for segment in (self._segments if segments is None else segments)]
        tail = self._tail if tail is None else tail
        return _kernels.match(kernels, tail, points.low, points.high, self.simd, threads, top, bottom, limit)

    def _check(self, numbers: I64, boxes: Boxes, freed: I64) -> None:
        """Refuses what the kernels must never see, before anything has changed."""
        if not len(numbers):
            return
        least, most = _ends(numbers)
        if least < 0 or most >= TAIL:
            raise MatcherError(f"box numbers must lie in 0..{TAIL - 1}")
        if self._any_used(numbers, freed):
            raise MatcherError("a box number is already in use: delete it first")
        least, most = _ends(boxes.attribute)
        if least < 0 or most >= self.space.attributes:
            raise MatcherError(f"a box constrains an attribute outside 0..{self.space.attributes - 1}")
        if _ends(boxes.priority)[1] >= LEVELS:
            raise MatcherError(f"priorities must lie in 0..{LEVELS - 1}")

    def _any_used(self, numbers: I64, freed: I64) -> bool:
        """Whether some of the numbers are in use and not freed."""
        if len(numbers) <= MAX_SCALAR_BOXES:
            where, end = self._where, len(self._where)
            taken = {number for number in numbers.tolist() if number < end and where[number] != NOWHERE}
            return bool(taken) and not taken.issubset(freed.tolist())
        known = numbers[numbers < len(self._where)]
        used = known[self._where[known] != NOWHERE]
        return len(used) > 0 and not np.isin(used, freed).all()

    def _locate(self, numbers: I64) -> U32:
        numbers = np.asarray(numbers, np.int64)
        least, most = _ends(numbers)
        inside = least >= 0 and most < len(self._where)
        where: U32 = self._where[numbers] if inside else np.full(1, NOWHERE, np.uint32)
        if _ends(where)[1] == NOWHERE:
            raise MatcherError("a box number is not in use")
        return where

    def _build(self, numbers: I64, boxes: Boxes) -> list[tuple[str, Arrays, I64, U32]]:
        if not len(numbers):
            return []
        columns = (boxes.offsets, boxes.attribute, boxes.low, boxes.high, boxes.priority)
        seed = self._seed or (int.from_bytes(os.urandom(8)), int.from_bytes(os.urandom(8)))
        try:
            return _kernels.build(self.space.attributes, numbers, *columns, *self._options, self._kind(boxes), *seed)
        except ValueError as error:  # how the kernels say that there is too much of something
            raise MatcherError(str(error)) from None

    def _kind(self, boxes: Boxes) -> str:
        """Two-sided events come as ranges, which would read most of the postings; bitmaps bear ranges, but want
        attributes that most boxes constrain."""
        kind = self._forced
        dense = len(boxes.attribute) >= DENSE_SHARE * self.space.attributes * len(boxes)
        return "bitmap" if kind == "auto" and self.space.information and dense else kind

    def _seal(self, numbers: I64, boxes: Boxes, beside: list[Segment]) -> list[tuple[Segment, I64, U32]]:
        """Segments of these boxes, and which number is where, at locations that the segments `beside` leave free."""
        taken = list(beside)
        added: list[tuple[Segment, I64, U32]] = []
        for kind, arrays, some, positions in self._build(numbers, boxes):
            segment = Segment(kind, self.space.attributes, 0, len(some), arrays)
            segment.base = _free_base(taken, segment.size)
            taken.append(segment)
            added.append((segment, some, positions + np.uint32(segment.base)))
        return added

    def _adopt(self, kept: list[Segment], added: list[tuple[Segment, I64, U32]]) -> None:
        for _, numbers, locations in added:
            self._where[numbers] = locations
        self._segments = kept + [segment for segment, _, _ in added]

    def _make_room(self, capacity: int) -> None:
        """Makes `where` private and long enough."""
        held = len(self._where)
        if capacity > held:
            grown = np.full(max(capacity, held * 5 // 4 if held else 0), NOWHERE, np.uint32)
            grown[:held] = self._where
            self._where = grown
        elif not self._where.flags.writeable:
            self._where = self._where.copy()

    def _by_segment(self, where: U32) -> Iterator[tuple[Segment, NDArray[np.intp], U32]]:
        """Which rows of `where` lie in which segment, and their positions in it; the rest lies in the tail."""
        least, most = _ends(where)
        for segment in self._segments if len(where) else ():
            base, end = segment.base, segment.base + segment.size
            if most < base or least >= end:
                continue
            if base <= least and most < end:
                yield segment, np.arange(len(where)), where - np.uint32(base)
                return
            rows = np.flatnonzero((where >= base) & (where < end))
            if len(rows):
                yield segment, rows, where[rows] - np.uint32(base)

    def _worth_merging(self) -> list[Segment]:
        """Segments from which sizes no longer double, and those with too many dead: O(log n) rebuilds per box."""
        chosen: list[Segment] = []
        for kind in KINDS:
            smaller = self._tail.live
            run: list[Segment] = []
            for segment in sorted((one for one in self._segments if one.kind == kind), key=lambda one: one.live):
                run.append(segment)
                if len(run) > 1 and segment.live < 2 * smaller:
                    chosen.extend(one for one in run if one not in chosen)
                smaller += segment.live
        hollow = [one for one in self._segments if one.live < (1 - DEAD_SHARE) * one.members and one not in chosen]
        return chosen + hollow


def _ends(values: NDArray[Any]) -> tuple[int, int]:
    """The least and the greatest; (0, -1) of none. NumPy takes longer for a few than Python does."""
    if not len(values):
        return 0, -1
    if len(values) <= MAX_SCALAR_BOXES:
        listed = values.tolist()
        return min(listed), max(listed)
    return int(values.min()), int(values.max())


def _segments_of(arrays: Mapping[str, NDArray[Any]]) -> list[list[int]]:
    """(kind, base, living boxes) of each segment."""
    array_checks.require("segments" in arrays, "segments", "it is missing")
    table = arrays["segments"]
    good = table.dtype == np.int64 and table.ndim == 2 and table.shape[1] == 3
    array_checks.require(good, "segments", "it is no table of three columns")
    array_checks.bounds(table[:, 0], "segments", 0, len(KINDS) - 1)
    array_checks.bounds(table[:, 1], "segments", 0, TAIL)
    array_checks.bounds(table[:, 2], "segments", 1, TAIL)
    found: list[list[int]] = table.tolist()
    return found


@contextmanager
def _naming(prefix: str) -> Iterator[None]:
    """What the native checks refuse, as an error that names the array."""
    try:
        yield
    except ValueError as problem:
        name, _, reason = str(problem).partition(": ")
        raise DamagedArray(prefix + name, reason) from None


def _check_boxes(segment: Segment, number: int, start: int, where: U32) -> int:
    with _naming(f"segment{number}."):
        return segment.kernel.check_boxes(start, start + CHECKED, where, segment.base)


def _check_seed(seed: object) -> None:
    if seed is not None:
        if not isinstance(seed, (tuple, list)) or len(seed) != 2:
            raise MatcherError(f"seed is two whole numbers of 64 bits, not {brief(seed)}")
        for number in seed:
            check_count("a number of seed", number, 0, 2**64 - 1)


def _simd(asked: str | None) -> str:
    levels = _kernels.simd_levels()
    name = (os.environ.get("HITBOX_SIMD") or levels[-1]) if asked is None else asked
    if name not in levels:
        raise MatcherError(f"instruction set {name!r} is not one that this processor has: {', '.join(levels)}")
    return name


def _free_base(segments: list[Segment], size: int) -> int:
    """The first stretch of locations that no segment uses."""
    base = 0
    for segment in sorted(segments, key=lambda one: one.base):
        if segment.base - base >= size:
            break
        base = segment.base + segment.size
    if base + size > TAIL:
        raise MatcherError("the engine is full: more than two thousand million locations")
    return base


def _by_level(found: tuple[I64, I32, U8]) -> list[I32]:
    """The matches of one event, which come most urgent first, by priority."""
    _, numbers, levels = found
    less = np.searchsorted(levels[::-1], np.arange(LEVELS + 1, dtype=np.uint8))
    ends = (len(numbers) - less).tolist()
    return [numbers[ends[level + 1] : ends[level]] for level in range(LEVELS)]
