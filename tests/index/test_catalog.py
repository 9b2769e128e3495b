"""The catalog does not grow when the same subscriptions come again and again; the engine may choose its order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray

from hitbox import Index, Schema
from hitbox.index.catalog import Id


def test_loading_again_takes_no_new_numbers() -> None:
    index = Index(Schema({"a": "int"}))
    table = pa.table({"id": np.arange(3000), "a_low": np.arange(3000), "a_high": np.arange(3000) + 5})
    for _ in range(12):
        index.load(table)
    index.subscribe(7, "a = 1 OR a = 5 OR a = 9")
    index.load(table)
    assert len(index._state.catalog.owner) < 4000
    assert sorted(index.match({"a": 100})) == list(range(95, 101))
    assert index.unsubscribe_many(list(range(0, 3000, 2))) == 1500
    assert sorted(index.match({"a": 100})) == [95, 97, 99]


def test_dead_slots_are_squeezed_out() -> None:
    index = Index(Schema({"a": "int"}))
    table = pa.table({"id": np.arange(8000), "a_low": np.arange(8000), "a_high": np.arange(8000)})
    for _ in range(5):
        index.load(table)
    assert len(index._state.catalog.priority) < 3 * 8000
    assert index.match({"a": 4321}) == [4321]


def wide_table(ids: pa.Array, low: NDArray[Any], width: int, levels: int = 10) -> pa.Table:
    priority = np.arange(len(low)) % levels
    bounds = {"a_low": low, "a_high": low + width, "b_low": -low, "b_high": low}
    return pa.table({"id": ids, "priority": priority} | bounds)


def expected(tables: dict[Id, tuple[int, int, int]], event: dict[str, int]) -> list[tuple[int, Id]]:
    """(urgency, id) of what matches, by brute force."""
    return sorted((-level, id) for id, (low, high, level) in tables.items() if low <= event["a"] <= high)


@pytest.mark.parametrize("kind", ["int", "string", "row"])
def test_a_load_in_the_order_of_the_engine_is_exact(kind: str, tmp_path: Path) -> None:
    draw = np.random.default_rng(5)
    count = 6000
    numbers = draw.permutation(count) if kind != "row" else np.arange(count)
    ids = pa.array(numbers)
    if kind == "string":  # among them an empty one, long ones and one that is not ASCII
        ids = pa.array(
            ["" if n == 7 else "é" if n == 8 else f"{n}" * (80 if n % 50 == 0 else 1) for n in numbers.tolist()]
        )
    index, known = Index(Schema({"a": "int", "b": "int"})), {}
    events = [{"a": int(a), "b": 0} for a in draw.integers(0, 1000, 60)]

    def load(rows: NDArray[Any]) -> None:
        low = draw.integers(0, 1000, len(rows))
        index.load(wide_table(ids.take(pa.array(rows)), low, 300))
        some = zip(ids.take(pa.array(rows)).to_pylist(), low.tolist(), np.arange(len(rows)) % 10, strict=True)
        known.update({id: (at, at + 300, int(level)) for id, at, level in some})

    def check(index: Index) -> None:
        batch = index.match_batch(events)
        for at, event in enumerate(events):
            due = expected(known, event)
            for found in (index.match(event), index.match_array(event).to_pylist(), batch[at]):
                assert sorted((-known[id][2], id) for id in found) == due
                assert [known[id][2] for id in found] == [-level for level, _ in due]
        assert sorted(index) == sorted(known)
        for id in ids.take(pa.array([0, 1, 2, count - 1])).to_pylist():
            assert (id in index) == (id in known)

    load(np.arange(count))
    arranged = index._state.matcher.content.sealed.segments[0].arrays["sizes"][-1] == 0  # type: ignore[attr-defined]
    assert arranged == (kind != "row")
    check(index)
    load(np.arange(count))  # everything again
    check(index)
    load(draw.permutation(count)[:3000])  # half of it
    for id in ids.take(pa.array(draw.permutation(count)[:20])).to_pylist():
        index.unsubscribe(id)
        del known[id]
    late = 10**9 if kind != "string" else "late"
    index.subscribe(late, "a BETWEEN 100 AND 800", priority=3)
    known[late] = (100, 800, 3)
    check(index)
    index.save(tmp_path)
    check(Index.open(tmp_path))


@pytest.mark.parametrize("kind", ["int", "string"])
def test_ids_of_many_events_are_found_stretch_by_stretch(kind: str) -> None:
    count = 80_000
    numbers = np.random.default_rng(6).permutation(count)
    ids = pa.array(numbers) if kind == "int" else pa.array([f"id-{n}" for n in numbers.tolist()])
    index = Index(Schema({"a": "int", "b": "int"}))
    low = np.random.default_rng(7).integers(0, 1000, count)
    index.load(wide_table(ids, low, 500, levels=3))
    events = [{"a": a, "b": 0} for a in range(300, 700, 20)]
    batch = index.match_batch(events)
    for at, event in enumerate(events):
        assert batch[at] == index.match(event)
        inside = (low <= event["a"]) & (event["a"] <= low + 500)
        assert sorted(batch[at]) == sorted(ids.filter(pa.array(inside)).to_pylist())
