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
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
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
from hitbox.engine.merge import Built, Merge
from hitbox.engine.segment import NOWHERE, PER_ATTRIBUTE, U32, Segment
from hitbox.errors import DamagedArray, MatcherError
from hitbox.matchers.base import Matcher, check_choice, check_count, check_flag

TAIL = 1 << 31
KINDS = ("bitmap", "postings", "dense")
CHECKED = 128 * BLOCK
"""Positions checked per task."""
MAX_SCALAR_BOXES = 32
"""Boxes that are looked at one by one."""
BITMAP_SHARE = 0.5
"""Share of the attributes that boxes constrain from which two-sided boxes go to bitmaps."""
SMALLER = 8
"""How much smaller a merge must be to run beside another: so there are few, and new segments need not wait."""
MOST_IDLE = 64
"""Segments that nobody merges from which a writer merges them by itself."""
RETRY_AFTER = 8
"""How many segments must come before a merge is tried again after one that failed."""
DENSE_FIRST_NUMBER = 8
"""Where the sizes of a dense segment have its first number."""
MIN_ARRANGED = 1024
"""Boxes from which the engine chooses the order of their numbers."""
NONE, NO_BOXES = np.zeros(0, np.int64), Boxes.of([])
Anchored = tuple[list[_kernels.AnchorSegment], list[tuple[bytes, list[Any]]]]


@dataclass(frozen=True, slots=True)
class Arranged:
    """Segments of many boxes, built before the boxes have numbers. If these ascend by one in the order of the segments,
    the segments need not store them, and what belongs to neighbours in a segment lies together everywhere."""

    order: I64
    """The boxes, as places in the input, in the order of the segments."""
    parts: list[Built]
    """The segments; their boxes are numbered from 0 in each."""

    def numbered(self, first: int) -> list[Built]:
        """The segments, with numbers from `first` on."""
        found: list[Built] = []
        for kind, arrays, order, positions in self.parts:
            if kind == "dense":
                numbers = arrays["sizes"][DENSE_FIRST_NUMBER:]
            elif kind == "bitmap":  # bytes: the first number of each block, then padding
                numbers = arrays["numbers"][: 4 * int(arrays["sizes"][0])].view(np.uint32)
            else:
                numbers = arrays["numbers"]
            numbers += np.uint32(first)
            found.append((kind, arrays, np.arange(first, first + len(order)), positions))
            first += len(order)
        return found


