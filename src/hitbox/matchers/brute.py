"""brute: the oracle. Every box against every point, one comparison a constraint; nothing to get wrong.

Cost: match O(boxes x constraints), insert and delete O(1), memory 20 bytes a constraint.
"""

from __future__ import annotations

import numpy as np

from hitbox.encoding.arrays import I64, Boxes, Hits, Points, Space
from hitbox.matchers.base import BoxStore, Matcher


class Brute(Matcher):
    intervals = True

    def __init__(self, space: Space):
        self.space = space
        self.store = BoxStore()

    def insert(self, numbers: I64, boxes: Boxes) -> None:
        self.store.insert(numbers, boxes)

    def delete(self, numbers: I64) -> None:
        self.store.delete(numbers)

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

    def boxes(self, numbers: I64) -> Boxes:
        return self.store.boxes(numbers)

    def __len__(self) -> int:
        return self.store.count

    def nbytes(self) -> int:
        return self.store.nbytes()
