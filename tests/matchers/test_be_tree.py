"""BE-Tree: its rules hold as it grows and shrinks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hitbox.encoding.arrays import Space
from hitbox.matchers import make
from support.matcher_data import ranges


def be_nodes(matcher: Any) -> list[tuple[int, tuple[tuple[int, int, int], ...]]]:
    """Every c-node with its path: (attribute, low code, high code) of each bucket above it."""
    from hitbox.matchers import be_tree as b

    found, todo = [], [(b.ROOT, ())]
    while todo:
        node, path = todo.pop()
        found.append((node, path))
        one = matcher.nodes[node, b.LINK]
        while one:
            todo += [
                (
                    bucket,
                    (*path, (int(matcher.dirs[one, b.ATTRIBUTE]), *matcher.nodes[bucket, [b.LOW, b.HIGH]].tolist())),
                )
                for bucket in be_buckets(matcher, matcher.dirs[one, b.BUCKET])
            ]
            one = matcher.dirs[one, b.NEXT]
    return found


def be_buckets(matcher: Any, bucket: int) -> list[int]:
    from hitbox.matchers import be_tree as b

    left, right = matcher.nodes[bucket, [b.LEFT, b.RIGHT]].tolist()
    return [bucket, *(be_buckets(matcher, left) + be_buckets(matcher, right) if left else [])]


@pytest.mark.parametrize("width", [30, 400])
def test_be_tree_keeps_its_rules(width: int) -> None:
    from hitbox.matchers import be_tree as b
    from hitbox.matchers.pages import chain

    rng = np.random.default_rng(8)
    matcher: Any = make("be-tree", Space.of(5, 0, 1000), capacity=10)
    matcher.insert(np.arange(3000), ranges(rng, 3000, 5, width))
    matcher.delete(rng.permutation(3000)[:1000])
    seen: list[int] = []
    for node, path in be_nodes(matcher):
        numbers = chain(matcher.pages, matcher.nodes[node, b.HEAD])
        assert len(numbers) == matcher.nodes[node, b.SIZE] <= matcher.nodes[node, b.CAPACITY]
        attributes = [attribute for attribute, _, _ in path]
        assert len(set(attributes)) == len(attributes), "an attribute comes once on a path"
        assert len(numbers) <= 10 or len(attributes) == 5, "only where no attribute is left may an l-node be larger"
        for number in numbers:
            assert matcher.place[number] == node
            box = matcher.boxes(np.array([number]))[0]
            for attribute, low, high in path:
                ends = matcher.grid.codes(np.full(2, attribute, np.int32), np.array(box[attribute]))
                assert low <= ends[0] <= ends[1] <= high
        seen += numbers
    assert sorted(seen) == matcher.store.living().tolist()
    assert len(be_nodes(matcher)) > 100


def test_be_tree_shrinks_to_its_root() -> None:
    rng = np.random.default_rng(9)
    matcher: Any = make("be-tree", Space.of(5, 0, 1000), capacity=10)
    matcher.insert(np.arange(3000), ranges(rng, 3000, 5, 30))
    for part in np.array_split(rng.permutation(3000), 3):
        matcher.delete(part)
    assert len(be_nodes(matcher)) == 1
    used = matcher.nodes[0, 1]
    matcher.insert(np.arange(3000), ranges(rng, 3000, 5, 30))
    assert matcher.nodes[0, 1] <= 2 * used, "freed nodes are used again"
