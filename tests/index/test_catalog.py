"""The catalog does not grow when the same subscriptions come again and again."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from hitbox import Index, Schema


def test_loading_again_takes_no_new_numbers() -> None:
    index = Index(Schema({"a": "int"}))
    table = pa.table({"id": np.arange(3000), "a_low": np.arange(3000), "a_high": np.arange(3000) + 5})
    for _ in range(12):
        index.load(table)
    index.subscribe(7, "a = 1 OR a = 5 OR a = 9")
    index.load(table)
    assert len(index._catalog.owner) < 4000
    assert sorted(index.match({"a": 100})) == list(range(95, 101))
    assert index.unsubscribe_many(list(range(0, 3000, 2))) == 1500
    assert sorted(index.match({"a": 100})) == [95, 97, 99]


def test_dead_slots_are_squeezed_out() -> None:
    index = Index(Schema({"a": "int"}))
    table = pa.table({"id": np.arange(8000), "a_low": np.arange(8000), "a_high": np.arange(8000)})
    for _ in range(5):
        index.load(table)
    assert len(index._catalog.priority) < 3 * 8000
    assert index.match({"a": 4321}) == [4321]
