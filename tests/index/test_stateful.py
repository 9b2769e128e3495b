"""Subscribe, upsert, unsubscribe, load, save and match in any order, against a dict and the predicate's own truth."""

from __future__ import annotations

import tempfile
import warnings
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from hitbox import Attribute, Index, Schema, language, matchers
from hitbox.errors import HitboxError, HitboxWarning, UnknownSubscription
from support.tiers import only

SCHEMA = Schema(
    {
        "price": "float",
        "qty": "int",
        "city": "string",
        "ok": "bool",
        "grid": Attribute("float", domain=(0, 1), precision="0.25"),
    }
)
CITIES = ["", "Paris", "Pari", "Rome", "rio", "\U0001f600", "%x_", "Z'é"]
NUMBERS = ["0", "1", "-1", "2.5", "1e3", "9007199254740993"]

comparison = st.sampled_from(["=", "<>", "<", "<=", ">", ">="])
text = st.sampled_from(CITIES).map(lambda t: "'" + t.replace("'", "''") + "'")
number = st.sampled_from(NUMBERS)
leaf = st.one_of(
    st.builds("{} {} {}".format, st.sampled_from(["price", "qty"]), comparison, number),
    st.builds("qty BETWEEN {} AND {}".format, number, number),
    st.builds("price NOT IN ({}, {})".format, number, number),
    st.builds("city {} {}".format, comparison, text),
    st.builds("city IN ({}, {})".format, text, text),
    st.builds("city LIKE '{}'".format, st.sampled_from(["P%", "%i%", "_ome", "%", "Par_s", "%s"])),
    st.sampled_from(
        ["ok = TRUE", "ok <> TRUE", "qty IS NULL", "city IS NOT NULL", "grid >= 0.25", "grid = 0.5", "TRUE"]
    ),
)
predicate = st.recursive(
    leaf,
    lambda inner: st.one_of(
        st.builds("({} AND {})".format, inner, inner),
        st.builds("({} OR {})".format, inner, inner),
        st.builds("NOT ({})".format, inner),
    ),
    max_leaves=5,
)
event = st.fixed_dictionaries(
    {},
    optional={
        "price": st.sampled_from([0.0, -0.0, 1, 2.5, float("nan"), 1e3, float("inf")]),
        "qty": st.sampled_from([0, 1, -1, 2, 3, 2**53 + 1]),
        "city": st.sampled_from([*CITIES, "unheard", None]),
        "ok": st.booleans(),
        "grid": st.sampled_from([0.0, 0.25, 0.3, 0.5, 2.0]),
    },
)
ids = st.integers(0, 12)


class Machine(RuleBasedStateMachine):
    matcher = "auto"

    def __init__(self) -> None:
        super().__init__()
        self.index = Index(SCHEMA, self.matcher)
        self.model: dict[int, tuple[Any, int]] = {}

    @rule(id=ids, where=predicate, priority=st.integers(0, 9))
    def subscribe(self, id: int, where: str, priority: int) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", HitboxWarning)
            self.index.subscribe(id, where, priority=priority)
        self.model[id] = (language.parse(where, SCHEMA), priority)

    @rule(id=ids)
    def subscribe_rubbish(self, id: int) -> None:
        with pytest.raises(HitboxError):
            self.index.subscribe(id, "price > AND")

    @rule(id=ids)
    def unsubscribe(self, id: int) -> None:
        if id in self.model:
            self.index.unsubscribe(id)
            del self.model[id]
        else:
            with pytest.raises(UnknownSubscription):
                self.index.unsubscribe(id)

    @rule(rows=st.lists(st.tuples(ids, predicate, st.integers(0, 9)), min_size=1, max_size=5))
    def load(self, rows: list[tuple[int, str, int]]) -> None:
        columns = [list(c) for c in zip(*rows, strict=True)]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", HitboxWarning)
            self.index.load(pa.table(dict(zip(["id", "where", "priority"], columns, strict=True))))
        self.model |= {id: (language.parse(where, SCHEMA), priority) for id, where, priority in rows}

    @rule(rows=st.lists(st.tuples(ids, st.sampled_from([None, 0, 1, 2]), st.sampled_from([None, 1, 2, 3]))))
    def load_wide(self, rows: list[tuple[int, int | None, int | None]]) -> None:
        columns = [list(c) for c in zip(*rows, strict=True)] if rows else [[], [], []]
        kinds = [pa.int64()] * 3
        arrays = [pa.array(c, k) for c, k in zip(columns, kinds, strict=True)]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", HitboxWarning)
            self.index.load(pa.table(dict(zip(["id", "qty_low", "qty_high"], arrays, strict=True))))
        for id, low, high in rows:
            parts = [*([f"qty >= {low}"] if low is not None else []), *([f"qty <= {high}"] if high is not None else [])]
            self.model[id] = (language.parse(" AND ".join(parts) or "TRUE", SCHEMA), 4)

    @rule()
    def save_and_open(self) -> None:
        with tempfile.TemporaryDirectory() as path:
            self.index.save(path)
            self.index = Index.open(path, verify=True)

    @rule(found=event, limit=st.integers(0, 5))
    def match(self, found: dict[str, Any], limit: int) -> None:
        want = {id for id, (tree, _) in self.model.items() if language.evaluate(tree, found) is True}
        got = self.index.match(found)
        assert len(got) == len(set(got))
        assert set(got) == want
        levels = [self.model[id][1] for id in got]  # type: ignore[index]
        assert levels == sorted(levels, reverse=True)
        first = self.index.match(found, limit=limit)
        assert [self.model[id][1] for id in first] == levels[:limit]  # type: ignore[index]
        assert set(first) <= want
        by_level = list(self.index.match_levels(found))
        assert [level for level, _ in by_level] == sorted(set(levels), reverse=True)
        assert {id for _, some in by_level for id in some} == want
        for id in list(self.model)[:4]:
            assert self.index.explain(found, id).matched == (id in want)  # type: ignore[union-attr]

    @rule(found=st.lists(event, max_size=4))
    def match_batch(self, found: list[dict[str, Any]]) -> None:
        matches = self.index.match_batch(found)
        assert len(matches) == len(found)
        for number, one in enumerate(found):
            assert sorted(matches[number]) == sorted(self.index.match(one))

    @invariant()
    def same_ids(self) -> None:
        assert len(self.index) == len(self.model)
        assert set(self.index) == set(self.model)
        assert all(id in self.index for id in self.model)


NAMES = only(["hitbox", "rein"], matchers())
"""`make test` does this with some matchers, and compares all with the oracle in tests/matchers."""


@pytest.mark.parametrize("matcher", NAMES)
def test_any_sequence(matcher: str) -> None:
    machine = type("M", (Machine,), {"matcher": matcher})
    thorough = matcher in ("brute", "hitbox")
    case = machine.TestCase
    case.settings = settings(
        max_examples=settings.default.max_examples * 6 // 10 if thorough else 8, stateful_step_count=25, deadline=None
    )
    case("runTest").runTest()
