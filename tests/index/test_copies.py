"""Copies and pickles of what users hold: an index of its own, or one sentence that says what to do."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from hitbox import Attribute, Exchange, Index, Schema
from hitbox.errors import HitboxError, LimitExceeded
from hitbox.index.sharded import Shards
from hitbox.language import Limits

WAYS: list[Callable[[Any], Any]] = [copy.copy, copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("matcher", ["hitbox", "brute"])
def test_a_copy_of_an_index_is_an_index_of_its_own(way: Callable[[Any], Any], matcher: str, tmp_path: Path) -> None:
    options: dict[str, Any] = {"tail": 3} if matcher == "hitbox" else {}
    index = Index({"a": "int", "s": "string"}, matcher, limits=Limits(text=100), **options)
    for i in range(10):
        index.subscribe(f"id{i}", f"a > {i} OR s LIKE '%{i}'", priority=i)
    index.unsubscribe("id3")
    event = {"a": 5, "s": "x8"}
    want = index.match(event)
    other = way(index)
    assert other.match(event) == want
    assert (other.schema, other.matcher, other.limits) == (index.schema, index.matcher, index.limits)
    if matcher == "hitbox":
        assert other._state.matcher._tail_limit == 3
    other.subscribe("new", "s = 'new word'")
    other.unsubscribe("id1")
    index.subscribe("mine", "s = 'mine'")
    assert index.match(event) == want
    assert "new" not in index
    assert "mine" not in other
    assert other.match({"s": "new word"}) == ["new"]
    assert other.match({"s": "mine"}) == []
    with pytest.raises(LimitExceeded):
        other.subscribe("long", "a = 1 OR " * 50 + "a = 2")
    index.save(tmp_path)
    opened = way(Index.open(tmp_path))
    assert opened.match(event) == want
    opened.unsubscribe("id0")


class Named(Index):
    """What a program may make of an index."""

    def __init__(self, name: str, **schema: Any):
        super().__init__(schema)
        self.name, self.notes = name, [name]


@pytest.mark.parametrize("way", WAYS)
def test_a_copy_has_what_a_subclass_added(way: Callable[[Any], Any]) -> None:
    index = Named("mine", a="int")
    index.subscribe(1, "a > 3")
    other = way(index)
    assert (type(other), other.name, other.notes, other.match({"a": 4})) == (Named, "mine", ["mine"], [1])
    assert (other.notes is index.notes) == (way is copy.copy)
    other.subscribe(2, "a > 3")
    assert (len(other), len(index)) == (2, 1)


@pytest.mark.parametrize("way", WAYS[1:])
def test_a_copy_of_a_side_is_that_of_a_copied_exchange(way: Callable[[Any], Any]) -> None:
    exchange = Exchange({"price": "int"})
    exchange.subscribe("s1", "price > 5")
    side = way(exchange.subscriptions)
    exchange.subscribe("s2", "price > 5")
    assert list(side) == ["s1"]
    side._exchange.subscribe("s3", "price > 5")
    assert list(side) == ["s1", "s3"]
    assert list(way(exchange).subscriptions) == ["s1", "s2"]


@pytest.mark.parametrize("way", WAYS)
def test_a_copy_of_an_exchange(way: Callable[[Any], Any]) -> None:
    exchange = Exchange({"price": "int", "age": Attribute("int", role="information")}, max_events=2, max_age=1000)
    exchange.subscribe("s1", "price > 5", about={"age": 40})
    exchange.publish("e1", {"price": 9}, where="age > 30")
    other = way(exchange)
    assert other.publish("e2", {"price": 7}) == ["s1"]
    assert other.subscribe("s2", "price > 0", about={"age": 35}) == ["e1", "e2"]
    other.publish("e3", {"price": 1})
    assert (sorted(other.events), sorted(other.subscriptions)) == (["e2", "e3"], ["s1", "s2"])
    assert (list(exchange.events), list(exchange.subscriptions)) == (["e1"], ["s1"])


@pytest.mark.parametrize("way", WAYS)
def test_copies_of_plain_values(way: Callable[[Any], Any]) -> None:
    schema = Schema({"a": Attribute("float", domain=(0, 1), precision="0.1"), "s": "string"})
    assert way(schema) == schema
    index = Index(schema)
    index.subscribe(1, "s = 'x'")
    matches = index.match_batch(pa.table({"s": ["x", "y"]}))
    other = way(matches)
    assert (other[0], other[1], len(other)) == ([1], [], 2)
    assert other.to_table() == matches.to_table()


@pytest.mark.parametrize("way", WAYS)
def test_shards_say_what_to_do(way: Callable[[Any], Any], tmp_path: Path) -> None:
    index = Index({"a": "int"})
    index.subscribe(1, "a > 3")
    index.save(tmp_path)
    with pytest.raises(HitboxError, match="open it again"):
        way(Shards.open(tmp_path))
