"""The engine equals the oracle on every instruction set, mix of segments, batch size and sequence of changes."""

from __future__ import annotations

import numpy as np
import pytest

from hitbox.encoding.arrays import HIGHEST, LEVELS, LOWEST, MISSING, Boxes, Points, Space
from hitbox.engine import Engine, _kernels
from hitbox.errors import MatcherError
from hitbox.matchers import make
from support.matcher_data import assert_equal
from support.random_boxes import random_boxes, random_points
from support.tiers import only, pairs

SIMD = _kernels.simd_levels()
SMALL = {"tail": 64, "block": 32, "lines": 4, "band": 300}
ALONE, SHARED = 1, 10**9
"""Bands: every priority level has blocks of its own, or all share them."""


def pair(attributes: int, **options: object) -> tuple[Engine, object]:
    space = Space.of(attributes)
    if options.get("kind") == "compact":
        options |= {"kind": "bitmap", "compact": True}
    return Engine(space, **options), make("brute", space)  # type: ignore[arg-type]


@pairs(span=[3, 20, 10**6, 2**62], kind=["auto", "bitmap", "compact", "dense", "postings"], simd=SIMD)
def test_sealed_segments(simd: str, kind: str, span: int) -> None:
    rng = np.random.default_rng([span % 1000, len(kind)])
    for attributes, count in ((1, 300), (4, 3000), (12, 1500), (90, 400)):
        engine, oracle = pair(attributes, simd=simd, kind=kind, **SMALL)
        boxes = random_boxes(rng, count, attributes, span)
        numbers = rng.permutation(count * 2)[:count]
        for one in (engine, oracle):
            one.insert(numbers, boxes)
        assert engine.describe()["tail"] == 0
        for intervals in (False, True):
            for size in (1, 2, 130):
                assert_equal(engine, oracle, random_points(rng, size, attributes, span, intervals))
        back = engine.boxes(numbers)
        for field in ("offsets", "attribute", "low", "high", "priority"):
            np.testing.assert_array_equal(getattr(back, field), getattr(boxes, field))


@pytest.mark.parametrize("kind", ["auto", "bitmap", "compact", "dense", "postings"])
def test_a_thousand_attributes(kind: str) -> None:
    rng = np.random.default_rng(1000)
    engine, oracle = pair(1000, kind=kind, **SMALL)
    near = [{int(a): (0, 9) for a in rng.permutation(1000)[:3]} for _ in range(200)]
    boxes = Boxes.concat([random_boxes(rng, 100, 1000, 20), Boxes.of(near)])
    for one in (engine, oracle):
        one.insert(np.arange(len(boxes)), boxes)
    assert engine.describe()["tail"] == 0
    points = Points.of(rng.integers(-1, 11, (130, 1000)))
    assert len(engine.match(points).numbers) > 1000
    for some in (points, points[:1], random_points(rng, 20, 1000, 20, True)):
        assert_equal(engine, oracle, some)


def wide_boxes(rng: np.random.Generator, count: int, attributes: int, width: int, domain: int) -> Boxes:
    low = rng.integers(0, domain - width + 1, (count, attributes))
    open_ = rng.random(low.shape) < 0.4
    return Boxes.of_dense(
        np.where(open_, MISSING, low),
        np.where(open_, HIGHEST, low + width),
        rng.integers(0, 10, count).astype(np.uint8),
    )


@pairs(compact=[False, True], near=[0.98, 0.995], simd=SIMD)
def test_many_boxes_are_left_and_many_lists_are_in_doubt(simd: str, near: float, compact: bool) -> None:
    attributes, most = 100, 10**6
    rng = np.random.default_rng(int(1000 * near))
    engine, oracle = pair(attributes, simd=simd, compact=compact)
    low = rng.integers(0, most, (2500, attributes))
    boxes = Boxes.of_dense(low, np.full_like(low, 2 * most))
    for one in (engine, oracle):
        one.insert(np.arange(2500), boxes)
    points = Points.of(rng.integers(int(near * most), most, (130, attributes)))
    assert len(oracle.match(points[:1]).numbers) > 160  # more than are decided by their rows
    assert_equal(engine, oracle, points[:20])
    np.testing.assert_array_equal(engine.match(points).offsets, oracle.match(points).offsets)


