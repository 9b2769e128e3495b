"""What the papers on REIN, Pri-REIN, DEXIN and counting show: worked examples, options, counts and plans."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest

import hitbox
from hitbox.encoding.arrays import HIGHEST, LOWEST, MISSING, Boxes, Hits, Points, Space
from hitbox.errors import MatcherError
from hitbox.matchers import Matcher, make
from hitbox.matchers.dexin import Dexin, plan_cost
from hitbox.matchers.index_count import IndexCount
from hitbox.matchers.kernels import SHORT, Lists, sort_by_value
from hitbox.matchers.pri_rein import PriRein, selectivity
from hitbox.matchers.rein import HIGH, LOW, Rein
from randoms import random_boxes, random_points
from test_matchers import assert_equal

MINE = ["simple", "counting", "index-count", "siena", "rein", "pri-rein", "pri-rein-s", "dexin"]

# REIN's Table I: [low, high] on a1 and on a2 of s0 to s9, over the domain [0, 10].
TABLE_I = [
    ((0, 1), (7, 9)), ((2, 6), (4, 6)), ((3, 5), (8, 10)), ((1, 3), (3, 5)), ((4, 8), (1, 2)),
    ((6, 9), (4, 8)), ((5, 7), (6, 7)), ((8, 9), (3, 5)), ((7, 9), (2, 3)), ((9, 10), (0, 1)),
]  # fmt: skip
EVENT = Points.of([[3, 5]])


def table_i(name: str, priority: list[int] | None = None, **options: object) -> Matcher:
    matcher = make(name, Space.of(2, 0, 10), **options)
    matcher.insert(np.arange(10), Boxes.of([{0: a1, 1: a2} for a1, a2 in TABLE_I], priority))
    return matcher


def uniform(
    rng: np.random.Generator, count: int, attributes: int, constraints: int, width: float, domain: int = 1_000_000
) -> Boxes:
    """The subscriptions of the REIN and Pri-REIN papers: `constraints` random attributes, ranges of one width."""
    chosen = np.argsort(rng.random((count, attributes)), axis=1)[:, :constraints]
    low = rng.integers(0, int(domain * (1 - width)) + 1, count * constraints)
    return Boxes(
        np.arange(count + 1) * constraints,
        np.sort(chosen, axis=1).astype(np.int32).ravel(),
        low,
        low + int(domain * width),
        rng.integers(0, 10, count).astype(np.uint8),
    )


def varied(rng: np.random.Generator, count: int, attributes: int, domain: int = 10_000) -> Boxes:
    """DEXIN's subscriptions: every attribute constrained, a tenth by equality, widths 0.2 to 0.8."""
    width = rng.integers(domain // 5, domain * 4 // 5, (count, attributes))
    width[rng.random(width.shape) < 0.1] = 0
    low = (rng.random(width.shape) * (domain - width)).astype(np.int64)
    return Boxes.of_dense(low, low + width)


@pytest.mark.parametrize("name", MINE)
def test_rein_table_i(name: str) -> None:
    assert sorted(table_i(name).match(EVENT)[0].tolist()) == [1, 3]


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


OPTIONS = [
    ("rein", {"buckets": 1}),
    ("rein", {"buckets": 7, "sorted_buckets": True}),
    ("rein", {"sorted_buckets": True}),
    ("pri-rein", {"buckets": 3}),
    ("pri-rein-s", {"buckets": 5, "sorted_buckets": True}),
    ("dexin", {"slots": 1}),
    ("dexin", {"slots": 5, "plan": "exclusive"}),
    ("dexin", {"plan": "inclusive"}),
    ("dexin", {"plan": "optimal"}),
]


@pytest.mark.parametrize(("name", "options"), OPTIONS)
def test_options_keep_results_exact(name: str, options: dict[str, object]) -> None:
    rng = np.random.default_rng(11)
    for space in (Space.of(6), Space.of(6, -20, 20)):
        matcher, oracle = make(name, space, **options), make("brute", space)
        numbers = rng.permutation(900)
        boxes = random_boxes(rng, 900, 6)
        for one in (matcher, oracle):
            for part in (np.arange(3), np.arange(3, 700), np.arange(700, 720), np.arange(720, 900)):
                one.insert(numbers[part], boxes.take(part))
            one.delete(numbers[5:9])
            one.delete(numbers[100:600])
        for intervals in (False, True):
            assert_equal(matcher, oracle, random_points(rng, 30, 6, intervals=intervals))


def test_options_that_make_no_sense() -> None:
    with pytest.raises(MatcherError, match="buckets must be"):
        make("rein", Space.of(1), buckets=0)
    with pytest.raises(MatcherError, match="slots must be"):
        make("dexin", Space.of(1), slots=0)
    with pytest.raises(MatcherError, match="did you mean 'optimal'"):
        make("dexin", Space.of(1), plan="optimum")
    with pytest.raises(MatcherError, match="at most 22 attributes"):
        make("dexin", Space.of(23), plan="optimal")


@pytest.mark.parametrize("name", MINE)
def test_no_overflow_at_the_ends_of_the_number_line(name: str) -> None:
    ends = [LOWEST, LOWEST + 1, -1, 0, 1, HIGHEST - 1, HIGHEST]
    for space in (Space.of(1), Space.of(1, -3, 3), Space.of(1, LOWEST, 0), Space.of(1, LOWEST + 1, HIGHEST - 1)):
        matcher, oracle = make(name, space), make("brute", space)
        boxes = Boxes.of([{0: (MISSING, MISSING)}, *({0: (a, b)} for a in ends for b in ends if a <= b)])
        for one in (matcher, oracle):
            one.insert(np.arange(len(boxes)), boxes)
        assert_equal(matcher, oracle, Points.of([[key] for key in [MISSING, *ends, 7, -7]]))


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


@pytest.mark.parametrize("name", MINE)
def test_every_form_of_constraint(name: str) -> None:
    """Open and closed, one-sided, points; not-equal is two boxes. On whole numbers an open bound is the next key."""
    a, b = 10, 20
    forms = {
        "> a": [(a + 1, HIGHEST)], ">= a": [(a, HIGHEST)], "< a": [(LOWEST, a - 1)], "<= a": [(LOWEST, a)],
        "(a, b)": [(a + 1, b - 1)], "(a, b]": [(a + 1, b)], "[a, b)": [(a, b - 1)], "[a, b]": [(a, b)],
        "= a": [(a, a)], "<> a": [(LOWEST, a - 1), (a + 1, HIGHEST)],
    }  # fmt: skip
    holds = {
        "> a": lambda x: x > a, ">= a": lambda x: x >= a, "< a": lambda x: x < a, "<= a": lambda x: x <= a,
        "(a, b)": lambda x: a < x < b, "(a, b]": lambda x: a < x <= b, "[a, b)": lambda x: a <= x < b,
        "[a, b]": lambda x: a <= x <= b, "= a": lambda x: x == a, "<> a": lambda x: x != a,
    }  # fmt: skip
    owner = [form for form, intervals in forms.items() for _ in intervals]
    matcher = make(name, Space.of(1))
    intervals = [interval for form in forms.values() for interval in form]
    matcher.insert(np.arange(len(owner)), Boxes.of([{0: interval} for interval in intervals]))
    for key in (a - 1, a, a + 1, 15, b - 1, b, b + 1):
        found = {owner[number] for number in matcher.match(Points.of([[key]]))[0]}
        assert found == {form for form in forms if holds[form](key)}, key
    assert matcher.match(Points.of([[MISSING]]))[0].tolist() == []


@pytest.mark.parametrize("name", MINE)
def test_every_type_of_the_language(name: str) -> None:
    schema = hitbox.Schema({"price": "float", "qty": "int", "city": "string", "hot": "bool", "at": "timestamp"})
    wanted = {
        "equal": "city = 'Paris' AND hot = TRUE",
        "in": "city IN ('Oslo', 'Paris') AND qty <> 3",
        "range": "price BETWEEN -1.5 AND 12.25 AND city >= 'M'",
        "like": "city LIKE 'Pa%' AND qty IN (1, 2, 5)",
        "time": "at >= TIMESTAMP '2026-01-31 12:00:00' OR price IS NULL",
        "not": "NOT (city < 'P' OR qty > 4)",
    }
    noon = datetime(2026, 1, 31, 12, tzinfo=UTC)
    events = [
        {"price": 12.25, "qty": 2, "city": "Paris", "hot": True, "at": noon},
        {"price": -0.0, "qty": 3, "city": "Oslo", "hot": False, "at": noon.replace(day=30)},
        {"qty": 5, "city": "Pavia", "hot": True},
        {"price": 12.250001, "qty": 1, "city": "Q"},
        {},
    ]
    answers = []
    for matcher in (name, "brute"):
        index = hitbox.Index(schema, matcher=matcher)
        for sub, where in wanted.items():
            index.subscribe(sub, where)
        index.unsubscribe("not")
        index.subscribe("not", wanted["not"])
        answers.append([sorted(index.match(event)) for event in events])
    assert answers[0] == answers[1]
    assert answers[0][0] == ["equal", "in", "like", "not", "range", "time"]


@pytest.mark.parametrize("name", MINE)
def test_uniform_workload_equals_oracle(name: str) -> None:
    rng = np.random.default_rng(9)
    space = Space.of(20, 0, 1_000_000)
    matcher, oracle = make(name, space), make("brute", space)
    boxes = uniform(rng, 5000, 20, 10, 0.7)
    for one in (matcher, oracle):
        one.insert(np.arange(5000), boxes)
    assert_equal(matcher, oracle, Points.of(rng.integers(0, 1_000_001, (10, 20))))


def test_constraints_are_kept_once_and_dropped_with_their_last_box() -> None:
    matcher = IndexCount(Space.of(2))
    boxes = Boxes.of([{0: (1, 5)}, {0: (1, 7), 1: (3, 3)}, {0: (1, 5), 1: (3, 3)}, {}])
    for numbers in (np.array([4, 0, 9, 2]), np.array([1, 5, 3, 8])):
        matcher.insert(numbers, boxes)
        assert matcher.index.live == 4  # a >= 1, a <= 5, a <= 7, b = 3
        assert sorted(matcher.match(Points.of([[4, 3]]))[0].tolist()) == sorted(numbers.tolist())
        assert matcher.match(Points.of([[6, 3]]))[0].tolist() == [numbers[3], numbers[1]]
        matcher.delete(numbers)
        assert matcher.index.live == 0
        assert matcher.links.live == 0
        assert (matcher.table < 0).all()


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("far", [5, 10**6, HIGHEST])
def test_lists_equal_plain_lists(ordered: bool, far: int) -> None:
    rng = np.random.default_rng(1)
    lists = Lists(5, ordered=ordered)
    plain: list[dict[int, int]] = [{} for _ in range(5)]
    for step in range(60):
        where = rng.integers(0, 5, rng.choice([1, 3, 40]))
        numbers = np.arange(len(where)) + 1000 * step
        values = rng.integers(-far, far, len(where), endpoint=True)
        lists.insert(where, numbers, values)
        for one, number, value in zip(where, numbers, values, strict=True):
            plain[one][int(number)] = int(value)
        held = [(one, number) for one in range(5) for number in plain[one]]
        gone = [held[i] for i in rng.permutation(len(held))[: rng.integers(0, len(held))]]
        if gone:
            (lists.purge if step % 2 else lists.delete)(*(np.array(part) for part in zip(*gone, strict=True)))
        for one, number in gone:
            del plain[one][number]
        for one in range(5):
            part = slice(lists.start[one], lists.start[one] + lists.size[one])
            assert dict(zip(lists.numbers[part].tolist(), lists.values[part].tolist(), strict=True)) == plain[one]
            assert not ordered or (lists.values[part] == np.sort(lists.values[part])).all()
        assert lists.live == sum(map(len, plain))


@pytest.mark.parametrize("count", [1, 2, SHORT - 1, SHORT, SHORT + 1, 3 * SHORT])
@pytest.mark.parametrize("values", [[7], range(-3, 3), range(0, 70_000, 100), [MISSING, LOWEST, -1, 0, 1, HIGHEST]])
def test_sorting_by_value(count: int, values: Any) -> None:
    before = np.random.default_rng(3).choice(np.array(values, np.int64), count)
    numbers, after = np.arange(count, dtype=np.int32), before.copy()
    sort_by_value(numbers, after)
    np.testing.assert_array_equal(after, np.sort(before))
    np.testing.assert_array_equal(after, before[numbers])
    assert len(set(numbers.tolist())) == count


def test_hits_of_a_batch_equal_single_events() -> None:
    rng = np.random.default_rng(8)
    boxes, points = random_boxes(rng, 200, 3), random_points(rng, 9, 3)
    for name in MINE:
        matcher = make(name, Space.of(3))
        matcher.insert(np.arange(200), boxes)
        batch = matcher.match(points)
        single = Hits.of([matcher.match(points[i : i + 1])[0] for i in range(9)])
        np.testing.assert_array_equal(batch.offsets, single.offsets)
        np.testing.assert_array_equal(batch.numbers, single.numbers)


def test_importing_hitbox_imports_no_numba() -> None:
    code = "import sys, hitbox; hitbox.matchers(); print('numba' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
