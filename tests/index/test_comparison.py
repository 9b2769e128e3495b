"""Two sets of subscriptions, compared id by id: against a comparison of plain dictionaries."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest

from hitbox import Attribute, Index
from hitbox.index.comparison import differences
from hitbox.index.sharded import part_of

SCHEMA = {"a": "int", "b": "float", "s": "string"}


def states(rows: dict[int, tuple[str, int]], parts: int) -> list[Any]:
    made = [Index(SCHEMA) for _ in range(parts)]
    for id, (where, priority) in rows.items():
        made[int(part_of(pa.array([id]), parts)[0])].subscribe(id, where, priority=priority)
    return [index.compacted() for index in made]


def expected(before: dict[int, Any], after: dict[int, Any]) -> set[Any]:
    found = {(id, "removed", row, None) for id, row in before.items() if id not in after}
    found |= {(id, "added", None, row) for id, row in after.items() if id not in before}
    return found | {(id, "changed", row, after[id]) for id, row in before.items() if after.get(id, row) != row}


def plain(found: Any) -> list[Any]:
    return [(d.id, d.change, d.before and d.before[:2], d.after and d.after[:2]) for d in found]


@pytest.mark.parametrize(("old", "new"), [(1, 1), (3, 3), (1, 4), (3, 2)])
def test_against_dictionaries(old: int, new: int) -> None:
    random.seed(old * 10 + new)
    texts = ["a > 3", "a > 4", "a = 1 OR s = 'x'", "s LIKE '%y'", "s = 'z' AND b < 2.5", "a > 3 AND a < 2"]

    def row() -> tuple[str, int]:
        return random.choice(texts), random.randrange(3)

    before = {id: row() for id in range(300)}
    after = {id: one if random.random() < 0.7 else row() for id, one in before.items() if random.random() < 0.9}
    after |= {id: row() for id in range(300, 330)}
    with pytest.warns(match="never"):
        one, two = states(before, old), states(after, new)
    found = plain(differences(one, two, same_keys=False))
    assert len(found) == len(set(found))
    assert set(found) == expected(before, after)
    by_part = [d for part in range(max(old, new)) for d in plain(differences(one, two, False, only=part))]
    assert sorted(map(str, by_part)) == sorted(map(str, found))


def wide(rows: list[tuple[int, Any, Any, str]]) -> Index:
    index = Index({"a": "int", "s": "string"})
    ids, low, high, text = zip(*rows, strict=True)
    index.load(pa.table({"id": ids, "a_low": low, "a_high": high, "s_low": text, "s_high": text}))
    return index


@pytest.mark.parametrize("same_keys", [True, False])
def test_bounds_are_compared_by_value(same_keys: bool) -> None:
    one = wide([(1, 1, 2, "x"), (2, 1, 2, "y"), (3, None, 5, "x"), (4, 1, 1, "x"), (5, 1, 2, "y")])
    two = wide([(5, 1, 2, "x"), (4, 1, 1, "x"), (3, 0, 5, "x"), (2, 1, 2, "y"), (1, 1, 2, "x")])
    found = list(differences([one.compacted()], [two.compacted()], same_keys))
    assert [(d.id, d.change) for d in found] == [(3, "changed"), (5, "changed")]
    assert found[0].after is not None
    assert found[0].after.where == two.where(3)


def test_labels_that_moved_are_no_change() -> None:
    """The key of a string depends on the other strings of its dictionary."""
    one = wide([(1, 1, 2, "b"), (2, 1, 2, "d")])
    two = wide([(1, 1, 2, "b"), (2, 1, 2, "d"), (3, 1, 2, "a"), (4, 1, 2, "c")])
    found = list(differences([one.compacted()], [two.compacted()], same_keys=False))
    assert [(d.id, d.change) for d in found] == [(3, "added"), (4, "added")]


@pytest.mark.parametrize("same_keys", [True, False])
def test_what_subscriptions_say_about_themselves(same_keys: bool) -> None:
    sides = []
    for age in (30, 31):
        index = Index({"a": "int", "age": Attribute("int", role="information")})
        index.subscribe("x", "a > 1", about={"age": 30})
        index.subscribe("y", "a > 1", about={"age": age})
        sides.append([index.compacted()])
    (found,) = differences(sides[0], sides[1], same_keys)
    assert found.id == "y"
    assert found.before is not None
    assert found.after is not None
    assert (found.before.about, found.after.about) == ({"age": 30}, {"age": 31})
