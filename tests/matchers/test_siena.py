"""SIENA: buckets in order."""

from __future__ import annotations

import numpy as np

from hitbox.encoding.arrays import Space
from hitbox.matchers.siena import Siena
from support.random_boxes import random_boxes


def test_inserting_pays_for_the_order_of_the_buckets() -> None:
    """They are in order before anything is matched, however boxes came and went."""
    rng = np.random.default_rng(5)
    siena = Siena(Space.of(4))
    boxes = random_boxes(rng, 400, 4)

    def in_order() -> bool:
        start, size, _, values = siena.buckets.arrays
        return all((np.diff(values[a : a + n]) >= 0).all() for a, n in zip(start, size, strict=True))

    siena.insert(np.arange(300), boxes.take(np.arange(300)))
    assert in_order()
    for number in range(300, 400):
        siena.insert(np.array([number]), boxes.take(np.array([number])))
    assert in_order()
    siena.delete(np.arange(50, 250))
    siena.delete(np.array([7]))
    assert in_order()
    assert siena.buckets.size.sum() > 100
