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
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from hitbox.encoding.arrays import I64
from hitbox.engine import background
from hitbox.engine.background import Background
from hitbox.engine.segment import NOWHERE, U32, Arrays, Segment
from hitbox.errors import HitboxError

Built = tuple[str, Arrays, I64, U32]  # a segment: kind, arrays, the numbers of its boxes and their positions


class Merging(Protocol):
    """What a merge asks of its engine."""

    def merge_segments(self, segments: list[Segment], alive: list[NDArray[np.uint64]]) -> list[Built]: ...
    def merge_behind(self, alone: AbstractContextManager[None]) -> None: ...
    def place_merge(self, merge: Merge) -> bool: ...
    def finish_merge(self, merge: Merge) -> None: ...
    def drop_merge(self, merge: Merge, failed: bool) -> None: ...
    @property
    def where(self) -> U32: ...


class Merge(Background):
    def __init__(self, sources: list[Segment]):
        super().__init__()
        self.sources = sources
        self.size = sum(segment.live for segment in sources)
        self.changed: list[I64] = []
        """Numbers of boxes that may have come, gone or moved since it was placed."""
        self.built: list[Built] = []
        self.added: list[tuple[Segment, I64, U32]] = []
        """The new segments, their numbers and locations."""
        self.where: U32 = np.zeros(0, np.uint32)
        self._alive = [segment.arrays["alive"].copy() for segment in sources]

    def build(self, build: Callable[[list[Segment], list[NDArray[np.uint64]]], list[Built]]) -> None:
        self.built = build(self.sources, self._alive)

    @property
    def placed(self) -> bool:
        return len(self.added) > 0

    def locate(self, where: U32) -> None:
        """Where boxes will be. `where` may change meanwhile: what does is among `changed`."""
        self.where = where.copy()
        for segment, numbers, locations in self.added:
            stay = self.holds(self.where[numbers])
            self.where[numbers[stay]] = locations[stay]
            if not stay.all():
                segment.delete(locations[~stay] - np.uint32(segment.base), segment.arrays["alive"])

    def holds(self, locations: U32) -> NDArray[np.bool_]:
        """Which locations lie in the sources. No box ever comes into a segment, so what is there was there before."""
        found = np.zeros(len(locations), bool)
        for segment in self.sources:
            found |= (locations >= segment.base) & (locations < segment.end)
        return found

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

    def merge(self, engine: Merging, alone: AbstractContextManager[None]) -> None:
        """Do all that is left, and what is worth merging next. `alone` is a section in which nobody changes the
        engine."""
        failed = True
        try:
            self.build(engine.merge_segments)
            with alone:
                known = engine.place_merge(self)
            if known:
                self.locate(engine.where)
                with alone:
                    engine.finish_merge(self)
                    engine.merge_behind(alone)
            failed = False
        except (MemoryError, HitboxError):
            pass  # the segments stay as they are
        except RuntimeError:
            if not background.ending:
                raise
        finally:
            if failed and not background.ending:
                with alone:  # another thread may be adding a merge
                    engine.drop_merge(self, failed)
