"""What is particular to TAMA, H-Tree, BE-Tree, OpIndex and the four families of the symmetric paper.

That they equal the oracle is held by test_matchers.py; here are their own structures and rules.
"""

from __future__ import annotations

import itertools
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from hitbox.encoding.arrays import HIGHEST, LOWEST, MISSING, Boxes, Points, Space
from hitbox.errors import MatcherError
from hitbox.matchers import Matcher, make
from randoms import random_boxes, random_points

PLAIN = ["tama", "h-tree", "be-tree", "opindex"]
SYMMETRIC = ["r-tree", "compound", "ub-tree", "mlgf"]


def rows(matcher: Matcher, points: Points) -> list[list[int]]:
    hits = matcher.match(points)
    return [sorted(hits[event].tolist()) for event in range(len(points))]


def ranges(rng: np.random.Generator, count: int, attributes: int, width: int, size: int = 1000) -> Boxes:
    low = rng.integers(0, size - width + 1, (count, attributes))
    return Boxes.of_dense(low, low + width)


def two_sided(rng: np.random.Generator, count: int, attributes: int, size: int = 1000) -> tuple[Any, Any]:
    low = rng.integers(0, size, (count, attributes))
    wide = rng.integers(0, size // 2, (count, attributes)) * rng.integers(0, 2, (count, attributes))
    return low, np.minimum(low + wide, size)


# --- all eight ---


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


# --- opindex ---


def test_opindex_partitions_by_the_rarest_attribute_and_signs_its_equalities() -> None:
    matcher: Any = make("opindex", Space.of(3))
    boxes = Boxes.of(
        [
            {0: (1, 5), 1: (2, 2)},
            {0: (3, HIGHEST), 1: (4, 9)},
            {0: (7, 7), 1: (1, 2), 2: (6, 6)},
            {0: (MISSING, MISSING)},
        ]
    )
    matcher.insert(np.arange(4), boxes)
    assert matcher.pivots(boxes).tolist() == [1, 1, 2, 3]  # attribute 0 is the commonest; the last needs none present
    bits = np.bitwise_count(matcher.signature).sum(axis=1)
    assert bits.tolist() == [0, 1, 2, 1]
    assert matcher.needs.tolist() == [3, 3, 4, 1]  # a range is two predicates, one-sided and equal are one
    points = Points.of([[4, 2, MISSING], [7, 2, 6], [MISSING, 2, 6], [7, 5, MISSING]])
    assert rows(matcher, points) == [[0], [2], [3], [1]]


def test_opindex_buckets_grow_with_the_equalities() -> None:
    rng = np.random.default_rng(5)
    keys = rng.integers(0, 50, (3000, 2))
    matcher, oracle = make("opindex", Space.of(2)), make("brute", Space.of(2))
    for part in np.array_split(np.arange(3000), 7):
        for one in (matcher, oracle):
            one.insert(part, Boxes.of_dense(keys[part], keys[part]))
    points = Points.of(rng.integers(0, 50, (60, 2)))
    assert rows(matcher, points) == rows(oracle, points)
    buckets = matcher.buckets  # type: ignore[attr-defined]
    assert buckets.live == 6000 <= len(buckets.start)


# --- tama ---


def test_tama_tiles_every_range_exactly() -> None:
    matcher: Any = make("tama", Space.of(1, 0, 31), levels=5)
    for low in range(32):
        for high in range(low, 32):
            cells, count = matcher.cells(Boxes.of([{0: (low, high)}]))
            assert count.tolist() == [len(cells)]
            assert len(cells) <= 2 * 5
            covered = []
            for cell in cells.tolist():
                layer = cell.bit_length() - 1
                width = 1 << (5 - layer)
                first = (cell - (1 << layer)) * width
                covered += range(first, first + width)
            assert sorted(covered) == list(range(low, high + 1))


def test_tama_approximate_errs_only_within_a_cell() -> None:
    rng = np.random.default_rng(6)
    space = Space.of(3, 0, 1000)
    boxes = ranges(rng, 3000, 3, 300)
    points = Points.of(rng.integers(0, 1001, (40, 3)))
    exact, rough, oracle = (
        make("tama", space, levels=5),
        make("tama", space, levels=5, exact=False),
        make("brute", space),
    )
    for one in (exact, rough, oracle):
        one.insert(np.arange(3000), boxes)
    want, more = rows(oracle, points), rows(rough, points)
    assert rows(exact, points) == want
    extra = 0
    for event, (few, many) in enumerate(zip(want, more, strict=True)):
        assert set(few) <= set(many)
        wrong = np.setdiff1d(many, few).astype(np.int64)
        extra += len(wrong)
        low, high = boxes.take(wrong).dense(3)
        key = points.low[event]
        beyond = np.maximum(low - key, key - high).max(axis=1)
        assert (beyond <= 1001 / 32 + 1).all()  # a cell's width
    assert extra > 0


# --- h-tree ---


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


# --- be-tree ---


def be_nodes(matcher: Any) -> list[tuple[int, tuple[tuple[int, int, int], ...]]]:
    """Every c-node with its path: (attribute, low code, high code) of each bucket above it."""
    from hitbox.matchers import be_tree as b

    found, todo = [], [(b.ROOT, ())]
    while todo:
        node, path = todo.pop()
        found.append((node, path))
        one = matcher.nodes[node, b.LINK]
        while one:
            todo += [
                (
                    bucket,
                    (*path, (int(matcher.dirs[one, b.ATTRIBUTE]), *matcher.nodes[bucket, [b.LOW, b.HIGH]].tolist())),
                )
                for bucket in be_buckets(matcher, matcher.dirs[one, b.BUCKET])
            ]
            one = matcher.dirs[one, b.NEXT]
    return found


def be_buckets(matcher: Any, bucket: int) -> list[int]:
    from hitbox.matchers import be_tree as b

    left, right = matcher.nodes[bucket, [b.LEFT, b.RIGHT]].tolist()
    return [bucket, *(be_buckets(matcher, left) + be_buckets(matcher, right) if left else [])]


@pytest.mark.parametrize("width", [30, 400])
def test_be_tree_keeps_its_rules(width: int) -> None:
    from hitbox.matchers import be_tree as b
    from hitbox.matchers.pages import chain

    rng = np.random.default_rng(8)
    matcher: Any = make("be-tree", Space.of(5, 0, 1000), capacity=10)
    matcher.insert(np.arange(3000), ranges(rng, 3000, 5, width))
    matcher.delete(rng.permutation(3000)[:1000])
    seen: list[int] = []
    for node, path in be_nodes(matcher):
        numbers = chain(matcher.pages, matcher.nodes[node, b.HEAD])
        assert len(numbers) == matcher.nodes[node, b.SIZE] <= matcher.nodes[node, b.CAPACITY]
        attributes = [attribute for attribute, _, _ in path]
        assert len(set(attributes)) == len(attributes), "an attribute comes once on a path"
        assert len(numbers) <= 10 or len(attributes) == 5, "only where no attribute is left may an l-node be larger"
        for number in numbers:
            assert matcher.place[number] == node
            box = matcher.boxes(np.array([number]))[0]
            for attribute, low, high in path:
                ends = matcher.grid.codes(np.full(2, attribute, np.int32), np.array(box[attribute]))
                assert low <= ends[0] <= ends[1] <= high
        seen += numbers
    assert sorted(seen) == matcher.store.living().tolist()
    assert len(be_nodes(matcher)) > 100


def test_be_tree_shrinks_to_its_root() -> None:
    rng = np.random.default_rng(9)
    matcher: Any = make("be-tree", Space.of(5, 0, 1000), capacity=10)
    matcher.insert(np.arange(3000), ranges(rng, 3000, 5, 30))
    for part in np.array_split(rng.permutation(3000), 3):
        matcher.delete(part)
    assert len(be_nodes(matcher)) == 1
    used = matcher.nodes[0, 1]
    matcher.insert(np.arange(3000), ranges(rng, 3000, 5, 30))
    assert matcher.nodes[0, 1] <= 2 * used, "freed nodes are used again"


# --- the dimension transform ---


@pytest.mark.parametrize("name", SYMMETRIC)
@pytest.mark.parametrize("information", [(), (2, 3), (0, 1, 2, 3)])
def test_both_sides_as_intervals(name: str, information: tuple[int, ...]) -> None:
    rng = np.random.default_rng(10)
    space = Space(np.zeros(4, np.int64), np.full(4, 1000), information)
    matcher, oracle = make(name, space), make("brute", space)
    boxes = Boxes.of_dense(*two_sided(rng, 4000, 4))
    low, high = two_sided(rng, 60, 4)
    free = rng.random(low.shape) < 0.2
    points = Points(np.where(free, MISSING, low), np.where(free, HIGHEST, high))
    for one in (matcher, oracle):
        one.insert(np.arange(4000), boxes)
        one.delete(np.arange(0, 4000, 3))
    assert rows(matcher, points) == rows(oracle, points)


@pytest.mark.parametrize("name", SYMMETRIC)
def test_neighbouring_keys_beyond_double_precision(name: str) -> None:
    keys = np.array([2**53, 2**53 + 1, 2**53 + 2, HIGHEST - 1, HIGHEST, LOWEST, LOWEST + 1, -(2**53) - 1, -(2**53)])
    boxes = Boxes.of([{0: (int(key), int(key))} for key in keys])
    matcher = make(name, Space.of(1))
    matcher.insert(np.arange(len(keys)), boxes)
    assert rows(matcher, Points.of(keys[:, None])) == [[number] for number in range(len(keys))]
    matcher.delete(np.array([1, 4]))
    assert rows(matcher, Points.of(keys[:, None])) == [[n] if n not in (1, 4) else [] for n in range(len(keys))]


@pytest.mark.parametrize("name", ["ub-tree", "mlgf"])
def test_boxes_of_a_space_without_attributes_meet_everything(name: str) -> None:
    matcher = make(name, Space.of(0))
    matcher.insert(np.arange(3), Boxes.of([{}, {}, {}]))
    matcher.delete(np.array([1]))
    assert rows(matcher, Points.of(np.zeros((2, 0), np.int64))) == [[0, 2], [0, 2]]


@pytest.mark.parametrize("name", ["ub-tree", "mlgf"])
def test_a_box_meets_an_event_only_below_its_corner(name: str) -> None:
    rng = np.random.default_rng(11)
    matcher: Any = make(name, Space.of(5, -20, 20))
    matcher.insert(np.arange(500), random_boxes(rng, 500, 5))
    points = random_points(rng, 50, 5, intervals=True)
    corners, hits = matcher.image_points(points), matcher.match(points)
    for event in range(len(points)):
        below = (matcher.images[:500] <= corners[event]).all(axis=1)
        assert below[hits[event]].all()


# --- r-tree ---


def test_r_tree_takes_batches_and_single_boxes() -> None:
    rng = np.random.default_rng(12)
    space = Space.of(3, 0, 1000)
    matcher, oracle = make("r-tree", space), make("brute", space)
    begin = 0
    for count in (500, 3, 1, 300, 40):  # in bulk where it is a quarter of what is there, else one by one
        boxes = ranges(rng, count, 3, 250)
        for one in (matcher, oracle):
            one.insert(np.arange(begin, begin + count), boxes)
        begin += count
        points = Points.of(rng.integers(0, 1001, (20, 3)))
        assert rows(matcher, points) == rows(oracle, points)


def test_compound_has_a_tree_for_each_role() -> None:
    space = Space(np.zeros(5, np.int64), np.full(5, 9), (1, 4))
    matcher: Any = make("compound", space)
    assert [part.tolist() for part in matcher.parts] == [[0, 2, 3], [1, 4]]
    assert len(make("compound", Space.of(5)).parts) == 1  # type: ignore[attr-defined]


# --- ub-tree ---


@pytest.mark.parametrize(("dimensions", "shares"), [(1, 7), (2, 4), (3, 3), (4, 2), (5, 2), (8, 1)])
@pytest.mark.parametrize("lowest", [False, True])
def test_ub_tree_leaps_to_the_next_address_in_the_corner(dimensions: int, shares: int, lowest: bool) -> None:
    from hitbox.matchers.ub_tree import leap

    rng = np.random.default_rng(13)
    every = np.stack(np.meshgrid(*[np.arange(1 << shares)] * dimensions), axis=-1).reshape(-1, dimensions)
    every = (every << (0 if lowest else 16 - shares)).astype(np.uint16)  # in the last words of an address, or the first
    addresses = ub_addresses(every)
    assert len(set(addresses)) == len(every)
    below, target = np.empty(dimensions, np.bool_), np.empty(len(addresses[0]), np.uint64)
    for corner in every[rng.permutation(len(every))[:12]]:
        lies_in = sorted(ub_addresses(every[(every <= corner).all(axis=1)]))
        for address in addresses:
            after = [other for other in lies_in if other >= address]
            assert leap(np.array(address, np.uint64), corner, below, target) == bool(after)
            assert not after or tuple(target.tolist()) == after[0]


def ub_addresses(images: Any) -> list[tuple[int, ...]]:
    from hitbox.matchers.ub_tree import addresses_of

    return [tuple(words) for words in addresses_of(np.arange(len(images)), images).tolist()]


def test_ub_tree_takes_the_bits_of_all_dimensions_in_turn() -> None:
    from hitbox.matchers.ub_tree import addresses_of

    images = np.array([[0b1 << 15, 0, 0, 0, 0b11 << 14], [0, 1, 0, 0, 0]], np.uint16)
    second, first = addresses_of(np.array([1, 0]), images)
    assert first.tolist() == [(0b10001 << 59) | (0b00001 << 51), 0]
    assert second.tolist() == [0, 1 << (128 - 122)]  # the last bit of the second of eight: place 15 * 8 + 1


@pytest.mark.parametrize("dimensions", [*range(20), 64, 66, 128, 130])
def test_ub_tree_addresses_of_any_number_of_dimensions(dimensions: int) -> None:
    images = np.random.default_rng(15).integers(0, 1 << 16, (9, dimensions)).astype(np.uint16)
    eights = max(1, -(-dimensions // 8))
    for image, address in zip(images.tolist(), ub_addresses(images), strict=True):
        codes = image + [0] * (8 * eights - dimensions)
        bits = "".join(str(code >> share & 1) for share in range(15, -1, -1) for code in codes)
        assert address == tuple(int(bits[i : i + 64], 2) for i in range(0, len(bits), 64))


def ub_leaves(matcher: Any) -> list[tuple[tuple[int, ...], int]]:
    """(address, number) of all leaves from left to right, checking the pages on the way."""
    from hitbox.matchers import ub_tree as u

    addresses, numbers, children, headings = matcher.tree

    def entries(page: int) -> list[tuple[tuple[int, ...], int]]:
        count = headings[page, u.COUNT]
        return list(zip(map(tuple, addresses[page, :count].tolist()), numbers[page, :count].tolist(), strict=True))

    def walk(page: int, low: Any, high: Any) -> list[int]:
        keys, level = entries(page), headings[page, u.LEVEL]
        assert keys == sorted(keys)
        if level == 0:
            assert all(low <= key < high for key in keys)
            return [page]
        ends = [low, *keys[1:], high]
        leaves = []
        for i, child in enumerate(children[page, : len(keys)].tolist()):
            assert headings[child, u.LEVEL] == level - 1
            leaves += walk(child, ends[i], ends[i + 1])
        return leaves

    leaves = walk(matcher.root, ((0,), -1), ((2**64,), 0))
    assert [int(headings[leaf, u.NEXT]) for leaf in leaves] == [*leaves[1:], 0]
    return [key for leaf in leaves for key in entries(leaf)]


def test_ub_tree_stays_ordered_and_merges_its_pages() -> None:
    rng = np.random.default_rng(14)
    matcher: Any = make("ub-tree", Space.of(2, 0, 1000), fanout=6)
    alive: set[int] = set()
    boxes = Boxes.of_dense(*two_sided(rng, 2000, 2, size=60))  # many with the same address
    matcher.insert(np.arange(400), boxes.take(np.arange(400)))
    alive |= set(range(400))
    for _ in range(8):
        gone = rng.permutation(sorted(alive))[: rng.integers(0, 300)]
        matcher.delete(gone)
        alive -= set(gone.tolist())
        new = rng.permutation(np.setdiff1d(np.arange(2000), sorted(alive)))[:200]
        matcher.insert(new, boxes.take(new))
        alive |= set(new.tolist())
        numbers = np.array(sorted(alive))
        assert ub_leaves(matcher) == sorted(zip(ub_addresses(matcher.images[numbers]), numbers.tolist(), strict=True))
    matcher.delete(rng.permutation(sorted(alive)))
    assert ub_leaves(matcher) == []
    assert matcher.tree[3][matcher.root, 2] == 0  # the root is a leaf again


# --- mlgf ---


def mlgf_pages(matcher: Any) -> list[tuple[list[int], Any, Any]]:
    """Numbers, lower and upper corner of every data page, checking the directory on the way."""
    from hitbox.matchers import mlgf as g
    from hitbox.matchers.pages import chain

    cells, regions = matcher.cells, matcher.regions
    found = []

    def walk(region: int, low: Any, high: Any) -> None:
        level, body, count, room = regions[region, [g.LEVEL, g.BODY, g.COUNT, g.ROOM]].tolist()
        assert count <= room
        if level == 0:
            numbers = chain(matcher.pages, body)
            assert len(numbers) == count
            found.append((numbers, low, high))
            return
        assert room == matcher.fanout
        todo, outer = [(body, 0, low, high)], 0
        while todo:
            cell, up, low, high = todo.pop()
            dimension, cut, left, right = cells[cell, [g.DIMENSION, g.CUT, g.LEFT, g.RIGHT]].tolist()
            assert cells[cell, g.UP] == up
            if dimension < 0:
                outer += 1
                assert regions[left, [g.LEVEL, g.CELL, g.DIR]].tolist() == [level - 1, cell, region]
                walk(left, low, high)
                continue
            assert low[dimension] < cut <= high[dimension], (
                "a cut lies within its region: halves are disjoint and cover"
            )
            middle_high, middle_low = high.copy(), low.copy()
            middle_high[dimension], middle_low[dimension] = cut - 1, cut
            todo += [(left, cell, low, middle_high), (right, cell, middle_low, high)]
        assert outer == count

    dimensions = matcher.images.shape[1]
    walk(matcher.root, np.zeros(dimensions, int), np.full(dimensions, 2**16 - 1))
    return found


def check_mlgf(matcher: Any) -> int:
    pages, seen = mlgf_pages(matcher), []
    for numbers, low, high in pages:
        images = matcher.images[numbers]
        assert ((images >= low) & (images <= high)).all()
        assert len(numbers) <= matcher.capacity or len(np.unique(images, axis=0)) == 1
        seen += numbers
    assert sorted(seen) == matcher.store.living().tolist()
    return len(pages)


@pytest.mark.parametrize("skewed", [False, True])
def test_mlgf_regions_are_disjoint_cover_all_and_hold_their_capacity(skewed: bool) -> None:
    rng = np.random.default_rng(15)
    matcher: Any = make("mlgf", Space.of(3, 0, 10_000), capacity=6, fanout=4)
    low, high = two_sided(rng, 3000, 3, size=100 if skewed else 10_000)
    if skewed:
        low, high = low**2 // 100, high**2 // 100
    boxes = Boxes.of_dense(low, high)
    matcher.insert(np.arange(2000), boxes.take(np.arange(2000)))
    check_mlgf(matcher)
    alive = np.arange(2000)
    for _ in range(6):
        gone = rng.permutation(alive)[: rng.integers(0, 1000)]
        alive = np.setdiff1d(alive, gone)
        new = rng.permutation(np.setdiff1d(np.arange(3000), alive))[:400]
        alive = np.union1d(alive, new)
        matcher.delete(gone)
        matcher.insert(new, boxes.take(new))
        check_mlgf(matcher)
    full = check_mlgf(matcher)
    matcher.delete(rng.permutation(alive)[: len(alive) - 50])
    assert check_mlgf(matcher) < full / 8, "regions merge as they empty"


def test_mlgf_lets_a_page_of_equal_boxes_grow() -> None:
    matcher: Any = make("mlgf", Space.of(2, 0, 10), capacity=4)
    matcher.insert(np.arange(500), Boxes.of([{0: (1, 2), 1: (3, 3)}] * 500))
    assert check_mlgf(matcher) <= 2
    matcher.insert(np.array([500]), Boxes.of([{0: (9, 9)}]))
    assert rows(matcher, Points.of([[9, 3], [2, 3]])) == [[500], list(range(500))]
    matcher.delete(np.arange(500))
    assert check_mlgf(matcher) <= 2
