"""simple: one subscription after the other, each until its first constraint that fails.

The baseline of the Pri-REIN paper ("Simple"): no index, no preparing stage. The rows of a box lie together, so a match
reads the arena of bounds once from front to back:

    number      0         1      2
    attribute [ 0  4  7 | 1  2 | 0 ... ]
    low       [ .  .  . | .  . | . ... ]      a box is left at its first miss
    high      [ .  .  . | .  . | . ... ]

Cost: match O(n) boxes, two constraints each on average at selectivity 1/2; insert and delete O(1);
memory 20 bytes per constraint and 13 per box.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from hitbox.encoding.arrays import I32, I64, Hits, Points
from hitbox.matchers.box_store import TimedMatcher
from hitbox.matchers.kernels import grown, now


class Simple(TimedMatcher):
    intervals = True

    def match_timed(self, points: Points, stamps: I64) -> Hits:
        store = self.store
        arrays = (store.start, store.length, store.attribute, store.low, store.high)
        return Hits(*scan(points.low, points.high, *arrays, stamps))


@njit(cache=True, nogil=True)
def scan(
    lows: I64, highs: I64, start: I64, length: I32, attribute: I32, low: I64, high: I64, stamps: I64
) -> tuple[I64, I32]:
    offsets = np.zeros(len(lows) + 1, np.int64)
    matched = np.empty(64, np.int32)
    used = 0
    for event in range(len(lows)):
        for number in range(len(start)):
            row = start[number]
            end = row + length[number]
            while row < end and lows[event, attribute[row]] <= high[row] and highs[event, attribute[row]] >= low[row]:
                row += 1
            if row == end:  # a number that is not in use has length -1
                matched = grown(matched, used + 1)
                matched[used] = number
                if len(stamps):
                    stamps[used] = now()
                used += 1
        offsets[event + 1] = used
    return offsets, matched[:used].copy()
