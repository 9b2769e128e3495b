"""The engine: sealed segments, a short tail of new boxes, and tombstones.

    insert ->  tail (unindexed rows, scanned linearly) -> sealed when it is full -> merged (merge.py)
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
- `compact`: smaller bitmap segments, which take longer to match, and none that are dense;
- `simd`: an instruction set instead of the best available;
- `seed`: two 64-bit numbers, the hash seed of postings, for tests. By default each segment draws a random one, so that
  nobody can choose values with equal hashes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from hitbox.encoding import array_checks
from hitbox.encoding.arrays import I32, I64, LEVELS, U8, Boxes, Hits, Points, Space
from hitbox.encoding.values import brief
from hitbox.engine import _kernels
from hitbox.engine._kernels import BLOCK, MAX_ATTRIBUTES
from hitbox.engine.builder import Arranged, SegmentBuilder
from hitbox.engine.content import KINDS, TAIL, Content, Sealed, ends
from hitbox.engine.merge import Merges, Placed
from hitbox.engine.opening import check_opened, open_segments
from hitbox.engine.segment import NOWHERE, Segment
from hitbox.errors import MatcherError
from hitbox.matchers.base import Matcher, check_choice, check_count, check_flag

MIN_ARRANGED = 1024
"""Boxes from which the engine chooses the order of their numbers."""
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
        compact: bool = False,
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
        check_flag("compact", compact)
        if compact and kind == "dense":
            raise MatcherError("a dense segment cannot be compact: leave out kind='dense' or compact=True")
        _check_seed(seed)
        self.space = space
        self.simd = _simd(simd)
        self._builder = SegmentBuilder(space, block, lines, band, kind, compact, seed)
        self._tail_limit = tail
        self.content = Content()
        self.merges = Merges(self.content, self._builder)

    # --- changes

    def insert(self, numbers: I64, boxes: Boxes) -> None:
        self.change(NONE, numbers, boxes)()

    def delete(self, numbers: I64) -> None:
        self.change(numbers, NONE, NO_BOXES)()

    def arrange(self, boxes: Boxes) -> Arranged | None:
        """Builds segments of many boxes for `change`, before they have numbers; None where they are too few."""
        if len(boxes) < max(MIN_ARRANGED, self._tail_limit):
            return None
        self._check_boxes(boxes)
        parts = self._builder.build(None, boxes)
        return Arranged(np.concatenate([order for _, _, order, _ in parts]), parts)

    def change(self, delete: I64, numbers: I64, boxes: Boxes, arranged: Arranged | None = None) -> Callable[[], None]:
        """As `Matcher.change` says. All that takes long or needs memory happens here and changes nothing that anybody
        can see, so an error or an interrupt leaves what was there; the commit only writes what is prepared.

        arranged: what `arrange` made of `boxes`; `numbers` then ascend by one, and belong to its order
        """
        delete = np.ascontiguousarray(delete, np.int64)
        numbers = np.ascontiguousarray(numbers, np.int64)
        content = self.content
        if self.merges.under_way:
            self.merges.note(delete, numbers)
        few = len(content.tail) + len(numbers) < self._tail_limit
        if few and len(delete) <= 1:
            return self._change_tail(delete, numbers, boxes)
        where = content.locate(delete)
        gone = [(segment, positions, segment.writable_alive()) for segment, _, positions in content.by_segment(where)]
        dead = where[where >= TAIL] - np.uint32(TAIL)
        tail, added = content.tail, []
        sealed, lost = content.sealed, {segment: len(positions) for segment, positions, _ in gone}
        kept = [segment for segment in sealed.segments if segment.live > lost.get(segment, 0)]
        if few:
            tail = self._stage(delete, numbers, boxes) if len(numbers) else tail
        elif len(numbers) < self._tail_limit:
            self._check(numbers, boxes, delete)
            stay = tail.living()
            if len(dead):
                stay = np.setdiff1d(stay, dead)
            before, held = tail.numbers(stay), Boxes(*tail.decode(stay))
            added = self._seal(np.concatenate([before, numbers]), Boxes.concat([held, boxes]), kept)
            self.merges.note(before)
            tail, dead = _kernels.Tail(), dead[:0]
        else:
            self._check(numbers, boxes, delete)
            added = self._seal(numbers, boxes, kept, arranged)
        content.make_room(ends(numbers)[1] + 1)
        sealed = Sealed(kept + [segment for segment, _, _ in added], content.sealed.where)

        def commit() -> None:
            sealed.where[delete] = NOWHERE
            if few and len(numbers):
                tail.publish(sealed.where)
            for segment, positions, alive in gone:
                segment.delete(positions, alive)
                self.merges.crowded |= segment.hollow
            if len(dead):
                tail.remove(dead)
            for _, new, locations in added:
                sealed.where[new] = locations
            self.merges.crowded |= len(added) > 0
            content.tail, content.sealed = tail, sealed

        return commit

    def _change_tail(self, delete: I64, numbers: I64, boxes: Boxes) -> Callable[[], None]:
        """Prepare a change in which at most one box goes, and those that come fit into the tail."""
        content = self.content
        gone, location = NOWHERE, NOWHERE
        if len(delete):
            gone = int(delete[0])
            location = int(content.sealed.where[gone]) if 0 <= gone < len(content.sealed.where) else NOWHERE
            if location == NOWHERE:
                raise MatcherError("a box number is not in use")
            content.make_room(0)
        tail = self._stage(delete, numbers, boxes) if len(numbers) else content.tail
        sealed = content.sealed
        segment, position = None, location - TAIL
        if location < TAIL:
            segment = sealed.at(location)
            position = location - segment.base
            alive = segment.writable_alive()
            if segment.live == 1:
                sealed = Sealed([other for other in sealed.segments if other is not segment], sealed.where)

        def commit() -> None:
            if location != NOWHERE:
                sealed.where[gone] = NOWHERE
            if len(numbers):
                tail.publish(sealed.where)
            if segment is not None:
                segment.delete_one(position, alive)
                if segment.hollow:
                    self.merges.crowded = True
            elif location != NOWHERE:
                tail.remove_one(position)
            content.tail, content.sealed = tail, sealed

        return commit

    def _stage(self, delete: I64, numbers: I64, boxes: Boxes) -> _kernels.Tail:
        """A tail in which these boxes are staged."""
        if len(boxes) != len(numbers):
            raise MatcherError(f"{len(numbers)} numbers for {len(boxes)} boxes")
        content, most = self.content, ends(numbers)[1]
        if most < TAIL:
            content.make_room(most + 1)
        tail = content.tail = content.tail.with_room(len(numbers), len(boxes.attribute))
        if not tail.stage(
            content.sealed.where,
            delete,
            numbers,
            boxes.offsets,
            boxes.attribute,
            boxes.low,
            boxes.high,
            boxes.priority,
            self.space.attributes,
        ):
            self._check(numbers, boxes, delete)  # says what is wrong
            raise MatcherError("the engine cannot hold these boxes")
        return tail

    def widened(self, space: Space, options: Mapping[str, object]) -> tuple[Self, Callable[[], None]]:
        """As `Matcher.widened` says. Segments stay as they are: their boxes constrain none of the new attributes."""
        if space.attributes > MAX_ATTRIBUTES:
            raise MatcherError(f"the engine holds 1 to {MAX_ATTRIBUTES} attributes, not {space.attributes}")

        def commit() -> None:
            self.space = self._builder.space = space

        return self, commit

    # --- merging

    def prepare(self) -> Callable[[], None] | None:
        """As `Matcher.prepare` says: merges what has grown many or hollow."""
        return self.merges.now()

    def merge_behind(self, alone: AbstractContextManager[None]) -> None:
        """Starts in the background what is worth merging. The caller is in `alone`, a section in which nobody changes
        the engine."""
        if self.merges.crowded:
            self.merges.behind(alone)

    # --- matching

    def match(self, points: Points, threads: int = 1) -> Hits:
        return Hits(*self._match(points, threads=threads)[:2])

    def event_matcher(
        self,
        owners: _kernels.Owners,
        ids: _kernels.Ids,
        anchors: list[_kernels.AnchorSegment],
        plan: _kernels.EventPlan,
        documents: _kernels.DocumentPlan | None,
    ) -> _kernels.EventMatcher:
        """Matches single events, from the mapping or the text to the ids in one native call, until the next change or
        merge (`sealed`). `plan` and `documents` read events."""
        content = self.content
        return _kernels.EventMatcher(
            content.sealed.kernels, content.tail, self.simd, owners, ids, anchors, plan, documents
        )

    def match_levels(self, points: Points) -> Iterator[tuple[int, I32]]:
        """(priority, numbers) of the one event in `points`, a level at a time, most urgent first, as asked for.
        Blocks are visited when the first level that they hold is asked for; postings and the tail, which are cheap,
        at once."""
        if len(points) != 1:
            raise MatcherError(f"match_levels takes one event at a time, got {len(points)}")
        segments = self.content.sealed.segments
        bitmaps = [segment for segment in segments if segment.kind == "bitmap"]
        others = [segment for segment in segments if segment.kind != "bitmap"]
        empty = _kernels.Tail()
        matches = [_by_level(*self._match(points, segments=others))]
        for level in reversed(range(LEVELS)):
            for segment in bitmaps:
                bottom = segment.band(level)
                if bottom is not None:
                    own = self._match(points, segments=[segment], tail=empty, top=level, bottom=bottom)
                    matches.append(_by_level(*own))
            parts = [numbers[level] for numbers in matches if len(numbers[level])]
            if parts:
                yield level, parts[0] if len(parts) == 1 else np.concatenate(parts)

    def count(self, points: Points, threads: int = 1) -> I64:
        """How many boxes each point meets."""
        self._check_points(points)
        kernels, tail = self.content.sealed.kernels, self.content.tail
        return np.diff(_kernels.count(kernels, tail, points.low, points.high, self.simd, threads))

    # --- state

    def boxes(self, numbers: I64) -> Boxes:
        return self.content.boxes(numbers)

    def numbers(self) -> I64:
        return np.flatnonzero(self.content.sealed.where != NOWHERE)

    def __len__(self) -> int:
        return len(self.content)

    def nbytes(self) -> int:
        return self.content.nbytes()

    def kept_options(self) -> dict[str, Any]:
        return {"compact": True} if self._builder.compact else {}

    def describe(self) -> dict[str, Any]:
        """What is held where, for people and benchmarks."""
        segments = [
            {
                "kind": segment.kind,
                "compact": segment.compact,
                "boxes": segment.live,
                "dead": segment.members - segment.live,
                "bytes": segment.nbytes,
            }
            for segment in self.content.sealed.segments
        ]
        return {"segments": segments, "tail": self.content.tail.live, "bytes": self.nbytes(), "simd": self.simd}

    def arrays(self) -> dict[str, NDArray[Any]]:
        """The complete state as named flat arrays, for `from_arrays`."""
        return self.content.arrays() | ({"compact": np.ones(1, np.uint8)} if self._builder.compact else {})

    @classmethod
    def from_arrays(cls, space: Space, arrays: Mapping[str, NDArray[Any]], **options: Any) -> Self:
        """An engine on arrays that `arrays` gave, which may be read-only maps of files. Nothing is copied before it is
        changed; what kernels use as an index is checked first. Without the option `compact` it goes on as the engine
        did that gave them."""
        if "compact" in arrays:
            flag = array_checks.column(arrays, "compact", np.uint8)
            array_checks.require(flag.tolist() == [1], "compact", "it is no flag")
            options = {"compact": True} | options
        engine = cls(space, **options)
        where = array_checks.column(arrays, "where", np.uint32)
        array_checks.require(len(where) <= TAIL, "where", "it is too long")
        segments = open_segments(arrays, space.attributes)
        numbers, boxes = array_checks.boxes(arrays, "tail.", space.attributes)
        check_opened(segments, where, numbers)
        content = engine.content
        content.sealed = Sealed(segments, where)
        if len(numbers):
            content.tail = engine._stage(numbers, numbers, boxes)
            content.tail.publish(np.empty_like(where))  # `where` knows them already, and may be read-only
        engine.merges.crowded = True
        return engine

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
        content = self.content
        kernels = content.sealed.kernels if segments is None else [segment.kernel for segment in segments]
        tail = content.tail if tail is None else tail
        return _kernels.match(kernels, tail, points.low, points.high, self.simd, threads, top, bottom, limit)

    def _check(self, numbers: I64, boxes: Boxes, freed: I64) -> None:
        """Refuses what the kernels must never see, before anything has changed."""
        if not len(numbers):
            return
        least, most = ends(numbers)
        if least < 0 or most >= TAIL:
            raise MatcherError(f"box numbers must lie in 0..{TAIL - 1}")
        if self.content.any_used(numbers, freed):
            raise MatcherError("a box number is already in use: delete it first")
        self._check_boxes(boxes)

    def _check_boxes(self, boxes: Boxes) -> None:
        least, most = ends(boxes.attribute)
        if least < 0 or most >= self.space.attributes:
            raise MatcherError(f"a box constrains an attribute outside 0..{self.space.attributes - 1}")
        if ends(boxes.priority)[1] >= LEVELS:
            raise MatcherError(f"priorities must lie in 0..{LEVELS - 1}")

    def _seal(self, numbers: I64, boxes: Boxes, kept: list[Segment], arranged: Arranged | None = None) -> list[Placed]:
        built = self._builder.build(numbers, boxes) if arranged is None else arranged.numbered(int(numbers[0]))
        return self.merges.placed(built, kept)


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


def _by_level(_: I64, numbers: I32, levels: U8) -> list[I32]:
    """The matches of one event, which come most urgent first, by priority."""
    less = np.searchsorted(levels[::-1], np.arange(LEVELS + 1, dtype=np.uint8))
    limits = (len(numbers) - less).tolist()
    return [numbers[limits[level + 1] : limits[level]] for level in range(LEVELS)]