class Sealed:
    """The segments, by location, and where each box is. Replaced as a whole, so that readers see what fits together;
    only the entries of `where` change in place."""

    __slots__ = ("_bases", "kernels", "segments", "where")

    def __init__(self, segments: list[Segment], where: U32):
        self.segments = sorted(segments, key=lambda one: one.base)
        self.where = where
        self.kernels = [segment.kernel for segment in self.segments]
        self._bases = [segment.base for segment in self.segments]

    def at(self, location: int) -> Segment:
        """The segment that a living box is in."""
        return self.segments[bisect_right(self._bases, location) - 1]


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
        self._options = (block, lines, band)
        self._forced = kind
        self._compact = compact
        self._seed = seed
        self._tail_limit = tail
        self._tail = _kernels.Tail()
        self._sealed = Sealed([], np.zeros(0, np.uint32))
        self._merges: list[Merge] = []
        """Those that are under way."""
        self._crowded = False
        """Whether a merge may be worth it: something was sealed, has grown hollow, or was merged."""
        self._wait_for = 0
        """Segments that must be there before the next merge, after one that failed."""

    @property
    def where(self) -> U32:
        """Where each box is."""
        return self._sealed.where

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
        parts = self.build_segments(None, boxes)
        return Arranged(np.concatenate([order for _, _, order, _ in parts]), parts)

    def change(self, delete: I64, numbers: I64, boxes: Boxes, arranged: Arranged | None = None) -> Callable[[], None]:
        """As `Matcher.change` says. All that takes long or needs memory happens here and changes nothing that anybody
        can see, so an error or an interrupt leaves what was there; the commit only writes what is prepared.

        arranged: what `arrange` made of `boxes`; `numbers` then ascend by one, and belong to its order
        """
        delete = np.ascontiguousarray(delete, np.int64)
        numbers = np.ascontiguousarray(numbers, np.int64)
        if self._merges:
            self._note(delete, numbers)
        few = len(self._tail) + len(numbers) < self._tail_limit
        if few and len(delete) <= 1:
            return self._change_tail(delete, numbers, boxes)
        where = self._locate(delete)
        gone = [(segment, positions, segment.writable_alive()) for segment, _, positions in self._by_segment(where)]
        dead = where[where >= TAIL] - np.uint32(TAIL)
        tail, added = self._tail, []
        sealed, lost = self._sealed, {segment: len(positions) for segment, positions, _ in gone}
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
            self._note(before)
            tail, dead = _kernels.Tail(), dead[:0]
        else:
            self._check(numbers, boxes, delete)
            added = self._seal(numbers, boxes, kept, arranged)
        self._make_room(_ends(numbers)[1] + 1)
        sealed = Sealed(kept + [segment for segment, _, _ in added], self._sealed.where)

        def commit() -> None:
            sealed.where[delete] = NOWHERE
            if few and len(numbers):
                tail.publish(sealed.where)
            for segment, positions, alive in gone:
                segment.delete(positions, alive)
                self._crowded |= segment.hollow
            if len(dead):
                tail.remove(dead)
            for _, some, locations in added:
                sealed.where[some] = locations
            self._crowded |= len(added) > 0
            self._tail, self._sealed = tail, sealed

        return commit

    def _change_tail(self, delete: I64, numbers: I64, boxes: Boxes) -> Callable[[], None]:
        """Prepare a change in which at most one box goes, and those that come fit into the tail."""
        gone, location = NOWHERE, NOWHERE
        if len(delete):
            gone = int(delete[0])
            location = int(self._sealed.where[gone]) if 0 <= gone < len(self._sealed.where) else NOWHERE
            if location == NOWHERE:
                raise MatcherError("a box number is not in use")
            self._make_room(0)
        tail = self._stage(delete, numbers, boxes) if len(numbers) else self._tail
        sealed = self._sealed
        segment, position = None, location - TAIL
        if location < TAIL:
            segment = sealed.at(location)
            position = location - segment.base
            alive = segment.writable_alive()
            if segment.live == 1:
                sealed = Sealed([one for one in sealed.segments if one is not segment], sealed.where)

        def commit() -> None:
            if location != NOWHERE:
                sealed.where[gone] = NOWHERE
            if len(numbers):
                tail.publish(sealed.where)
            if segment is not None:
                segment.delete_one(position, alive)
                if segment.hollow:
                    self._crowded = True
            elif location != NOWHERE:
                tail.remove_one(position)
            self._tail, self._sealed = tail, sealed

        return commit

    def _stage(self, delete: I64, numbers: I64, boxes: Boxes) -> _kernels.Tail:
        """A tail in which these boxes are staged."""
        if len(boxes) != len(numbers):
            raise MatcherError(f"{len(numbers)} numbers for {len(boxes)} boxes")
        most = _ends(numbers)[1]
        if most < TAIL:
            self._make_room(most + 1)
        tail = self._tail = self._tail.with_room(len(numbers), len(boxes.attribute))
        if not tail.stage(
            self._sealed.where,
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
            self.space = space

        return self, commit

    # --- merging

    def prepare(self) -> Callable[[], None] | None:
        """Merges what has grown many or hollow. Matching may go on meanwhile, changes may not; the returned commit
        swaps the result in. None where nothing is worth doing."""
        chosen = self._worth_merging()
        if not chosen:
            return None
        merge = Merge(chosen)
        merge.build(self.merge_segments)
        self._place(merge)
        merge.locate(self.where)
        return lambda: self.finish_merge(merge)

    def merge_behind(self, alone: AbstractContextManager[None]) -> None:
        """Does in the background what `prepare` does. The caller is in `alone`, a section in which nobody changes the
        engine; the merge enters it for short moments. A writer that is faster than the background merges by itself
        where MOST_IDLE segments have piled up."""
        if not self._crowded:
            return
        merge = self.begin_merge()
        if merge is not None:
            merge.start(partial(merge.merge, self, alone))
        if len(self._idle()) > MOST_IDLE and (commit := self.prepare()):
            commit()

    def begin_merge(self) -> Merge | None:
        self._merges = [merge for merge in self._merges if merge.under_way]
        self._crowded = False
        if len(self._sealed.segments) < self._wait_for:
            return None
        chosen = self._worth_merging(min((merge.size // SMALLER for merge in self._merges), default=TAIL))
        if not chosen:
            return None
        merge = Merge(chosen)
        self._merges = [*self._merges, merge]
        return merge

    def place_merge(self, merge: Merge) -> bool:
        """False where the merge was dropped."""
        known = merge in self._merges
        if known:
            self._place(merge)
        return known

    def _place(self, merge: Merge) -> None:
        merge.added = self._placed(merge.built, self._sealed.segments)

    def finish_merge(self, merge: Merge) -> None:
        merge.catch_up(self.where)
        kept = [segment for segment in self._sealed.segments if segment not in merge.sources]
        kept += [segment for segment, _, _ in merge.added if segment.live]
        self.drop_merge(merge)
        self._note(*(numbers for _, numbers, _ in merge.added))
        self._crowded, self._wait_for = True, 0
        self._sealed = Sealed(kept, merge.where)

    def _note(self, *numbers: I64) -> None:
        """Tell merges that will soon switch over which boxes change, or may change."""
        for merge in self._merges:
            if merge.placed:
                merge.changed += numbers

    def drop_merge(self, merge: Merge, failed: bool = False) -> None:
        self._merges = [one for one in self._merges if one is not merge]
        if failed:
            self._wait_for = len(self._sealed.segments) + RETRY_AFTER

    def _idle(self) -> list[Segment]:
        """Segments that no merge works on."""
        busy = {segment for merge in self._merges for segment in merge.sources}
        return [segment for segment in self._sealed.segments if segment not in busy]

    def _worth_merging(self, most: int = TAIL) -> list[Segment]:
        """Segments from which sizes no longer double, and those with too many dead: O(log n) rebuilds per box. They
        have `most` boxes together."""
        idle = self._idle()
        chosen: list[Segment] = []
        for kind in KINDS:
            smaller = self._tail.live
            run: list[Segment] = []
            end = 0
            for segment in sorted((one for one in idle if one.kind == kind), key=lambda one: one.live):
                if smaller + segment.live > most:
                    break
                run.append(segment)
                if len(run) > 1 and segment.live < 2 * smaller:
                    end = len(run)
                smaller += segment.live
            chosen += run[:end]
        size = sum(segment.live for segment in chosen)
        for segment in idle:
            if segment.hollow and segment not in chosen and size + segment.live <= most:
                chosen.append(segment)
                size += segment.live
        return chosen

    # --- matching

    def match(self, points: Points, threads: int = 1) -> Hits:
        return Hits(*self._match(points, threads=threads)[:2])

    def match_event(
        self,
        plan: _kernels.EventPlan,
        owners: _kernels.Owners,
        ids: _kernels.Ids,
        event: Any,
        limit: int,
        holds: Callable[[Any, list[int]], list[bool]],
        as_list: bool,
        anchored: Anchored | None = None,
    ) -> Any:
        """The ids of the subscriptions that one event matches, most urgent first, at most `limit` (-1: all): everything
        from the mapping to its ids in one native call. `holds(event, slots)` decides where boxes leave doubt.
        `anchored` are the covers with anchors, and what the event brings to find them."""
        kernels, tail, simd = self._sealed.kernels, self._tail, self.simd
        if anchored is None:
            return _kernels.match_event(plan, kernels, tail, simd, owners, ids, event, limit, holds, as_list)
        covers, sets = anchored
        return _kernels.match_event(plan, kernels, tail, simd, owners, ids, event, limit, holds, as_list, covers, sets)

    def match_levels(self, points: Points) -> Iterator[tuple[int, I32]]:
        """(priority, numbers) of the one event in `points`, a level at a time, most urgent first, as asked for.
        Blocks are visited when the first level that they hold is asked for; postings and the tail, which are cheap,
        at once."""
        if len(points) != 1:
            raise MatcherError(f"match_levels takes one event at a time, got {len(points)}")
        segments = self._sealed.segments
        bitmaps = [segment for segment in segments if segment.kind == "bitmap"]
        others = [segment for segment in segments if segment.kind != "bitmap"]
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
        return np.diff(_kernels.count(self._sealed.kernels, self._tail, points.low, points.high, self.simd, threads))

    # --- state

    def boxes(self, numbers: I64) -> Boxes:
        sealed = self._sealed
        where = self._locate(numbers, sealed)
        found: list[Boxes] = []
        rows: list[NDArray[np.intp]] = [np.flatnonzero(where >= TAIL)]
        if len(rows[0]):
            found.append(Boxes(*self._tail.decode(where[rows[0]] - np.uint32(TAIL))))
        for segment, some, positions in self._by_segment(where, sealed):
            rows.append(some)
            found.append(segment.boxes(positions))
        return Boxes.concat(found).take(np.argsort(np.concatenate(rows)))

    def numbers(self) -> I64:
        return np.flatnonzero(self.where != NOWHERE)

    def __len__(self) -> int:
        return self._tail.live + sum(segment.live for segment in self._sealed.segments)

    def nbytes(self) -> int:
        sealed = self._sealed
        return sealed.where.nbytes + self._tail.nbytes + sum(segment.nbytes for segment in sealed.segments)

    def kept_options(self) -> dict[str, Any]:
        return {"compact": True} if self._compact else {}

    def describe(self) -> dict[str, Any]:
        """What is held where, for people and benchmarks."""
        segments = [
            {
                "kind": one.kind,
                "compact": one.compact,
                "boxes": one.live,
                "dead": one.members - one.live,
                "bytes": one.nbytes,
            }
            for one in self._sealed.segments
        ]
        return {"segments": segments, "tail": self._tail.live, "bytes": self.nbytes(), "simd": self.simd}

    def arrays(self) -> dict[str, NDArray[Any]]:
        """The complete state as named flat arrays, for `from_arrays`."""
        positions = self._tail.living()
        numbers = self._tail.numbers(positions)
        sealed = self._sealed  # once: a merge may replace it
        segments, where = sealed.segments, sealed.where
        if len(numbers):
            where = where.copy()
            where[numbers] = np.arange(TAIL, TAIL + len(numbers), dtype=np.uint32)
        fields = ("tail.offsets", "tail.attribute", "tail.low", "tail.high", "tail.priority")
        found: dict[str, NDArray[Any]] = {"where": where, "tail.numbers": numbers}
        found.update(zip(fields, self._tail.decode(positions), strict=True))
        found["segments"] = np.array(
            [[KINDS.index(one.kind), one.base, one.live] for one in segments], np.int64
        ).reshape(-1, 3)
        for i, segment in enumerate(segments):
            found.update({f"segment{i}.{name}": array for name, array in segment.arrays.items()})
        if self._compact:
            found["compact"] = np.ones(1, np.uint8)
        return found

    @classmethod
    def from_arrays(cls, space: Space, arrays: Mapping[str, NDArray[Any]], **options: Any) -> Self:
        """An engine on arrays that `arrays` gave, which may be read-only maps of files. Nothing is copied before it is
        changed; what kernels use as an index is checked first (src/engine/format/validate.hpp). Without the option
        `compact` it goes on as the engine did that gave them."""
        if "compact" in arrays:
            flag = array_checks.column(arrays, "compact", np.uint8)
            array_checks.require(flag.tolist() == [1], "compact", "it is no flag")
            options = {"compact": True} | options
        engine = cls(space, **options)
        where = array_checks.column(arrays, "where", np.uint32)
        array_checks.require(len(where) <= TAIL, "where", "it is too long")
        segments: list[Segment] = []
        for i, (kind, base, live) in enumerate(_segments_of(arrays)):
            prefix = f"segment{i}."
            parts = {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}
            with _naming(prefix):
                segments.append(Segment(KINDS[kind], base, live, parts))
            few = segments[-1].attributes <= space.attributes
            array_checks.require(few, f"{prefix}{PER_ATTRIBUTE[KINDS[kind]][0]}", "it has too many attributes")
        numbers, boxes = array_checks.boxes(arrays, "tail.", space.attributes)
        _check_opened(segments, where, numbers)
        engine._sealed = Sealed(segments, where)
        if len(numbers):
            engine._tail = engine._stage(numbers, numbers, boxes)
            engine._tail.publish(np.empty_like(where))  # `where` knows them already, and may be read-only
        engine._crowded = True
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
        kernels = self._sealed.kernels if segments is None else [segment.kernel for segment in segments]
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
        self._check_boxes(boxes)

    def _check_boxes(self, boxes: Boxes) -> None:
        least, most = _ends(boxes.attribute)
        if least < 0 or most >= self.space.attributes:
            raise MatcherError(f"a box constrains an attribute outside 0..{self.space.attributes - 1}")
        if _ends(boxes.priority)[1] >= LEVELS:
            raise MatcherError(f"priorities must lie in 0..{LEVELS - 1}")

    def _any_used(self, numbers: I64, freed: I64) -> bool:
        """Whether some of the numbers are in use and not freed."""
        if len(numbers) <= MAX_SCALAR_BOXES:
            where, end = self.where, len(self.where)
            taken = {number for number in numbers.tolist() if number < end and where[number] != NOWHERE}
            return bool(taken) and not taken.issubset(freed.tolist())
        known = numbers[numbers < len(self.where)]
        used = known[self.where[known] != NOWHERE]
        return len(used) > 0 and not np.isin(used, freed).all()

    def _locate(self, numbers: I64, sealed: Sealed | None = None) -> U32:
        known = (sealed or self._sealed).where
        numbers = np.asarray(numbers, np.int64)
        least, most = _ends(numbers)
        where: U32 = known[numbers] if least >= 0 and most < len(known) else np.full(1, NOWHERE, np.uint32)
        if _ends(where)[1] == NOWHERE:
            raise MatcherError("a box number is not in use")
        return where

    def build_segments(self, numbers: I64 | None, boxes: Boxes) -> list[Built]:
        """The segments that these boxes become; without numbers as `Arranged` has them."""
        if not len(boxes):
            return []
        low, high = boxes.low, boxes.high
        with _too_much():
            return _kernels.build(
                numbers, boxes.offsets, boxes.attribute, low, high, boxes.priority, *self._build_options()
            )

    def merge_segments(self, segments: list[Segment], alive: list[NDArray[np.uint64]]) -> list[Built]:
        """The segments that the boxes of some segments become; `alive` has a bit for each box that stays."""
        with _too_much():
            return _kernels.merge([segment.kernel for segment in segments], alive, *self._build_options())

    def _build_options(self) -> tuple[int, int, int, int, str, bool, float, int, int]:
        # Two-sided events come as ranges, which would read most of the postings; bitmaps bear ranges, but want
        # attributes that most boxes constrain.
        bitmap_share = BITMAP_SHARE if self._forced == "auto" and self.space.information else 2.0
        seed = self._seed or (int.from_bytes(os.urandom(8)), int.from_bytes(os.urandom(8)))
        return self.space.attributes, *self._options, self._forced, self._compact, bitmap_share, *seed

    def _seal(
        self, numbers: I64, boxes: Boxes, kept: list[Segment], arranged: Arranged | None = None
    ) -> list[tuple[Segment, I64, U32]]:
        built = self.build_segments(numbers, boxes) if arranged is None else arranged.numbered(int(numbers[0]))
        return self._placed(built, kept)

    def _placed(self, built: list[Built], kept: list[Segment]) -> list[tuple[Segment, I64, U32]]:
        """New segments, and which number is where, at locations that the segments `kept` leave free, and those that are
        being merged: some may have lost their last box."""
        taken = list(kept)
        for merge in self._merges:
            taken += [segment for segment in merge.sources if segment not in kept]
            taken += [segment for segment, _, _ in merge.added]
        added: list[tuple[Segment, I64, U32]] = []
        for kind, arrays, some, positions in built:
            segment = Segment(kind, 0, len(some), arrays)
            segment.base = _free_base(taken, segment.size)
            taken.append(segment)
            added.append((segment, some, positions + np.uint32(segment.base)))
        return added

    def _make_room(self, capacity: int) -> None:
        """Makes `where` private and long enough."""
        where = self._sealed.where
        held = len(where)
        if capacity > held:
            grown = np.full(max(capacity, held * 5 // 4 if held else 0), NOWHERE, np.uint32)
            grown[:held] = where
            self._sealed = Sealed(self._sealed.segments, grown)
        elif not where.flags.writeable:
            self._sealed = Sealed(self._sealed.segments, where.copy())

    def _by_segment(self, where: U32, sealed: Sealed | None = None) -> Iterator[tuple[Segment, NDArray[np.intp], U32]]:
        """Which rows of `where` lie in which segment, and their positions in it; the rest lies in the tail."""
        least, most = _ends(where)
        for segment in (sealed or self._sealed).segments if len(where) else ():
            base, end = segment.base, segment.end
            if most < base or least >= end:
                continue
            if base <= least and most < end:
                yield segment, np.arange(len(where)), where - np.uint32(base)
                return
            rows = np.flatnonzero((where >= base) & (where < end))
            if len(rows):
                yield segment, rows, where[rows] - np.uint32(base)


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


def _check_opened(segments: list[Segment], where: U32, tail: I64) -> None:
    """Whether segments hold what kernels can use, and `where` says of every living box where it is."""
    end = 0
    for segment in sorted(segments, key=lambda one: one.base):
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


@contextmanager
def _too_much() -> Iterator[None]:
    """How the kernels say that there is too much of something."""
    try:
        yield
    except ValueError as error:
        raise MatcherError(str(error)) from None


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
