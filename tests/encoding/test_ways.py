"""Dotted names in events of an open index: several ways may lead through objects, and the first one counts."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from hitbox import Index
from hitbox.encoding import documents
from hitbox.encoding.documents import ABSENT, Document, lookup, open_document, open_elements
from hitbox.encoding.inputs import as_mapping
from hitbox.encoding.open_values import LISTS, elements

NAMES = ["a", "b", "a.a", "a.b", "b.a", "a.a.a", "", ".", "a.", ".a", "a..a"]


def plain_lookup(event: Mapping[Any, Any], name: str) -> Any:
    """The field by its dotted name, one way after the other: what `lookup` means."""
    found = event.get(name, ABSENT)
    if found is not ABSENT or "." not in name:
        return found
    at = name.find(".")
    while at > 0:
        inner = as_mapping(event.get(name[:at], ABSENT))
        if inner is not None:
            found = plain_lookup(inner, name[at + 1 :])
            if found is not ABSENT:
                return found
        at = name.find(".", at + 1)
    return ABSENT


def plain_walk(origin: Any, steps: Sequence[str]) -> tuple[list[Any], bool]:
    """What `open_elements` means."""
    if isinstance(origin, Mapping):
        whole = plain_lookup(origin, ".".join(steps))
        if whole is not ABSENT:
            return (elements(whole), True) if isinstance(whole, LISTS) else ([whole], False)
        for end in range(len(steps) - 1, 0, -1):
            inner = plain_lookup(origin, ".".join(steps[:end]))
            if isinstance(inner, LISTS):
                return [value for one in elements(inner) for value in plain_walk(one, steps[end:])[0]], True
    return [None], False


def random_value(rng: random.Random, depth: int, lists: bool) -> Any:
    kind = rng.random()
    if depth and kind < 0.65:
        names: list[Any] = rng.sample(NAMES, rng.randint(0, 5))
        if rng.random() < 0.05:
            names.append(rng.choice([None, 1]))
        return {name: random_value(rng, depth - 1, lists) for name in names}
    if depth and lists and kind < 0.8:
        return [random_value(rng, depth - 1, lists) for _ in range(rng.randint(0, 3))]
    return None if kind > 0.95 else rng.randint(0, 99)


def many_ways(depth: int, end: Any) -> dict[str, Any]:
    """An event with as many ways to a name as a Fibonacci number says."""
    if depth <= 0:
        return dict(end)
    return {"a": many_ways(depth - 1, end), "a.a": many_ways(depth - 2, end)}


@pytest.mark.parametrize("tried", [0, 2, 32])
@pytest.mark.parametrize("lists", [False, True])
def test_all_ways_mean_what_one_after_the_other_means(tried: int, lists: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """`tried`: with 0, all ways are noted; otherwise if there are more."""
    monkeypatch.setattr(documents, "MOST_TRIED", tried)
    rng = random.Random(f"{tried} {lists}")
    met = 0
    for _ in range(400):
        event = {name: random_value(rng, 5, lists) for name in rng.sample(NAMES, 6)}
        document = open_document(event)
        for _ in range(30):
            name = ".".join(rng.choice(["a", "a", "b", ""]) for _ in range(rng.randint(1, 8)))
            found = plain_lookup(event, name)
            assert lookup(document, name) is found
            met += found is not ABSENT
            values, is_list = plain_walk(event, name.split("."))
            expected = None if not is_list and values[0] is None else values
            assert open_elements(document, (name,)) == expected
    assert met > 500


def test_names_longer_than_what_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "LONGEST", 9)
    event = many_ways(10, {"b": 7})
    document = open_document(event)
    for length in range(14):
        for end in ("b", "c"):
            name = "a." * length + end
            assert lookup(document, name) is plain_lookup(event, name)


@pytest.mark.parametrize("where", ["{} = 1", "ANY({}) = 1", "OLD.{} = 1", "EXISTS({} WHERE TRUE)", "ANY(list.{}) = 1"])
def test_names_share_the_work_for_ways(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each object is looked at a few times for a name, and once more for all of them."""
    looked = 0

    def counted(value: Any) -> Any:
        nonlocal looked
        looked += isinstance(value, dict)
        return as_mapping(value)

    index = Index()
    for number in range(50):
        index.subscribe(number, where.format("a." * 30 + f"x{number}"))
    inner = many_ways(14, {"b": 1})
    event = {"old": inner, "new": {}} if "OLD" in where else {"list": [inner]} if "list" in where else inner
    monkeypatch.setattr(documents, "as_mapping", counted)
    assert index.match(event) == []
    assert 1_000 < looked < 5_000


def test_an_event_that_changes_between_two_calls() -> None:
    index = Index()
    index.subscribe(1, "a.a.a.a.a.b = 1")
    event: dict[str, Any] = many_ways(12, {"c": 1})
    assert index.match(event) == []
    event["a.a.a"] = {"a": {"a": {"b": 1}}}
    assert index.match(event) == [1]
    assert Document(event).ways is None
