"""Equalities whose hashes are equal find all their boxes: the key is compared whole, its attribute included."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hitbox import Index, Schema
from hitbox.encoding.arrays import Boxes, Points, Space
from hitbox.engine import Engine, _kernels
from hitbox.matchers import make
from support.matcher_data import assert_equal

SIMD = _kernels.simd_levels()
DEGENERATE = (0, 1 << 63)
"""With this seed the hash of every even value of attribute 0 is 0, and those of small values of attribute 1 have the
same upper half."""


def same_slot(count: int) -> Boxes:
    """Equalities on attributes 0 and 1 whose fingerprints are all equal; each value is asked of both."""
    return Boxes.of([{i % 2: (2 * (i // 2), 2 * (i // 2))} for i in range(count)])


def events(count: int) -> Points:
    values = 2 * np.arange(-2, count // 2 + 2)
    return Points.of(np.stack([values, values[::-1]], axis=1))


def pair(**options: Any) -> tuple[Engine, Any]:
    return Engine(Space.of(2), kind="postings", seed=DEGENERATE, **options), make("brute", Space.of(2))


def check(engine: Engine, oracle: Any, count: int) -> None:
    points = events(count)
    assert_equal(engine, oracle, points)
    for one in range(0, len(points), max(1, len(points) // 8)):
        assert_equal(engine, oracle, points[one : one + 1])


@pytest.mark.parametrize("simd", SIMD)
@pytest.mark.parametrize("count", [2, 3, 7, 14, 30, 60, 120, 250, 500, 1000])
def test_equal_hashes_at_every_table_size(simd: str, count: int, tmp_path: Path) -> None:
    engine, oracle = pair(simd=simd, tail=1)
    for one in (engine, oracle):
        one.insert(np.arange(count), same_slot(count))
    arrays = engine.arrays()
    slots = arrays["segment0.slots"]
    assert len(set((slots[slots != 0] >> np.uint64(32)).tolist())) == 1
    check(engine, oracle, count)
    for name, array in arrays.items():
        np.save(tmp_path / f"{name}.npy", array)
    mapped = {path.stem: np.load(path, mmap_mode="r") for path in tmp_path.glob("*.npy")}
    opened = Engine.from_arrays(Space.of(2), mapped, simd=simd)  # the hash is the segment's, not the engine's
    check(opened, oracle, count)
    gone = np.arange(0, count, 3)
    for one in (engine, opened, oracle):
        one.delete(gone)
    for one in (engine, opened):
        check(one, oracle, count)
        if commit := one.prepare():
            commit()
        check(one, oracle, count)


@pytest.mark.parametrize("tail", [1, 16])
def test_equal_hashes_inserted_one_by_one(tail: int) -> None:
    engine, oracle = pair(tail=tail)
    boxes = same_slot(80)
    for number in range(80):
        for one in (engine, oracle):
            one.insert(np.array([number]), boxes.take(np.array([number])))
        if number % 5 == 4 and (commit := engine.prepare()):
            commit()
        if number % 8 == 7:
            check(engine, oracle, 80)
    for number in range(0, 80, 2):
        for one in (engine, oracle):
            one.delete(np.array([number]))
    check(engine, oracle, 80)


@pytest.mark.parametrize("matcher", ["auto", "brute"])
def test_two_values_that_had_one_fingerprint(matcher: str, tmp_path: Path) -> None:
    """Values whose hashes had the same upper half when the hash had no seed."""
    values = (1900940928855031331, -6757983820542139259)
    index = Index(Schema({"a": "int"}), matcher, **({"tail": 1} if matcher == "auto" else {}))
    for value in values:
        index.subscribe(str(value), f"a = {value}")
    index.save(tmp_path / "snapshot")
    for one in (index, Index.open(tmp_path / "snapshot")):
        assert [one.match({"a": value}) for value in values] == [[str(value)] for value in values]


def test_each_segment_draws_a_seed_which_its_snapshot_keeps() -> None:
    engine = Engine(Space.of(2), kind="postings", tail=4)
    for start in (0, 4):
        engine.insert(np.arange(start, start + 4), same_slot(4))
    arrays = engine.arrays()
    seeds = [arrays[f"segment{i}.seed"].tolist() for i in range(2)]
    assert seeds[0] != seeds[1]
    again = Engine.from_arrays(Space.of(2), arrays)
    assert [again.arrays()[f"segment{i}.seed"].tolist() for i in range(2)] == seeds


@pytest.mark.parametrize("attributes", [1, 30, 300])
def test_attributes_that_nobody_uses_do_not_matter(attributes: int) -> None:
    """Ranges of one attribute are a bitmap segment, however many attributes the schema has; postings would be slow."""
    engine = Engine(Space.of(attributes), tail=1)
    engine.insert(np.arange(2000), Boxes.of([{0: (2 * n, 2 * n + 20)} for n in range(2000)]))
    arrays = engine.arrays()
    assert "segment0.slots" not in arrays
    points = Points.of(np.concatenate([2 * np.arange(0, 40)[:, None], np.zeros((40, attributes - 1), int)], axis=1))
    oracle = make("brute", Space.of(attributes))
    oracle.insert(np.arange(2000), Boxes.of([{0: (2 * n, 2 * n + 20)} for n in range(2000)]))
    assert_equal(engine, oracle, points)
