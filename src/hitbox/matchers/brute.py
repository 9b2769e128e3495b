"""brute: the oracle. Every box against every point, one comparison per constraint; nothing to get wrong.

Cost: match O(boxes x constraints), insert and delete O(1), memory 20 bytes per constraint.
"""

from __future__ import annotations

import numpy as np

from hitbox.encoding.arrays import Hits, Points
from hitbox.matchers.box_store import StoredMatcher


class Brute(StoredMatcher):
    intervals = True

    def match(self, points: Points) -> Hits:
        numbers = self.store.living()
        boxes = self.store.boxes(numbers)
        owner = np.repeat(np.arange(len(numbers)), np.diff(boxes.offsets))
        rows = []
        for low, high in zip(points.low, points.high, strict=True):
            fails = (low[boxes.attribute] > boxes.high) | (high[boxes.attribute] < boxes.low)
            hit = np.ones(len(numbers), bool)
            hit[owner[fails]] = False
            rows.append(numbers[hit])
        return Hits.of(rows)
