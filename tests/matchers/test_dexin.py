"""DEXIN: plans, their costs and the matching rates that they come from."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import pytest

from hitbox.encoding.arrays import HIGHEST, LOWEST, MISSING, Boxes, Points, Space
from hitbox.matchers import make
from hitbox.matchers.dexin import Dexin, plan_cost
from support.matcher_data import assert_equal, varied


def all_plans(rates: np.ndarray) -> Iterator[float]:
    """The cost of every sequence with every choice of methods, straight from formulas (4) to (6)."""
    for sequence in itertools.permutations(range(len(rates))):
        for methods in itertools.product((0, 1), repeat=len(rates)):
            cost, left = 0.0, 1.0
            for attribute, inclusive in zip(sequence, methods, strict=True):
                cost += left if inclusive else 1 - rates[attribute]
                left *= rates[attribute]
            yield cost


def planned(plan: str, boxes: Boxes, attributes: int) -> Dexin:
    dexin = make("dexin", Space.of(attributes, 0, 10_000), plan=plan)
    assert isinstance(dexin, Dexin)
    dexin.insert(np.arange(len(boxes)), boxes)
    return dexin


@pytest.mark.parametrize("plan", ["near-optimal", "optimal"])
def test_dexin_observations_1_to_3(plan: str) -> None:
    rng = np.random.default_rng(5)
    dexin = planned(plan, varied(rng, 3000, 5), 5)
    for event in rng.integers(0, 10_001, (12, 5)):
        made = dexin.plan(Points.of([event]))
        assert made.exclusive >= 1  # 1: the first attribute excludes
        assert sorted(made.sequence.tolist()) == [0, 1, 2, 3, 4]  # 2: a part that excludes, then one that includes
        assert (np.diff(made.rates[made.sequence[made.exclusive :]]) >= 0).all()  # 3: by rising rate
        cheapest = min(all_plans(made.rates))  # of all plans, also those that break the observations
        if plan == "optimal":
            assert made.cost == pytest.approx(cheapest)
        else:
            assert made.cost >= cheapest - 1e-12


def test_dexin_matching_rates_come_from_slot_counts() -> None:
    rng = np.random.default_rng(6)
    boxes = varied(rng, 4000, 3)
    dexin = planned("near-optimal", boxes, 3)
    low, high = boxes.dense(3)
    for event in rng.integers(0, 10_001, (20, 3)):
        exact = ((low <= event) & (high >= event)).mean(axis=0)
        rates = dexin.plan(Points.of([event])).rates
        assert (rates <= exact + 1e-12).all()  # the event's own slot counts as swept
        assert np.abs(rates - exact).max() < 0.01


def test_dexin_bounds_take_four_bytes_where_keys_fit() -> None:
    """Whatever lies at the border of four bytes or beyond it, among bounds and among events, is compared exactly."""
    most = 2**31 - 1
    inner, outer = [1 - most, -7, 0, most - 1], [-most - 1, -most, most, most + 1, LOWEST + 1, HIGHEST - 1]
    keys = [MISSING, LOWEST, *inner, *outer, HIGHEST]
    pairs = np.array([pair for pair in itertools.product(keys, keys) if pair[0] <= pair[1]])
    events = Points(*(np.repeat(side[:, None], 2, axis=1) for side in pairs.T))
    dexin, brute = make("dexin", Space.of(2), plan="inclusive"), make("brute", Space.of(2))
    assert isinstance(dexin, Dexin)
    count = 0
    for more, size in (([], 4), (outer, 8), ([], 8)):
        ends = [(low, high) for low in [MISSING, LOWEST, *inner, *more] for high in [MISSING, *inner, *more, HIGHEST]]
        numbers = np.arange(count, count + len(ends))
        for matcher in (dexin, brute):
            matcher.insert(numbers, Boxes.of([{i % 2: pair, 1 - i % 2: (-7, 0)} for i, pair in enumerate(ends)]))
            matcher.delete(numbers[::7])
        count += len(ends)
        assert dexin.bounds.itemsize == size
        assert_equal(dexin, brute, events)


def test_dexin_near_optimal_against_optimal() -> None:
    """The plans differ less the more attributes there are (the paper's figure 15)."""
    rng = np.random.default_rng(7)
    excess = {}
    for attributes in (2, 6, 12):
        boxes = varied(rng, 3000, attributes)
        near, best = planned("near-optimal", boxes, attributes), planned("optimal", boxes, attributes)
        events = [Points.of([event]) for event in rng.integers(0, 10_001, (30, attributes))]
        costs = np.array([(near.plan(event).cost, best.plan(event).cost) for event in events])
        assert (costs[:, 0] >= costs[:, 1] - 1e-12).all()
        excess[attributes] = costs[:, 0].sum() / costs[:, 1].sum() - 1
    assert excess[12] < 0.05
    one = np.array([0.5, 0.9])
    assert plan_cost(one, np.array([0, 1]), 1) == pytest.approx(0.5 + 0.5)
    assert plan_cost(one, np.array([0, 1]), 2) == pytest.approx(0.5 + 0.1)


def test_dexin_keeps_the_plan_of_an_event_until_boxes_change(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(3)
    dexin = Dexin(Space.of(4, 0, 10_000), keep_plans=True)
    boxes = varied(rng, 300, 4)
    dexin.insert(np.arange(200), boxes.take(np.arange(200)))
    points = Points.of(rng.integers(0, 10_000, (5, 4)))
    made: list[Points] = []
    plan = Dexin._new_plan
    monkeypatch.setattr(Dexin, "_new_plan", lambda self, points: made.append(points) or plan(self, points))
    for _ in range(3):
        dexin.match(points)
    assert len(made) == 5
    dexin.insert(np.arange(200, 300), boxes.take(np.arange(200, 300)))
    dexin.match(points)
    assert len(made) == 10
    assert dexin.plan(points[:1]).sequence.tolist() == plan(dexin, points[:1]).sequence.tolist()
