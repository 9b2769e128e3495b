"""UB-tree: addresses, leaps, pages."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hitbox.encoding.arrays import Boxes, Space
from hitbox.matchers import make
from support.matcher_data import two_sided


@pytest.mark.parametrize(("dimensions", "shares"), [(1, 7), (2, 4), (3, 3), (4, 2), (5, 2), (8, 1)])
@pytest.mark.parametrize("lowest", [False, True])
def test_ub_tree_leaps_to_the_next_address_in_the_corner(dimensions: int, shares: int, lowest: bool) -> None:
    from hitbox.matchers.ub_tree import leap

    rng = np.random.default_rng(13)
    every = np.stack(np.meshgrid(*[np.arange(1 << shares)] * dimensions), axis=-1).reshape(-1, dimensions)
    every = (every << (0 if lowest else 16 - shares)).astype(np.uint16)  # in the last words of an address, or the first
    addresses = ub_addresses(every)
    assert len(set(addresses)) == len(every)
    below, target = np.empty(dimensions, np.bool_), np.empty(len(addresses[0]), np.uint64)
    for corner in every[rng.permutation(len(every))[:12]]:
        lies_in = sorted(ub_addresses(every[(every <= corner).all(axis=1)]))
        for address in addresses:
            after = [other for other in lies_in if other >= address]
            assert leap(np.array(address, np.uint64), corner, below, target) == bool(after)
            assert not after or tuple(target.tolist()) == after[0]


def ub_addresses(images: Any) -> list[tuple[int, ...]]:
    from hitbox.matchers.ub_tree import addresses_of

    return [tuple(words) for words in addresses_of(np.arange(len(images)), images).tolist()]


def test_ub_tree_takes_the_bits_of_all_dimensions_in_turn() -> None:
    from hitbox.matchers.ub_tree import addresses_of

    images = np.array([[0b1 << 15, 0, 0, 0, 0b11 << 14], [0, 1, 0, 0, 0]], np.uint16)
    second, first = addresses_of(np.array([1, 0]), images)
    assert first.tolist() == [(0b10001 << 59) | (0b00001 << 51), 0]
    assert second.tolist() == [0, 1 << (128 - 122)]  # the last bit of the second of eight: place 15 * 8 + 1


@pytest.mark.parametrize("dimensions", [*range(20), 64, 66, 128, 130])
def test_ub_tree_addresses_of_any_number_of_dimensions(dimensions: int) -> None:
    images = np.random.default_rng(15).integers(0, 1 << 16, (9, dimensions)).astype(np.uint16)
    eights = max(1, -(-dimensions // 8))
    for image, address in zip(images.tolist(), ub_addresses(images), strict=True):
        codes = image + [0] * (8 * eights - dimensions)
        bits = "".join(str(code >> share & 1) for share in range(15, -1, -1) for code in codes)
        assert address == tuple(int(bits[i : i + 64], 2) for i in range(0, len(bits), 64))


def ub_leaves(matcher: Any) -> list[tuple[tuple[int, ...], int]]:
    """(address, number) of all leaves from left to right, checking the pages on the way."""
    from hitbox.matchers import ub_tree as u

    addresses, numbers, children, headings = matcher.tree

    def entries(page: int) -> list[tuple[tuple[int, ...], int]]:
        count = headings[page, u.COUNT]
        return list(zip(map(tuple, addresses[page, :count].tolist()), numbers[page, :count].tolist(), strict=True))

    def walk(page: int, low: Any, high: Any) -> list[int]:
        keys, level = entries(page), headings[page, u.LEVEL]
        assert keys == sorted(keys)
        if level == 0:
            assert all(low <= key < high for key in keys)
            return [page]
        ends = [low, *keys[1:], high]
        leaves = []
        for i, child in enumerate(children[page, : len(keys)].tolist()):
            assert headings[child, u.LEVEL] == level - 1
            leaves += walk(child, ends[i], ends[i + 1])
        return leaves

    leaves = walk(matcher.root, ((0,), -1), ((2**64,), 0))
    assert [int(headings[leaf, u.NEXT]) for leaf in leaves] == [*leaves[1:], 0]
    return [key for leaf in leaves for key in entries(leaf)]


def test_ub_tree_stays_ordered_and_merges_its_pages() -> None:
    rng = np.random.default_rng(14)
    matcher: Any = make("ub-tree", Space.of(2, 0, 1000), fanout=6)
    alive: set[int] = set()
    boxes = Boxes.of_dense(*two_sided(rng, 2000, 2, size=60))  # many with the same address
    matcher.insert(np.arange(400), boxes.take(np.arange(400)))
    alive |= set(range(400))
    for _ in range(8):
        gone = rng.permutation(sorted(alive))[: rng.integers(0, 300)]
        matcher.delete(gone)
        alive -= set(gone.tolist())
        new = rng.permutation(np.setdiff1d(np.arange(2000), sorted(alive)))[:200]
        matcher.insert(new, boxes.take(new))
        alive |= set(new.tolist())
        numbers = np.array(sorted(alive))
        assert ub_leaves(matcher) == sorted(zip(ub_addresses(matcher.images[numbers]), numbers.tolist(), strict=True))
    matcher.delete(rng.permutation(sorted(alive)))
    assert ub_leaves(matcher) == []
    assert matcher.tree[3][matcher.root, 2] == 0  # the root is a leaf again
