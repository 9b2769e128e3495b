"""Compound: a tree for each role."""

from __future__ import annotations

from typing import Any

import numpy as np

from hitbox.encoding.arrays import Space
from hitbox.matchers import make


def test_compound_has_a_tree_for_each_role() -> None:
    space = Space(np.zeros(5, np.int64), np.full(5, 9), (1, 4))
    matcher: Any = make("compound", space)
    assert [part.tolist() for part in matcher.parts] == [[0, 2, 3], [1, 4]]
    assert len(make("compound", Space.of(5)).parts) == 1  # type: ignore[attr-defined]
