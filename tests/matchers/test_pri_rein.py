"""Pri-REIN: the order of priorities, and the order within one."""

from __future__ import annotations

import numpy as np
import pytest

from hitbox.encoding.arrays import Boxes, Points, Space
from hitbox.errors import MatcherError
from hitbox.matchers import make
from hitbox.matchers.pri_rein import PriRein, selectivity
from support.matcher_data import EVENT, table_i


@pytest.mark.parametrize("name", ["pri-rein", "pri-rein-s"])
def test_pri_rein_figures_8_and_9(name: str) -> None:
    levels = [1, 1, 2, 0, 2, 0, 1, 2, 0, 1]  # the paper's 0 is the most urgent; s3 is above s1
    pri = table_i(name, [9 - level for level in levels])
    assert isinstance(pri, PriRein)
    assert pri.match(EVENT)[0].tolist() == [3, 1]
    assert [(priority, numbers.tolist()) for priority, numbers in pri.match_levels(EVENT)] == [(9, [3]), (8, [1])]


@pytest.mark.parametrize("name", ["pri-rein", "pri-rein-s"])
def test_order_within_a_priority(name: str) -> None:
    rng = np.random.default_rng(3)
    pri = make(name, Space.of(3, 0, 100))
    assert isinstance(pri, PriRein)
    numbers = rng.permutation(400)
    ends = np.sort(rng.integers(0, 101, (400, 3, 2)), axis=2)
    boxes = Boxes.of_dense(ends[:, :, 0], ends[:, :, 1], rng.integers(3, 6, 400).astype(np.uint8))
    for part in (slice(0, 300), slice(300, 301), slice(301, 400)):
        pri.insert(numbers[part], boxes.take(np.arange(400)[part]))
    gone = numbers[rng.permutation(400)[:90]]
    for part in (gone[:1], gone[1:]):
        pri.delete(part)
    arrival = np.empty(400)
    arrival[numbers] = np.arange(400)
    for event in rng.integers(0, 101, (20, 3)):
        point = Points.of([event])
        found = pri.match(point)[0]
        held = pri.boxes(found)
        rank = arrival[found] if name == "pri-rein" else -selectivity(held, pri.grid.share(held)).round(12)
        order = np.lexsort((rank, -held.priority.astype(int)))
        np.testing.assert_array_equal(rank[order], rank)
        np.testing.assert_array_equal(held.priority[order], held.priority)
        by_level = list(pri.match_levels(point))
        assert np.concatenate([[], *(part for _, part in by_level)]).tolist() == found.tolist()


def test_levels_take_one_event() -> None:
    with pytest.raises(MatcherError, match="one event"):
        list(PriRein(Space.of(1)).match_levels(Points.of([[1], [2]])))
