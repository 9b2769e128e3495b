"""Several segments become one, in a thread of its own, while others match and change.

    begin    choose segments, note which of their boxes live        short, nobody changes the engine
    build    decode these boxes and build what takes their place    long
    place    find locations for it                                  short, nobody changes the engine
    locate   take out what has gone, write down where boxes are     the engine notes the numbers of what changes
    finish   the same for what was noted, and switch over           short, nobody changes the engine

Nobody waits for a merge. What it replaces stays until `finish` switches over with one assignment, so readers need not
stop, and a fork, an interrupt or a lack of memory finds the old segments or the new ones. A merge that fails is
dropped. The child of a fork has no such threads: it drops the merges that were under way.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial

import numpy as np
from numpy.typing import NDArray

from hitbox.encoding.arrays import I64
from hitbox.engine import background
from hitbox.engine.background import Background
from hitbox.engine.builder import Built, SegmentBuilder
from hitbox.engine.content import KINDS, TAIL, Content, Sealed
from hitbox.engine.segment import NOWHERE, U32, Segment
from hitbox.errors import HitboxError, MatcherError

SMALLER = 8
"""How much smaller a merge must be to run beside another: so there are few, and new segments need not wait."""
MOST_IDLE = 64
"""Segments that nobody merges from which a writer merges them by itself."""
RETRY_AFTER = 8
"""How many segments must come before a merge is tried again after one that failed."""
Placed = tuple[Segment, I64, U32]
"""A new segment, the numbers of its boxes and their locations."""


class Merge(Background):
    def __init__(self, sources: list[Segment]):
        super().__init__()
        self.sources = sources
        self.size = sum(segment.live for segment in sources)
        self.changed: list[I64] = []
        """Numbers of boxes that may have come, gone or moved since it was placed."""
        self.built: list[Built] = []
        self.added: list[Placed] = []
        self.where: U32 = np.zeros(0, np.uint32)
        self._alive = [segment.arrays["alive"].copy() for segment in sources]

    def build(self, builder: SegmentBuilder) -> None:
        self.built = builder.merge(self.sources, self._alive)

    @property
    def placed(self) -> bool:
        return len(self.added) > 0

    def locate(self, where: U32) -> None:
        """Write down where boxes will be. If `where` changes meanwhile, the numbers of those boxes are in `changed`."""
        self.where = where.copy()
        for segment, numbers, locations in self.added:
            stay = self.holds(self.where[numbers])
            self.where[numbers[stay]] = locations[stay]
            if not stay.all():
                segment.delete(locations[~stay] - np.uint32(segment.base), segment.arrays["alive"])

    def holds(self, locations: U32) -> NDArray[np.bool_]:
        """Which locations lie in the sources. No box ever comes into a segment, so what is there was there before."""
        inside = np.zeros(len(locations), bool)
        for segment in self.sources:
            inside |= (locations >= segment.base) & (locations < segment.end)
        return inside

    def catch_up(self, where: U32) -> None:
        """Locate what has changed since `locate`; `where` says where boxes are now."""
        if len(self.where) < len(where):
            grown = np.full(len(where), NOWHERE, np.uint32)
            grown[: len(self.where)] = self.where
            self.where = grown
        changed = np.concatenate(self.changed) if self.changed else np.zeros(0, np.int64)
        changed = changed[(changed >= 0) & (changed < len(where))]
        changed = changed[~self.holds(where[changed])]
        before = self.where[changed]
        for segment, _, _ in self.added:
            dead = np.unique(before[(before >= segment.base) & (before < segment.end)])
            segment.delete(dead - np.uint32(segment.base), segment.arrays["alive"])
        self.where[changed] = where[changed]


class Merges:
    """The merges of an engine: those under way, and what is worth merging next."""

    def __init__(self, content: Content, builder: SegmentBuilder):
        self._content, self._builder = content, builder
        self.under_way: list[Merge] = []
        self.crowded = False
        """Whether a merge may be worth it: something was sealed, has grown hollow, or was merged."""
        self._wait_for = 0
        """Segments that must be there before the next merge, after one that failed."""

    def now(self) -> Callable[[], None] | None:
        """Merges what has grown many or hollow; the returned commit swaps the result in. None where nothing is worth
        doing."""
        chosen = self._worth_merging()
        if not chosen:
            return None
        merge = Merge(chosen)
        merge.build(self._builder)
        merge.added = self.placed(merge.built, self._content.sealed.segments)
        merge.locate(self._content.sealed.where)
        return lambda: self.finish(merge)

    def behind(self, alone: AbstractContextManager[None]) -> None:
        """Does in the background what `now` does. The caller is in `alone`, a section in which nobody changes the
        engine; the merge enters it for short moments. A writer that is faster than the background merges by itself
        where MOST_IDLE segments have piled up."""
        if not self.crowded:
            return
        merge = self.begin()
        if merge is not None:
            merge.start(partial(self._run, merge, alone))
        if len(self.idle()) > MOST_IDLE and (commit := self.now()):
            commit()

    def _run(self, merge: Merge, alone: AbstractContextManager[None]) -> None:
        """All that is left of a merge, and then what is worth merging next."""
        failed = True
        try:
            merge.build(self._builder)
            with alone:
                known = self.place(merge)
            if known:
                merge.locate(self._content.sealed.where)
                with alone:
                    self.finish(merge)
                    self.behind(alone)
            failed = False
        except (MemoryError, HitboxError):
            pass  # the segments stay as they are
        except RuntimeError:
            if not background.ending:
                raise
        finally:
            if failed and not background.ending:
                with alone:  # another thread may be adding a merge
                    self.drop(merge, failed)

    def begin(self) -> Merge | None:
        self.under_way = [merge for merge in self.under_way if merge.under_way]
        self.crowded = False
        if len(self._content.sealed.segments) < self._wait_for:
            return None
        chosen = self._worth_merging(min((merge.size // SMALLER for merge in self.under_way), default=TAIL))
        if not chosen:
            return None
        merge = Merge(chosen)
        self.under_way = [*self.under_way, merge]
        return merge

    def place(self, merge: Merge) -> bool:
        """Choose locations for the new segments; False where the merge was dropped."""
        known = merge in self.under_way
        if known:
            merge.added = self.placed(merge.built, self._content.sealed.segments)
        return known

    def finish(self, merge: Merge) -> None:
        merge.catch_up(self._content.sealed.where)
        kept = [segment for segment in self._content.sealed.segments if segment not in merge.sources]
        kept += [segment for segment, _, _ in merge.added if segment.live]
        self.drop(merge)
        self.note(*(numbers for _, numbers, _ in merge.added))
        self.crowded, self._wait_for = True, 0
        self._content.sealed = Sealed(kept, merge.where)

    def drop(self, merge: Merge, failed: bool = False) -> None:
        self.under_way = [other for other in self.under_way if other is not merge]
        if failed:
            self._wait_for = len(self._content.sealed.segments) + RETRY_AFTER

    def note(self, *numbers: I64) -> None:
        """Tell merges that will soon switch over which boxes change, or may change."""
        for merge in self.under_way:
            if merge.placed:
                merge.changed += numbers

    def placed(self, built: list[Built], kept: list[Segment]) -> list[Placed]:
        """New segments, and which number is where, at locations that the segments `kept` leave free, and those that are
        being merged: some may have lost their last box."""
        taken = list(kept)
        for merge in self.under_way:
            taken += [segment for segment in merge.sources if segment not in kept]
            taken += [segment for segment, _, _ in merge.added]
        added: list[Placed] = []
        for kind, arrays, numbers, positions in built:
            segment = Segment(kind, 0, len(numbers), arrays)
            segment.base = _free_base(taken, segment.size)
            taken.append(segment)
            added.append((segment, numbers, positions + np.uint32(segment.base)))
        return added

    def idle(self) -> list[Segment]:
        """Segments that no merge works on."""
        busy = {segment for merge in self.under_way for segment in merge.sources}
        return [segment for segment in self._content.sealed.segments if segment not in busy]

    def _worth_merging(self, most: int = TAIL) -> list[Segment]:
        """Segments from which sizes no longer double, and those with too many dead: O(log n) rebuilds per box. They
        have `most` boxes together."""
        idle = self.idle()
        chosen: list[Segment] = []
        for kind in KINDS:
            smaller = self._content.tail.live
            run: list[Segment] = []
            end = 0
            by_size = sorted((segment for segment in idle if segment.kind == kind), key=lambda segment: segment.live)
            for segment in by_size:
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


def _free_base(segments: list[Segment], size: int) -> int:
    """The first stretch of locations that no segment uses."""
    base = 0
    for segment in sorted(segments, key=lambda segment: segment.base):
        if segment.base - base >= size:
            break
        base = segment.base + segment.size
    if base + size > TAIL:
        raise MatcherError("the engine is full: more than two thousand million locations")
    return base
