"""REIN: the paper's Table I, its buckets, and its match counts."""

from __future__ import annotations

import numpy as np
import pytest

from hitbox.encoding.arrays import Points, Space
from hitbox.matchers import make
from hitbox.matchers.rein import HIGH, LOW, Rein
from support.matcher_data import table_i, uniform


@pytest.mark.parametrize("sorted_buckets", [False, True])
def test_rein_marks_on_each_side_of_the_cube(sorted_buckets: bool) -> None:
    rein = table_i("rein", buckets=4, sorted_buckets=sorted_buckets)
    assert isinstance(rein, Rein)
    assert rein.marked(3, 0, HIGH).tolist() == [0]  # right sides left of the cube
    assert rein.marked(3, 0, LOW).tolist() == [4, 5, 6, 7, 8, 9]  # left sides right of it
    assert rein.marked(5, 1, LOW).tolist() == [0, 2, 6]  # bottoms above it
    assert rein.marked(5, 1, HIGH).tolist() == [4, 8, 9]  # tops below it


def test_rein_buckets_of_s1() -> None:
    rein = table_i("rein", buckets=4)
    assert isinstance(rein, Rein)
    start, size, numbers, _ = rein.lists.arrays
    held = [one for one in range(len(size)) if 1 in numbers[start[one] : start[one] + size[one]]]
    # lists: a1 low, a1 high, a2 low, a2 high of four buckets each; the paper has s1 in b0, b2, b1, b2
    assert held == [0 + 0, 4 + 2, 8 + 1, 12 + 2]


# Table IV: constraints -> matches of 400 events against 1000k subscriptions (m = 2 k, w = 0.5).
# Table VI: width -> matches of 400 events against 1000k subscriptions (m = 20, k = 10).
TABLE_IV = {5: 11745128, 7: 3015656, 9: 752285}


TABLE_VI = {0.4: 40166, 0.5: 378886, 0.6: 2329247, 0.7: 10843737, 0.8: 42023835}


@pytest.mark.parametrize(
    ("width", "constraints", "attributes", "published"),
    [(0.5, k, 2 * k, found) for k, found in TABLE_IV.items()] + [(w, 10, 20, found) for w, found in TABLE_VI.items()],
)
def test_match_counts_follow_the_closed_form(width: float, constraints: int, attributes: int, published: int) -> None:
    """A range of width w holds a uniform value with probability w, so a subscription matches with w^k."""
    rng = np.random.default_rng(int(1000 * width) + constraints)
    rein = make("rein", Space.of(attributes, 0, 1_000_000))
    rein.insert(np.arange(20_000), uniform(rng, 20_000, attributes, constraints, width))
    counts = np.diff(rein.match(Points.of(rng.integers(0, 1_000_001, (400, attributes)))).offsets)
    expected = 20_000 * width**constraints
    error = counts.std() / np.sqrt(len(counts))  # events differ far more than subscriptions do
    assert abs(counts.mean() - expected) < 4 * error
    relative = error / counts.mean()  # the paper used as many events, so its totals err as much
    assert abs(published / (400e6 * width**constraints) - 1) < 4 * relative
