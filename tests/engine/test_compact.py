"""Compact bitmap segments: how small they are, when lines decide, what changes and snapshots keep, forged arrays."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from hitbox import Index
from hitbox.encoding.arrays import HIGHEST, MISSING, Boxes, Points, Space
from hitbox.encoding.keys import Keys
from hitbox.encoding.schema import Schema
from hitbox.engine import Engine, _kernels
from hitbox.engine.event_encoder import EventEncoder
from hitbox.errors import DamagedArray, MatcherError
from hitbox.index import sharded, state
from hitbox.index.load import bulk_load
from hitbox.language import DEFAULT_LIMITS
from hitbox.matchers import make
from hitbox.storage import snapshot
from support.matcher_data import assert_equal, uniform
from support.random_boxes import random_boxes, random_points

SIMD = _kernels.simd_levels()


def pair(attributes: int, boxes: Boxes, **options: Any) -> tuple[Engine, Any]:
    engine, oracle = Engine(Space.of(attributes), compact=True, **options), make("brute", Space.of(attributes))
    for one in (engine, oracle):
        one.insert(np.arange(len(boxes)), boxes)
    return engine, oracle


def segments(engine: Engine) -> list[tuple[str, bool]]:
    return [(one["kind"], one["compact"]) for one in engine.describe()["segments"]]


def few_values(rng: np.random.Generator, count: int, attributes: int, values: int) -> Boxes:
    """Short ranges over few values; half of the attributes are open."""
    low = rng.integers(0, values, (count, attributes))
    open_ = rng.random(low.shape) < 0.5
    high = np.minimum(low + rng.integers(0, 3, low.shape), values - 1)
    return Boxes.of_dense(np.where(open_, MISSING, low), np.where(open_, HIGHEST, high))


@pytest.mark.parametrize("width", [0.5, 0.8])
def test_a_subscription_takes_150_bytes_and_wide_ranges_are_no_exception(width: float) -> None:
    boxes = uniform(np.random.default_rng(1), 40_000, 20, 10, width)
    engine, oracle = pair(20, boxes)
    usual = Engine(Space.of(20))
    usual.insert(np.arange(len(boxes)), boxes)
    assert segments(engine) == [("bitmap", True)]
    assert segments(usual) == [("dense" if width == 0.8 else "bitmap", False)]
    assert engine.nbytes() <= 150 * len(boxes)
    assert usual.nbytes() >= 230 * len(boxes)
    points = Points.of(np.random.default_rng(2).integers(0, 10**6, (100, 20)))
    assert_equal(engine, oracle, points)
    assert_equal(engine, oracle, points[:1])


@pytest.mark.parametrize("simd", SIMD)
@pytest.mark.parametrize("values", [2, 9, 29, 30, 33, 59, 61])
def test_few_values_have_lines_of_their_own(simd: str, values: int) -> None:
    """Around the number of values from which cells share lines, and from which lines do not decide."""
    rng = np.random.default_rng(values)
    engine, oracle = pair(6, few_values(rng, 4000, 6, values), simd=simd, kind="bitmap")
    keys = rng.integers(-1, values + 1, (200, 6))
    keys[rng.random(keys.shape) < 0.1] = MISSING
    wide = keys + np.where(keys == MISSING, 0, rng.integers(0, values, keys.shape))
    for points in (Points.of(keys), Points(keys, wide)):
        assert_equal(engine, oracle, points)
        for at in range(10):
            assert_equal(engine, oracle, points[at : at + 1])
    arrays = engine.content.sealed.segments[0].arrays
    starts, edges = arrays["starts"].reshape(6, -1), arrays["edges"]
    alone = (starts[:, ::2] == starts[:, 1::2]).all()
    assert alone == (values < 30)
    assert not edges.any() or values > 59


@pytest.mark.parametrize("simd", SIMD)
@pytest.mark.parametrize("few", [False, True])
def test_attributes_without_lines(simd: str, few: bool) -> None:
    """So rarely constrained that only a list, or the rows, can exclude a box."""
    rng = np.random.default_rng(7)
    low = rng.integers(0, 9 if few else 10**6, (5000, 8))
    open_ = rng.random(low.shape) < np.array([0.3, 0.3, *[0.97] * 6])
    high = low + rng.integers(0, 4 if few else 5 * 10**5, low.shape)
    boxes = Boxes.of_dense(np.where(open_, MISSING, low), np.where(open_, HIGHEST, high))
    engine, oracle = pair(8, boxes, simd=simd, kind="bitmap")
    assert engine.content.sealed.segments[0].arrays["bare"].any()
    keys = rng.integers(0, low.max() + 1, (200, 8))
    for points in (Points.of(keys), Points(keys, keys + rng.integers(0, 2 if few else 1000, keys.shape))):
        assert_equal(engine, oracle, points)
        for at in range(10):
            assert_equal(engine, oracle, points[at : at + 1])


def test_merges_and_snapshots_keep_it() -> None:
    rng = np.random.default_rng(3)
    engine, oracle = pair(3, random_boxes(rng, 700, 3), kind="bitmap", tail=64)
    again = Engine.from_arrays(engine.space, engine.arrays(), kind="bitmap", tail=64)
    more = random_boxes(rng, 600, 3)
    for one in (again, oracle):
        one.insert(np.arange(700, 1300), more)
        one.delete(np.arange(0, 1300, 3))
    assert segments(again) == 2 * [("bitmap", True)]
    commit = again.prepare()
    assert commit is not None
    commit()
    assert segments(again) == [("bitmap", True)]
    assert_equal(again, oracle, random_points(rng, 130, 3))


@pytest.mark.parametrize(("before", "after"), [(False, True), (True, False)])
def test_an_option_at_opening_concerns_what_is_built_later(before: bool, after: bool) -> None:
    rng = np.random.default_rng(4)
    engine = Engine(Space.of(3), kind="bitmap", tail=64, compact=before)
    engine.insert(np.arange(700), random_boxes(rng, 700, 3))
    again = Engine.from_arrays(engine.space, engine.arrays(), kind="bitmap", tail=64, compact=after)
    again.insert(np.arange(700, 1400), random_boxes(rng, 700, 3))
    assert segments(again) == [("bitmap", before), ("bitmap", after)]
    oracle = make("brute", engine.space)
    oracle.insert(np.arange(1400), again.boxes(np.arange(1400)))
    assert_equal(again, oracle, random_points(rng, 130, 3))
    commit = again.prepare()
    assert commit is not None
    commit()
    assert segments(again) == [("bitmap", after)]
    assert_equal(again, oracle, random_points(rng, 130, 3))


def ranges(count: int) -> pa.Table:
    low = np.random.default_rng(5).integers(0, 10**6, (2, count))
    bounds = {"a_low": low[0], "a_high": low[0] + 10**5, "b_low": low[1], "b_high": low[1] + 10**5}
    return pa.table({"id": np.arange(count), **bounds})


def test_an_index_keeps_it_in_snapshots_and_copies(tmp_path: Path) -> None:
    index = Index({"a": "int", "b": "int"}, compact=True)
    index.load(ranges(2000))
    index.save(tmp_path)
    for one in (Index.open(tmp_path), pickle.loads(pickle.dumps(index))):
        one.load(ranges(3000))
        assert {compact for _, compact in segments(one._state.matcher)} == {True}
        assert one.match({"a": 150_000, "b": 150_000}) != []


def test_parts_that_are_joined_keep_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And only the whole makes what it takes to match events."""
    encoders: list[EventEncoder] = []
    monkeypatch.setattr(state, "EventEncoder", lambda *given: encoders.append(EventEncoder(*given)) or encoders[-1])
    keys = Keys(Schema({"a": "int", "b": "int"}))
    table = ranges(3000)
    names = []
    with snapshot.draft(tmp_path) as folder:
        files = snapshot.add(folder, keys.arrays())
        for part in range(2):
            some = table.filter(pa.array(np.arange(3000) % 2 == part))
            encoded = bulk_load.read(some, keys.schema, DEFAULT_LIMITS).encode(keys, DEFAULT_LIMITS)
            index = sharded.index_of(keys, encoded, compact=True)
            names.append(sharded.part_name(part))
            files |= sharded.write_part(folder, index, names[-1])
        facts = index.compacted().facts() | {"subscriptions": 3000, "parts": names}
        snapshot.publish(tmp_path, folder, facts, files)
    encoders.clear()
    whole = Index.open(tmp_path)
    assert len(whole) == 3000
    assert encoders == [whole._state.encoder]
    assert {compact for _, compact in segments(whole._state.matcher)} == {True}


