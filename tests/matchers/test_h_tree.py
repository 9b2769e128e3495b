"""H-Tree: pieces, copies, leaves, and what it refuses."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from hitbox.encoding.arrays import MISSING, Boxes, Points, Space
from hitbox.errors import MatcherError
from hitbox.matchers import make
from support.matcher_data import ranges, rows


def test_h_tree_refuses_an_exploding_split_before_it_changes_anything() -> None:
    rng = np.random.default_rng(7)
    space = Space.of(6, 0, 1000)
    matcher: Any = make("h-tree", space, cells=6, indexed=6, limit=200_000)
    narrow = ranges(rng, 100, 6, 100)
    matcher.insert(np.arange(100), narrow)
    points = Points.of(rng.integers(0, 1001, (20, 6)))
    want, entries = rows(matcher, points), matcher.lists.live
    wide = ranges(rng, 300, 6, 500)
    with pytest.raises(MatcherError, match=r"beyond limit=200000; nothing was inserted"):
        matcher.insert(np.arange(100, 400), wide)
    assert len(matcher) == 100
    assert matcher.lists.live == entries
    assert rows(matcher, points) == want
    matcher.insert(np.arange(100, 110), wide.take(np.arange(10)))
    assert len(matcher) == 110


@pytest.mark.parametrize(("width", "pieces"), [(1, 1), (160, 1), (500, 3), (999, 6)])
def test_h_tree_splits_a_range_into_pieces_no_wider_than_a_cell(width: int, pieces: int) -> None:
    matcher: Any = make("h-tree", Space.of(2, 0, 1000), cells=6, indexed=2)
    low = 1 if width == 999 else 250
    matcher.insert(np.array([0]), Boxes.of([{0: (low, low + width), 1: (low, low + width)}]))
    assert matcher.lists.live == pieces**2
    keys = np.arange(0, 1001, 7)
    hits = rows(matcher, Points.of(np.stack([keys, keys], axis=1)))
    assert hits == [[0] if low <= key <= low + width else [] for key in keys]


@pytest.mark.parametrize(("base", "levels"), [(2, 1), (70, 1), (2, 2), (7, 2), (70, 2), (3, 3), (7, 4), (9, 3)])
def test_h_tree_has_a_copy_in_every_leaf_of_a_box(base: int, levels: int) -> None:
    from hitbox.matchers.h_tree import leaves_of

    ends = np.sort(np.random.default_rng(16).integers(0, base, (2, 20, levels)).astype(np.int32), axis=0)
    first, last = ends[0], np.minimum(ends[1], ends[0] + 4)
    leaves, owners = leaves_of(np.arange(100, 120), first, last, base)
    expected = [
        (sum(branch * base ** (levels - 1 - at) for at, branch in enumerate(path)), 100 + box)
        for box in range(20)
        for path in itertools.product(*(range(first[box, at], last[box, at] + 1) for at in range(levels)))
    ]
    assert sorted(zip(leaves.tolist(), owners.tolist(), strict=True)) == sorted(expected)


def test_h_tree_indexes_the_attributes_that_most_boxes_constrain() -> None:
    matcher: Any = make("h-tree", Space.of(4, 0, 10), indexed=2)
    matcher.insert(np.arange(3), Boxes.of([{1: (1, 2), 3: (1, 2)}, {3: (4, 5)}, {1: (0, 3), 2: (MISSING, MISSING)}]))
    assert matcher.chosen.tolist() == [1, 3]


def test_h_tree_with_too_many_leaves_is_refused() -> None:
    with pytest.raises(MatcherError, match="leaves, beyond limit"):
        make("h-tree", Space.of(30), cells=9, indexed=12)
