"""An interrupt leaves an index of documents as it was before a change, or as it is after it."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pyarrow as pa
import pytest

from hitbox import Index, Schema, language
from hitbox.index import catalog
from support.interrupts import every_place, interrupt_at

SCHEMA = Schema({
    "a": "int", "b": "int", "s": "string", "tags": "string[]", "items": [{"sku": "string", "n": "int"}],
    "lat": "float", "lon": "float",
})  # fmt: skip
EVENTS: list[dict[str, Any]] = [
    {"a": a, "b": 3, "s": s, "tags": tags, "items": items, "lat": 48.85, "lon": lon}
    for a, s, tags, items, lon in [
        (1, "Hamburg", ["x", "y"], [{"sku": "A", "n": 1}], 2.35),
        (5, "hamster", [], [{"sku": "A", "n": 9}, {"sku": "B", "n": 2}], 9.0),
        (9, "burg", ["new", "y"], [], 2.36),
    ]
] + [{"a": 4}]
STEP = 37
"""Every so many places: all of them take minutes."""
Model = dict[int, str]
START: Model = {
    1: "ANY(tags) = 'x'",
    2: "s LIKE '%ambu%' OR a > 8",
    3: "LOWER(s) = 'hamburg' AND a - b < 0",
    4: "EXISTS(items WHERE sku = 'A' AND n > 5)",
    5: "DISTANCE(lat, lon, 48.85, 2.35) <= 5000 AND NOT ANY(tags) = 'z'",
    6: "a <> 5 AND (a > 8 OR b = 3) AND (b <> 4 OR s = 'burg')",
    7: "s LIKE '%burg'",
}
NEW = {
    8: "ANY(tags) = 'new' AND s ILIKE '%BURG%'",
    9: "EXISTS(items WHERE sku = 'B') OR LENGTH(s) > 6",
    2: "ANY(tags) LIKE '%e%'",
}


def table(model: Model) -> pa.Table:
    return pa.table({"id": list(model), "where": list(model.values())})


CHANGES: dict[str, tuple[Callable[[Index], Any], Callable[[Model], Model]]] = {
    "subscribe": (lambda i: i.subscribe(8, NEW[8]), lambda m: m | {8: NEW[8]}),
    "replace": (lambda i: i.subscribe(2, NEW[2]), lambda m: m | {2: NEW[2]}),
    "unsubscribe": (lambda i: i.unsubscribe_many([1, 3, 5]), lambda m: {id: m[id] for id in m if id not in (1, 3, 5)}),
    "load": (lambda i: i.load(table(NEW)), lambda m: m | NEW),
}


def says(index: Index, model: Model, parsed: dict[str, Any]) -> bool:
    """Does the index hold exactly this? Then it must match by it, too."""
    if {id: index.where(id) for id in index} != model:
        return False
    batch = index.match_batch(EVENTS)
    for number, event in enumerate(EVENTS):
        want = []
        for id, where in model.items():
            parsed.setdefault(where, language.parse(where, SCHEMA))
            if language.evaluate(parsed[where], event) is True:
                want.append(id)
        assert sorted(index.match(event)) == sorted(want)
        assert sorted(batch[number]) == sorted(want)
    return True


@pytest.mark.parametrize("schema", [pytest.param(SCHEMA, marks=pytest.mark.exhaustive), None], ids=["schema", "open"])
@pytest.mark.parametrize("change", CHANGES)
def test_a_change_is_all_or_nothing(change: str, schema: Schema | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalog, "MIN_ARROW_ROWS", 4)
    monkeypatch.setattr(catalog, "MANY_DEAD", 2)
    make, result = CHANGES[change]
    parsed: dict[str, Any] = {}
    interrupted = 0
    with ThreadPoolExecutor(1) as elsewhere:
        for place in every_place(STEP, first=len(change)):
            index = Index(schema, tail=4)
            for id, where in START.items():
                index.subscribe(id, where)
            if not interrupt_at(place, partial(make, index), ("index", "encoding", "engine", "language")):
                assert says(index, result(START), parsed)
                break
            interrupted += 1
            if not says(index, START, parsed):
                assert says(index, result(START), parsed), f"neither before nor after: {list(index)}"
            elsewhere.submit(index.subscribe, 99, "ANY(tags) = 'probe'").result(20)  # no lock is held
            assert 99 in index.match({"tags": ["probe"]})
            make(index)  # what was interrupted can be done again
            index.unsubscribe(99)
            assert says(index, result(START), parsed)
    assert interrupted > 10
