"""What all matchers of the papers share: worked examples, options, counts, every form of constraint."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest

import hitbox
from hitbox.encoding.arrays import HIGHEST, LOWEST, MISSING, Boxes, Hits, Points, Space
from hitbox.errors import MatcherError
from hitbox.matchers import Matcher, make
from support.matcher_data import EVENT, assert_equal, rows, table_i, uniform
from support.random_boxes import random_boxes, random_points

MINE = ["simple", "counting", "index-count", "siena", "rein", "pri-rein", "pri-rein-s", "dexin"]


@pytest.mark.parametrize("name", MINE)
def test_rein_table_i(name: str) -> None:
    assert sorted(table_i(name).match(EVENT)[0].tolist()) == [1, 3]


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
    ("rein", {"scan": "bits"}),
    ("rein", {"buckets": 7, "style": "lists", "scan": "bits"}),
    ("dexin", {"style": "lists"}),
    ("dexin", {"slots": 5, "style": "lists", "plan": "exclusive"}),
    ("dexin", {"keep_plans": True}),
    ("dexin", {"plan": "optimal", "keep_plans": True}),
    ("siena", {"counters": "map"}),
    ("siena", {"counters": "array"}),
    ("tama", {"style": "lists"}),
    ("tama", {"counters": "map", "levels": 2}),
    ("tama", {"style": "lists", "counters": "map"}),
    ("index-count", {"types": 4}),
    ("index-count", {"types": 9}),
    ("mlgf", {"cut": "cyclic"}),
    ("mlgf", {"cut": "cyclic", "capacity": 3, "fanout": 3}),
    ("ub-tree", {"entries": "addresses"}),
    ("ub-tree", {"entries": "addresses", "fanout": 5}),
]


@pytest.mark.parametrize("declared", [False, True])
@pytest.mark.parametrize(("name", "options"), OPTIONS)
def test_options_keep_results_exact(name: str, options: dict[str, object], declared: bool) -> None:
    """Before and after boxes go and others come in their place, on the same events and on new ones."""
    rng = np.random.default_rng(11)
    space = Space.of(6, -20, 20) if declared else Space.of(6)
    matcher, oracle = make(name, space, **options), make("brute", space)
    kinds = (False, True) if matcher.intervals else (False,)
    same = [random_points(rng, 30, 6, intervals=intervals) for intervals in kinds]
    numbers = rng.permutation(900)
    boxes = random_boxes(rng, 900, 6)

    def both(change: Callable[[Matcher], None]) -> None:
        for one in (matcher, oracle):
            change(one)
        for points in (*same, *(random_points(rng, 30, 6, intervals=intervals) for intervals in kinds)):
            assert_equal(matcher, oracle, points)

    for part in np.split(np.arange(900), [3, 700, 720]):
        both(lambda one, part=part: one.insert(numbers[part], boxes.take(part)))  # type: ignore[misc]
    both(lambda one: one.delete(numbers[5:9]))
    both(lambda one: one.delete(numbers[100:600]))
    both(lambda one: one.insert(numbers[100:300], boxes.take(np.arange(300, 500))))
    both(lambda one: one.delete(numbers[700:701]))
    both(lambda one: one.insert(numbers[700:701], boxes.take(np.arange(1))))


def test_options_that_make_no_sense() -> None:
    with pytest.raises(MatcherError, match="buckets must be"):
        make("rein", Space.of(1), buckets=0)
    with pytest.raises(MatcherError, match="slots must be"):
        make("dexin", Space.of(1), slots=0)
    with pytest.raises(MatcherError, match="did you mean 'optimal'"):
        make("dexin", Space.of(1), plan="optimum")
    with pytest.raises(MatcherError, match="did you mean 'lists'"):
        make("tama", Space.of(1), style="list")
    with pytest.raises(MatcherError, match="style='lists' keeps no order"):
        make("rein", Space.of(1), style="lists", sorted_buckets=True)
    with pytest.raises(MatcherError, match="counters must be one of map, array"):
        make("siena", Space.of(1), counters="tree")
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


PLAIN = ["tama", "h-tree", "be-tree", "opindex"]


SYMMETRIC = ["r-tree", "compound", "ub-tree", "mlgf"]


@pytest.mark.parametrize("name", PLAIN + SYMMETRIC)
def test_one_by_one_equals_all_at_once(name: str) -> None:
    rng = np.random.default_rng(3)
    space = Space.of(4)
    boxes = random_boxes(rng, 90, 4)
    matcher, oracle = make(name, space), make("brute", space)
    oracle.insert(np.arange(90), boxes)
    for number in range(90):  # the grid is fitted again at 1, 4, 16 and 64 boxes
        matcher.insert(np.array([number]), boxes.take(np.array([number])))
    points = random_points(rng, 40, 4)
    assert rows(matcher, points) == rows(oracle, points)


@pytest.mark.parametrize("name", PLAIN + SYMMETRIC)
def test_threads_may_match_together(name: str) -> None:
    rng = np.random.default_rng(4)
    space = Space.of(3, -20, 20)
    matcher = make(name, space)
    matcher.insert(np.arange(2000), random_boxes(rng, 2000, 3))
    points = random_points(rng, 30, 3)
    want = rows(matcher, points)
    with ThreadPoolExecutor(4) as pool:
        assert all(got == want for got in pool.map(lambda _: rows(matcher, points), range(12)))


@pytest.mark.parametrize("name", PLAIN + SYMMETRIC)
def test_every_match_is_stamped_as_it_is_determined(name: str) -> None:
    rng = np.random.default_rng(16)
    matcher: Any = make(name, Space.of(3, -20, 20))
    matcher.insert(np.arange(300), random_boxes(rng, 300, 3))
    for event in range(5):
        point = random_points(rng, 1, 3)
        stamps = np.zeros(300, np.int64)
        begin = time.perf_counter_ns()
        found = len(matcher.match_timed(point, stamps).numbers)
        moments = np.array([begin, *stamps[:found], time.perf_counter_ns()])
        assert (np.diff(moments) >= 0).all()
        assert not stamps[found:].any()
        assert rows(matcher, point)[0] == sorted(matcher.match_timed(point, stamps).numbers.tolist()), event


def test_names_cost_neither_numba_nor_rtree() -> None:
    check = "import sys, hitbox; hitbox.matchers(); print('numba' in sys.modules, 'rtree' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("tama", {"levels": 0}),
        ("h-tree", {"cells": 0}),
        ("be-tree", {"capacity": 0}),
        ("r-tree", {"fanout": 1}),
        ("ub-tree", {"fanout": 2}),
        ("mlgf", {"capacity": 1}),
    ],
)
def test_options_out_of_range_are_refused(name: str, options: dict[str, int]) -> None:
    with pytest.raises(MatcherError, match=f"{next(iter(options))}.* must "):
        make(name, Space.of(2), **options)