def test_other_snapshots_are_as_they_were() -> None:
    """Sizes that say nothing about it, as older versions wrote and read them."""
    engine = Engine(Space.of(2), kind="bitmap", tail=1)
    engine.insert(np.arange(100), random_boxes(np.random.default_rng(6), 100, 2))
    arrays = engine.arrays()
    assert len(arrays["segment0.sizes"]) == 7
    arrays["segment0.sizes"] = np.append(arrays["segment0.sizes"], np.uint32(0))
    assert segments(Engine.from_arrays(engine.space, arrays)) == [("bitmap", False)]


def first_with_lines(arrays: dict[str, Any]) -> int:
    return int(np.flatnonzero(arrays["segment0.directory"][::2])[0])


def forge(arrays: dict[str, Any], what: str) -> None:
    sizes, directory = arrays["segment0.sizes"], arrays["segment0.directory"]
    if what == "usual":
        sizes[7] = 0
    elif what == "unknown":
        sizes[7] = 2
    elif what == "shift":
        sizes[7] = 31
    elif what == "short":
        arrays["segment0.sizes"] = sizes[:7]
    elif what == "long":
        arrays["segment0.sizes"] = np.append(sizes, np.uint32(0))
    elif what == "half a group":
        arrays["segment0.lines"] = arrays["segment0.lines"][: -16 * 32]
    elif what == "list":
        directory[2 * first_with_lines(arrays) + 3 :: 2] += np.uint32(1)
        arrays["segment0.entries"] = np.append(arrays["segment0.entries"], np.uint16(0))
    elif what == "bare":
        arrays["segment0.bare"][0] |= np.uint64(1 << first_with_lines(arrays))
    else:
        directory[2 * first_with_lines(arrays)] = len(arrays["segment0.lines"]) // (32 * 32) + 1


