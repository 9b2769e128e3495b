"""Conditions of all kinds in one predicate: on keys, on derived attributes, on lists and fragments of texts."""

from __future__ import annotations

import random
import warnings
from pathlib import Path

import pyarrow as pa
import pytest

import hitbox
from hitbox import Index, Limits
from support import second_evaluator as second
from support.random_documents import SCHEMA, TYPES, Writer, meaning, nested, random_image

DERIVED = [
    "LOWER(s) = 'ab'",
    "LOWER(s) NOT IN ('a', 'b', 'ab')",
    "s LIKE '%b'",
    "s NOT LIKE '%a'",
    "s ILIKE 'A%'",
    "LENGTH(s) <> 1",
    "a > b",
    "a - b BETWEEN -1 AND 1",
    "ABS(a) <= 2",
    "LOWER(s) IS NULL",
    "OLD.a < a",
]
ANCHORED = [
    "s LIKE '%a%'",
    "s ILIKE '%B%'",
    "s LIKE 'a%b'",
    "ANY(tags) = 'a'",
    "ANY(tags) IN ('a', 'b')",
    "EXISTS(items WHERE sku = 'a')",
    "s REGEXP 'b+a?'",
]
PLAIN = ["a = 1", "b <> 2", "a NOT IN (0, 2)", "s > 'a'", "x < 1", "s IS NULL", "ok", "order.city = 'a'"]


def predicate(rng: random.Random, depth: int) -> str:
    """At least one condition of each kind, and branches around them."""
    texts = [rng.choice(DERIVED), rng.choice(ANCHORED), rng.choice(PLAIN)]
    texts += [rng.choice(rng.choice([DERIVED, ANCHORED, PLAIN])) for _ in range(depth)]
    other = Writer(rng).predicate(1)
    if rng.random() < 0.3 and "DISTANCE" not in other and "NOW" not in other:
        texts.append(f"({other})")
    rng.shuffle(texts)
    while len(texts) > 1:
        size = min(rng.randint(2, 3), len(texts))
        joined = f" {rng.choice(['AND', 'AND', 'OR', 'OR', 'XOR'])} ".join(texts[:size])
        texts = [*texts[size:], f"{rng.choice(['', '', '', 'NOT '])}({joined})"]
    return texts[0]


def check(index: Index, texts: dict[int, str], rng: random.Random) -> None:
    trees = {id: second.parse(text, TYPES) for id, text in texts.items()}
    given, wanted = [], []
    for _ in range(12):
        new, old = random_image(rng), random_image(rng) if rng.random() < 0.4 else None
        given.append(nested(rng, new) if old is None else {"old": nested(rng, old), "new": nested(rng, new)})
        world = second.World(meaning(new) or {}, meaning(old), 0)
        wanted.append(sorted(id for id, tree in trees.items() if second.truth(tree, TYPES, world) is True))
    for event, ids in zip(given, wanted, strict=True):
        assert sorted(index.match(event)) == ids, event
    assert [sorted(ids) for ids in index.match_batch(given).to_lists()] == wanted


@pytest.mark.parametrize("matcher", ["hitbox", "brute"])
@pytest.mark.parametrize("boxes", [1, 3, 16])
def test_the_second_evaluator_agrees(boxes: int, matcher: str, tmp_path: Path) -> None:
    """Through updates, loads and a snapshot. With few boxes, programs decide more; with few keys for functions, numbers
    of derived attributes are given to others."""
    rng = random.Random(boxes)
    limits = Limits(boxes=boxes, derived=rng.choice([3, 64]))
    index = Index(SCHEMA, matcher, limits=limits)
    texts: dict[int, str] = {}
    kinds = set()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", hitbox.HitboxWarning)
        for turn in range(5):
            for _ in range(60):
                id = rng.randrange(150)
                texts[id] = predicate(rng, rng.randint(0, 2))
                index.subscribe(id, texts[id], priority=rng.randint(0, 9))
            some = {rng.randrange(150): predicate(rng, 1) for _ in range(30)}
            index.load(pa.table({"id": list(some), "where": list(some.values())}))
            texts |= some
            for id in rng.sample(sorted(texts), 20):
                index.unsubscribe(id)
                del texts[id]
            if turn == 2:
                index.save(tmp_path / "saved")
                index = Index.open(tmp_path / "saved", limits=limits)
            index._changing.forget_words()
            check(index, texts, rng)
            kinds |= {"anchors"} if len(index._state.anchors) else set()
            kinds |= {"programs"} if index._state.catalog.programs else set()
            kinds |= {"derived"} if index._state.use.used else set()
    assert kinds == {"anchors", "programs", "derived"}
    index.unsubscribe_many(sorted(texts))
    assert index._state.use.used == []
