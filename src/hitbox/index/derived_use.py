"""Which derived attributes (encoding/derived.py) living subscriptions need: only these are computed for events."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import numpy as np
from numpy.typing import NDArray

from hitbox.encoding.arrays import I64
from hitbox.encoding.keys import Derived, Keys

Numbers = NDArray[np.signedinteger]


class DerivedUse:
    """How many constraints of living boxes, and tests of living programs, are on each derived attribute. A program may
    test what its boxes no longer constrain. Changes come in two steps, as everywhere."""

    def __init__(self, first: int, counts: I64):
        """`first` is the number of the first derived attribute."""
        self._first, self.counts = first, counts
        self.used: list[int] = _used(first, counts)
        """The numbers of those in use. It changes in place: whoever encodes events holds it."""
        self.changes = 0
        """How often it has changed."""

    @classmethod
    def none(cls, keys: Keys) -> DerivedUse:
        return cls(len(keys.schema), np.zeros(len(keys.derived), np.int64))

    def changing(self, gone: Numbers, come: Numbers) -> Callable[[], None]:
        """Prepare for constraints and tests that go and that come, by the numbers of their attributes; the commit must
        be alone."""
        counts = self.counts + self._count(come)
        if len(gone):
            counts -= self._count(gone)
        used = _used(self._first, counts) if ((counts > 0) != (self.counts > 0)).any() else None

        def commit() -> None:
            self.counts = counts
            if used is not None:
                self.used[:] = used
                self.changes += 1

        return commit

    def _count(self, numbers: Numbers) -> I64:
        at = numbers[numbers >= self._first] - self._first
        return np.bincount(at, minlength=len(self.counts))

    def places(self, wanted: Sequence[Derived], most: int, kept: Collection[int | None]) -> dict[int, Derived]:
        """Numbers for new derived attributes: of ones that nobody uses, but not those that are `kept`, or the next
        ones, up to `most` of them."""
        unused = (self._first + at for at in np.flatnonzero(self.counts == 0).tolist())
        free = [number for number in unused if number not in kept]
        new = range(self._first + len(self.counts), self._first + max(most, len(self.counts)))
        return dict(zip([*free, *new], wanted, strict=False))

    def grown(self, derived: int) -> DerivedUse:
        """These counts, with room for more derived attributes."""
        return DerivedUse(self._first, np.append(self.counts, np.zeros(derived - len(self.counts), np.int64)))


def _used(first: int, counts: I64) -> list[int]:
    return [first + at for at in np.flatnonzero(counts > 0).tolist()]