@pytest.mark.parametrize("common", [1, 30, 80])
@pytest.mark.parametrize("kind", ["bitmap", "compact"])
def test_values_that_many_boxes_share(common: int, kind: str) -> None:
    rng = np.random.default_rng(common)
    popular = rng.integers(0, 10**6, (common, 3))
    engine, oracle = pair(3, kind=kind)
    low = np.where(
        rng.random((5000, 3)) < 0.5, popular[rng.integers(0, common, 5000)], rng.integers(0, 10**6, (5000, 3))
    )
    high = low + np.where(rng.random(low.shape) < 0.5, 0, rng.integers(0, 5 * 10**5, low.shape))
    for one in (engine, oracle):
        one.insert(np.arange(5000), Boxes.of_dense(low, high))
    near = popular[rng.integers(0, common, 200)] + rng.integers(-1, 2, (200, 3))
    for events in (near, popular, popular + 1, rng.integers(0, 10**6, (100, 3))):
        assert_equal(engine, oracle, Points.of(events))
        assert_equal(engine, oracle, Points(events, events + rng.integers(0, 3, events.shape)))


@pairs(compact=[False, True], width=[200_000, 2**52], levels=[1, 10], simd=SIMD)
def test_batches_leave_as_many_boxes_to_their_rows_as_there_is_room_for(
    simd: str, levels: int, width: int, compact: bool
) -> None:
    attributes, most = 44, 5 * width
    rng = np.random.default_rng([levels, width % 97])
    engine, oracle = pair(attributes, simd=simd, compact=compact)
    low = np.full((6000, attributes), MISSING)
    high = np.full_like(low, HIGHEST)
    for box in range(len(low)):
        two = rng.permutation(attributes)[:2]
        low[box, two] = rng.integers(0, most, 2)
        high[box, two] = low[box, two] + width * rng.integers(1, 3)
    boxes = Boxes.of_dense(low, high, rng.integers(0, levels, len(low)).astype(np.uint8))
    for one in (engine, oracle):
        one.insert(np.arange(len(low)), boxes)
    keys = rng.integers(0, most, (300, attributes))
    for events in (Points.of(keys), Points(keys, keys + rng.integers(0, width // 8, keys.shape))):
        want = oracle.match(events)
        left = np.diff(want.offsets) / 3  # of a tile
        assert left.min() < 160 < 2 * left.max()  # around how many are decided by their rows
        assert_equal(engine, oracle, events)


@pairs(
    compact=[False, True],
    width_and_domain=[(10, 100), (80, 100), (800_000, 10**6), (2**50, 2**60)],
    band=[ALONE, SHARED],
    simd=SIMD,
)
def test_full_blocks_and_batches(simd: str, band: int, width_and_domain: tuple[int, int], compact: bool) -> None:
    width, domain = width_and_domain
    rng = np.random.default_rng(width % 97)
    engine, oracle = pair(6, simd=simd, band=band, compact=compact)
    boxes = wide_boxes(rng, 3000, 6, width, domain)
    for one in (engine, oracle):
        one.insert(np.arange(3000), boxes)
    keys = rng.integers(-2, domain + 2, (400, 6))
    points, ranges = Points.of(keys), Points(keys, keys + rng.integers(0, domain // 3, keys.shape))
    for events in (points, ranges):
        want = oracle.match(events)
        for threads in (1, 3):
            got = engine.match(events, threads=threads)
            np.testing.assert_array_equal(got.offsets, want.offsets)
            for event in range(0, 400, 41):
                np.testing.assert_array_equal(np.sort(got[event]), np.sort(want[event]))
        assert_equal(engine, oracle, events[:40])
    for event in range(5):
        assert_equal(engine, oracle, points[event : event + 1])
        assert_equal(engine, oracle, ranges[event : event + 1])


@pytest.mark.parametrize(
    ("kind", "band"),
    [
        ("auto", ALONE),
        ("auto", SMALL["band"]),
        ("auto", SHARED),
        ("dense", SHARED),
        ("compact", ALONE),
        ("compact", SHARED),
    ],
)
@pytest.mark.parametrize("intervals", [False, True])
def test_levels_and_top_are_prefixes_of_the_full_match(intervals: bool, kind: str, band: int) -> None:
    rng = np.random.default_rng(3)
    engine, _ = pair(3, **SMALL | {"band": band, "kind": kind})
    engine.insert(np.arange(900), random_boxes(rng, 900, 3))
    engine.insert(np.arange(900, 930), random_boxes(rng, 30, 3))
    engine.insert(np.arange(930, 1300), random_boxes(rng, 370, 3))
    for event in range(25):
        point = random_points(rng, 1, 3, intervals=intervals)
        full = engine.match(point)[0]
        priority = engine.boxes(full).priority
        levels = list(engine.match_levels(point))
        assert [level for level, _ in levels] == sorted(set(priority.tolist()), reverse=True)
        for level, numbers in levels:
            assert sorted(numbers.tolist()) == sorted(full[priority == level].tolist())
        for limit in (0, 1, event, 10**6):
            top = engine._match(point, limit=limit)[1]
            assert len(top) == len(set(top.tolist())) == min(limit, len(full))
            assert set(top.tolist()) <= set(full.tolist())
            np.testing.assert_array_equal(engine.boxes(top).priority, priority[: len(top)])
        assert engine.count(point).tolist() == [len(full)]


def change(rng: np.random.Generator, engine: Engine, oracle: object, alive: np.ndarray, attributes: int) -> np.ndarray:
    gone = rng.permutation(alive)[: rng.integers(0, len(alive) // 2 + 1)]
    alive = np.setdiff1d(alive, gone)
    free = np.setdiff1d(np.arange(len(alive) + 400), alive)
    new = rng.permutation(free)[: rng.choice([1, 20, 300])]
    boxes = random_boxes(rng, len(new), attributes)
    for one in (engine, oracle):
        one.delete(gone)  # type: ignore[attr-defined]
        one.insert(new, boxes)  # type: ignore[attr-defined]
    return np.union1d(alive, new)


@pytest.mark.parametrize(
    ("seed", "kind"),
    [*((seed, "auto") for seed in range(6)), (6, "dense"), (7, "dense"), (8, "compact"), (9, "compact")],
)
def test_soak_of_changes_and_compaction(seed: int, kind: str) -> None:
    rng = np.random.default_rng(seed)
    attributes = int(rng.choice([2, 5, 30]))
    engine, oracle = pair(attributes, kind=kind, **SMALL)
    alive = np.zeros(0, np.int64)
    for _ in range(40):
        alive = change(rng, engine, oracle, alive, attributes)
        commit = engine.prepare() if rng.random() < 0.5 else None
        assert_equal(engine, oracle, random_points(rng, 3, attributes))
        if commit:
            commit()
        assert len(engine) == len(alive)
        for intervals in (False, True):
            assert_equal(
                engine, oracle, random_points(rng, int(rng.choice([1, 3, 9])), attributes, intervals=intervals)
            )
    back, want = engine.boxes(alive), oracle.boxes(alive)  # type: ignore[attr-defined]
    np.testing.assert_array_equal(back.low, want.low)


@pytest.mark.parametrize(("count", "calls"), only([(20_000, 80)], [(20_000, 80), (400_000, 100)]))
def test_compaction_keeps_memory_near_a_fresh_build_and_segments_few(count: int, calls: int) -> None:
    rng = np.random.default_rng(5)
    engine, _ = pair(6, tail=256)
    boxes = wide_boxes(rng, count, 6, 30, 100)
    for part in np.split(np.arange(count), calls):
        engine.insert(part, boxes.take(part))
        if commit := engine.prepare():
            commit()
    assert len(engine.describe()["segments"]) < 20
    engine.delete(np.arange(0, count, 2))
    commit = engine.prepare()
    assert commit is not None
    commit()
    assert engine.prepare() is None
    fresh, _ = pair(6, tail=256)
    rest = np.arange(1, count, 2)
    fresh.insert(rest, boxes.take(rest))
    assert engine.nbytes() < 1.5 * fresh.nbytes()


@pairs(
    largest=[2**8 - 1, 2**8, 2**16 - 1, 2**16, 2**24 - 1, 2**24, 2**25],
    kind=["bitmap", "compact", "dense"],
    simd=SIMD,
)
def test_numbers_of_any_size(simd: str, kind: str, largest: int) -> None:
    """Numbers take as many bytes as the largest needs; many or few match, and a block may end in the last byte."""
    rng = np.random.default_rng(largest)
    count = min(largest + 1, 5000)
    engine, oracle = pair(3, simd=simd, tail=1, kind=kind)
    numbers = np.append(np.sort(rng.permutation(min(largest, 10**6))[: count - 1]), largest)
    boxes = wide_boxes(rng, count, 3, 90, 100)
    shuffled = rng.permutation(count)
    engine.insert(numbers[shuffled], boxes.take(shuffled))
    oracle.insert(np.arange(count), boxes)  # type: ignore[attr-defined]
    points = Points.of(rng.integers(-20, 120, (200, 3)).tolist())
    expected = oracle.match(points)  # type: ignore[attr-defined]
    found = engine.match(points)
    for i in range(len(points)):
        right = numbers[np.sort(expected[i])].tolist()
        assert sorted(found[i].tolist()) == right
        assert sorted(engine.match(points[i : i + 1]).numbers.tolist()) == right
    some = numbers[rng.random(count) < 0.5]
    np.testing.assert_array_equal(engine.numbers(), numbers)
    engine.delete(some)
    if commit := engine.prepare():
        commit()
    np.testing.assert_array_equal(engine.numbers(), np.setdiff1d(numbers, some))
    left = np.setdiff1d(numbers[expected[0]], some).tolist()
    assert sorted(engine.match(points)[0].tolist()) == left


def test_bounds_at_the_edges_of_the_key_line() -> None:
    engine, oracle = pair(2, **SMALL)
    ends = [MISSING, LOWEST, LOWEST + 1, -1, 0, 1, HIGHEST - 1, HIGHEST]
    boxes = Boxes.of([{0: (lo, hi)} for lo in ends for hi in ends if lo <= hi] * 3)
    for one in (engine, oracle):
        one.insert(np.arange(len(boxes)), boxes)
    points = Points.of([[key, 0] for key in ends])
    assert_equal(engine, oracle, points)
    pairs = [(lo, hi) for lo in ends for hi in ends if lo <= hi]
    low = np.array([[lo, 0] for lo, _ in pairs])
    high = np.array([[hi, 0] for _, hi in pairs])
    assert_equal(engine, oracle, Points(low, high))


def test_wrong_use_is_refused() -> None:
    with pytest.raises(MatcherError, match="attributes"):
        Engine(Space.of(1025))
    with pytest.raises(MatcherError, match="block"):
        Engine(Space.of(1), block=513)
    with pytest.raises(MatcherError, match="band"):
        Engine(Space.of(1), band=0)
    with pytest.raises(MatcherError, match="kind"):
        Engine(Space.of(1), kind="tree")
    with pytest.raises(MatcherError, match="instruction set 'mmx'"):
        Engine(Space.of(1), simd="mmx")
    with pytest.raises(MatcherError, match="attributes"):
        Engine(Space.of(2)).match(Points.of([[1]]))
    with pytest.raises(MatcherError, match="numbers"):
        Engine(Space.of(1)).insert(np.array([-1]), Boxes.of([{}]))
    engine = Engine(Space.of(1))
    engine.insert(np.array([3]), Boxes.of([{0: (1, 2)}]))
    with pytest.raises(MatcherError, match="one event"):
        list(engine.match_levels(Points.of([[1], [2]])))
    with pytest.raises(MatcherError, match="already in use"):
        engine.insert(np.array([3]), Boxes.of([{}]))
    with pytest.raises(MatcherError, match="outside"):
        engine.insert(np.array([4]), Boxes.of([{1: (1, 2)}]))
    with pytest.raises(MatcherError, match="priorities"):
        engine.insert(np.array([4]), Boxes.of([{}], [10]))
    for number in (0, 4, -1):
        with pytest.raises(MatcherError, match="not in use"):
            engine.delete(np.array([3, number]))
    assert engine.match(Points.of([[1]])).numbers.tolist() == [3]


def test_bindings_refuse_arrays_of_the_wrong_shape() -> None:
    flat, square = np.zeros(2, np.int64), np.zeros((1, 2), np.int64)
    options = (_kernels.simd_levels()[0], 1, LEVELS - 1, 0, -1)
    assert [len(part) for part in _kernels.match([], _kernels.Tail(), square, square, *options)] == [2, 0, 0]
    for low, high in [(flat, flat), (square[None], square[None]), (square, flat)]:
        with pytest.raises(TypeError, match="incompatible function arguments"):
            _kernels.match([], _kernels.Tail(), low, high, *options)
    with pytest.raises(ValueError, match="differ in shape"):
        _kernels.match([], _kernels.Tail(), square, np.zeros((2, 2), np.int64), *options)
    for bits in (np.zeros((1, 2), np.uint64), flat):  # not of the right type: a copy would be changed instead
        with pytest.raises(TypeError, match="incompatible function arguments"):
            _kernels.clear_bits(bits, np.zeros(1, np.uint32))


def test_the_environment_chooses_the_instruction_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HITBOX_SIMD", "baseline")
    assert Engine(Space.of(1)).describe()["simd"] == "baseline"


def test_results_keep_their_memory_while_later_calls_reuse_what_was_given_back() -> None:
    engine, oracle = pair(2)
    boxes = Boxes.of([{0: (0, 9)}] * 4000)
    for one in (engine, oracle):
        one.insert(np.arange(4000), boxes)
    inside, outside = Points.of([[5, 0]] * 200), Points.of([[10, 0], [9, 0]] * 100)
    engine.match(inside)  # 3 MB that the next call may write to
    first, copies = [], []
    for points in (inside, outside, inside):
        first.append(engine.match(points))
        copies.append(first[-1].numbers.copy())
    for found, copy, points in zip(first, copies, (inside, outside, inside), strict=True):
        np.testing.assert_array_equal(found.numbers, copy)
        assert found.offsets.tolist() == oracle.match(points).offsets.tolist()


def test_popular_values_have_cells_of_their_own_though_boxes_come_in_turns() -> None:
    """What is sampled must not depend on the order in which boxes come: every 16th of ten kinds is one of five."""
    rng, count = np.random.default_rng(3), 16 * 2560
    popular = np.arange(10) * 90_000 + 45_678
    low = rng.integers(0, 1_000_000, count)
    high = np.minimum(low + rng.integers(0, 300_000, count), 1_000_000)
    exact = rng.random(count) < 0.5
    low[exact] = high[exact] = popular[np.arange(count) % 10][exact]
    boxes = Boxes(np.arange(count + 1), np.zeros(count, np.int32), low, high, np.zeros(count, np.uint8))
    engine, oracle = pair(1, kind="bitmap")
    for one in (engine, oracle):
        one.insert(np.arange(count), boxes)
    starts = engine.arrays()["segment0.starts"]
    assert np.isin([popular, popular + 1], starts).all()
    assert_equal(engine, oracle, Points.of(np.concatenate([popular, popular + 1, popular - 1])[:, None]))