@pytest.mark.parametrize(
    ("what", "name"),
    [
        ("usual", "lines|directory"),
        ("unknown", "sizes"),
        ("shift", "sizes"),
        ("short", "lines|directory"),
        ("long", "sizes"),
        ("half a group", "lines"),
        ("list", "directory"),
        ("bare", "directory"),
        ("group", "directory"),
    ],
)
def test_forged_arrays_are_refused(what: str, name: str) -> None:
    boxes = uniform(np.random.default_rng(8), 500, 3, 3, 0.3)
    engine, _ = pair(3, boxes, kind="bitmap", tail=1)
    arrays = {key: np.array(array) for key, array in engine.arrays().items()}
    forge(arrays, what)
    with pytest.raises(DamagedArray, match=name):
        Engine.from_arrays(engine.space, arrays)


def test_options_that_cannot_be() -> None:
    with pytest.raises(MatcherError, match="compact must be True or False, not 1"):
        Engine(Space.of(1), compact=1)  # type: ignore[arg-type]
    with pytest.raises(MatcherError, match="a dense segment cannot be compact"):
        Engine(Space.of(1), compact=True, kind="dense")
    with pytest.raises(MatcherError, match="has no option 'compact'"):
        Index({"a": "int"}, "brute", compact=True)


@pytest.mark.parametrize("wheres", [[], ["a = 5 AND b = 7"] * 300, ["a BETWEEN 3 AND 900 AND b > 5"] * 50])
def test_a_snapshot_remembers_it_without_a_compact_segment(wheres: list[str], tmp_path: Path) -> None:
    """Nothing, equalities only, or all in the tail."""
    index = Index({"a": "int", "b": "int"}, compact=True)
    for id, where in enumerate(wheres):
        index.subscribe(id, where)
    index.save(tmp_path / "one")
    opened = Index.open(tmp_path / "one")
    for one in (opened, copy.copy(opened), pickle.loads(pickle.dumps(opened))):
        one.load(ranges(3000))
        assert ("bitmap", False) not in segments(one._state.matcher)
        assert ("bitmap", True) in segments(one._state.matcher)
    Index.open(tmp_path / "one", compact=False).save(tmp_path / "two")
    assert not Index.open(tmp_path / "two")._state.matcher.kept_options()
    with pytest.raises(MatcherError, match="a dense segment cannot be compact"):
        Index.open(tmp_path / "one", kind="dense")


@pytest.mark.parametrize("flag", [np.zeros(1, np.uint8), np.ones(2, np.uint8), np.ones(1, np.int64)])
def test_a_forged_flag_is_refused(flag: Any) -> None:
    arrays = Engine(Space.of(1), compact=True).arrays() | {"compact": flag}
    with pytest.raises(DamagedArray, match="compact"):
        Engine.from_arrays(Space.of(1), arrays)
