"""ub-tree: boxes as Z-addresses in a B+-tree; a query leaps from one stretch of addresses in its corner to the next.

Bayer's UB-tree ("The Universal B-Tree for Multidimensional Indexing", 1996), with the dimension transform as the
index of Wang, Zhang and Kitsuregawa's publish/subscribe (DASFAA 2004; see transform.py). The bits of all dimensions,
taken in turn from the top, make one address; a B+-tree keeps (address, number) in order, `fanout` of them a page:

    dimension 0  a1 a2 ..        address  a1 b1 c1 a2 b2 c2 ..        inner pages   [ first key of each child ]
    dimension 1  b1 b2 ..                                                              |        |        |
    dimension 2  c1 c2 ..                                             leaves        [ z z z ]->[ z z ]->[ z z z ]

A query reads a leaf, computes the smallest address beyond it that lies in the corner again (Tropf and Herzog's
bit-by-bit rule), and goes down the tree to that one unless it is in the next leaf anyway; so empty space and space
outside the corner are skipped, at the price of that computation.

Choices where the papers leave room: an address is one 64-bit word. It has 64 // 2m bits a dimension (at most 16): two
for 16 attributes, and no more would ever be looked at, since with a million boxes the pages differ in their first 14
bits or so. With more than 32 attributes the 64 dimensions that most boxes constrain take one bit each. What the
address leaves open is decided by the box's 16-bit image, then by its exact bounds. A page that has become less than a
quarter full is merged with a neighbour that has room for it.

Cost: match O(pages that the corner's addresses touch) and a leap of 64 steps each; insert and delete O(fanout + log
n); memory 16 bytes an entry at about 70 % filling, 4m for its image, beside the exact bounds.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from hitbox.boxes import I32, I64, Boxes, Hits, Points, Space
from hitbox.errors import MatcherError
from hitbox.matchers.grid import U16, meets, report
from hitbox.matchers.kernels import U64
from hitbox.matchers.transform import Transformed, within

BITS = 64
# columns of a page's heading; NEXT is the leaf to the right, or the next free page
NEXT, COUNT, LEVEL = range(3)
DEEPEST = 12

Pages = tuple[U64, I32, I32, I32]  # addresses, numbers, children, headings


class UbTree(Transformed):
    def __init__(self, space: Space, *, fanout: int = 200):
        if fanout < 4:
            raise MatcherError(f"ub-tree: fanout must be at least 4, not {fanout}")
        self.fanout = fanout
        super().__init__(space)

    def _restart(self, boxes: Boxes) -> None:
        shape = (4, self.fanout)
        self.tree: Pages = (
            np.zeros(shape, np.uint64),
            np.zeros(shape, np.int32),
            np.zeros(shape, np.int32),
            np.zeros((4, 3), np.int32),
        )
        self.tree[3][0, COUNT], self.root = 1, 1  # heading 0: first free page, last page ever used
        used = np.bincount(boxes.attribute, minlength=self.space.attributes)
        chosen = np.sort(np.argsort(-used, kind="stable")[: BITS // 2])
        self.dimensions = np.stack([2 * chosen, 2 * chosen + 1], axis=1).ravel()
        self.shares = min(16, BITS // max(1, len(self.dimensions)))
        self.masks = masks(len(self.dimensions), self.shares)

    def _place(self, numbers: I64, boxes: Boxes) -> None:
        self.image_boxes(numbers, boxes)
        addresses = addresses_of(self.images[numbers], self.dimensions, self.shares)
        order = np.lexsort((numbers, addresses))  # neighbours one after the other: the same pages stay in cache
        self.tree, self.root = insert_all(addresses[order], numbers[order], self.tree, self.root)

    def _remove(self, numbers: I64, boxes: Boxes) -> None:
        addresses = addresses_of(self.images[numbers], self.dimensions, self.shares)
        self.root = delete_all(addresses, numbers, *self.tree, self.root)

    def stamped(self, points: Points, stamps: I64) -> Hits:
        corners = self.image_points(points)
        ends = addresses_of(corners, self.dimensions, self.shares)
        query = (points.low, points.high, corners, ends)
        return Hits(*visit(*query, self.masks, *self.tree, self.root, self.images, self.bounds, stamps))

    def nbytes(self) -> int:
        return super().nbytes() + sum(part.nbytes for part in self.tree) + self.images.nbytes


def masks(dimensions: int, shares: int) -> U64:
    """The bits of each dimension in an address."""
    found = np.zeros(dimensions, np.uint64)
    for place in range(dimensions * shares):
        found[place % dimensions] |= np.uint64(1 << (BITS - 1 - place))
    return found


@njit(cache=True, nogil=True)
def addresses_of(images: U16, dimensions: I64, shares: int) -> U64:
    addresses = np.zeros(len(images), np.uint64)
    for i in range(len(images)):
        place = BITS - 1
        for share in range(shares):
            for d in dimensions:
                bit = (np.uint64(images[i, d]) >> np.uint64(15 - share)) & np.uint64(1)
                addresses[i] |= bit << np.uint64(place)
                place -= 1
    return addresses


@njit(cache=True, nogil=True)
def inside(address: np.uint64, end: np.uint64, masks: U64) -> bool:
    """Whether an address lies in the corner whose last address is `end`: in no dimension beyond it."""
    d = 0
    while d < len(masks) and address & masks[d] <= end & masks[d]:
        d += 1
    return d == len(masks)


@njit(cache=True, nogil=True)
def leap(address: np.uint64, end: np.uint64, masks: U64) -> np.uint64:
    """The smallest address in the corner that is not below `address`; 0 where there is none (or it is 0 itself)."""
    low, high, best, one = np.uint64(0), end, np.uint64(0), np.uint64(1)
    for place in range(BITS):
        bit = one << np.uint64(BITS - 1 - place)
        mask = masks[place % len(masks)]
        below = mask & (bit - one)
        if mask & bit == 0:
            break
        here, from_low, from_high = address & bit, low & bit, high & bit
        if here == 0 and from_high:
            if from_low:
                return low
            best = (low & ~below) | bit
            high = (high & ~bit) | below
        elif here:
            if from_high == 0:
                return best
            if from_low == 0:
                low = (low & ~below) | bit
    return address


@njit(cache=True, nogil=True)
def slot(page: int, address: np.uint64, number: int, addresses: U64, numbers: I32, headings: I32) -> int:
    """How many entries of a page come before (address, number)."""
    low, high = 0, headings[page, COUNT]
    while low < high:
        half = (low + high) // 2
        other = addresses[page, half]
        if other < address or (other == address and numbers[page, half] < number):
            low = half + 1
        else:
            high = half
    return low


@njit(cache=True, nogil=True)
def descend(
    address: np.uint64, number: int, addresses: U64, numbers: I32, children: I32, headings: I32, root: int, path: I64
) -> int:
    """The leaf for (address, number); `path[level]` gets the page on the way and the child taken there."""
    page = root
    while headings[page, LEVEL]:
        at = max(0, slot(page, address, number + 1, addresses, numbers, headings) - 1)  # the first has no lower end
        level = headings[page, LEVEL]
        path[level, 0], path[level, 1] = page, at
        page = children[page, at]
    return page


@njit(cache=True, nogil=True)
def new_page(tree: Pages, level: int) -> tuple[Pages, int]:
    addresses, numbers, children, headings = tree
    page = headings[0, NEXT]
    if page:
        headings[0, NEXT] = headings[page, NEXT]
    else:
        headings[0, COUNT] += 1
        page = headings[0, COUNT]
        if page == len(headings):
            addresses = np.concatenate((addresses, np.zeros_like(addresses)))
            numbers = np.concatenate((numbers, np.zeros_like(numbers)))
            children = np.concatenate((children, np.zeros_like(children)))
            headings = np.concatenate((headings, np.zeros_like(headings)))
    headings[page, NEXT], headings[page, COUNT], headings[page, LEVEL] = 0, 0, level
    return (addresses, numbers, children, headings), page


@njit(cache=True, nogil=True)
def shift(page: int, begin: int, by: int, addresses: U64, numbers: I32, children: I32, headings: I32) -> None:
    """Move the entries from `begin` on by one place, up or down."""
    count = headings[page, COUNT]
    places = range(count - 1, begin - 1, -1) if by > 0 else range(begin, count)
    for i in places:
        addresses[page, i + by] = addresses[page, i]
        numbers[page, i + by] = numbers[page, i]
        children[page, i + by] = children[page, i]
    headings[page, COUNT] += by


@njit(cache=True, nogil=True)
def move(source: int, begin: int, target: int, addresses: U64, numbers: I32, children: I32, headings: I32) -> None:
    """Append the entries of `source` from `begin` on to `target`."""
    count, to = headings[source, COUNT], headings[target, COUNT]
    for i in range(begin, count):
        addresses[target, to] = addresses[source, i]
        numbers[target, to] = numbers[source, i]
        children[target, to] = children[source, i]
        to += 1
    headings[source, COUNT], headings[target, COUNT] = begin, to


@njit(cache=True, nogil=True)
def put(page: int, at: int, address: np.uint64, number: int, child: int, tree: Pages) -> None:
    shift(page, at, 1, *tree)
    tree[0][page, at], tree[1][page, at], tree[2][page, at] = address, number, child


@njit(cache=True, nogil=True)
def split(page: int, at: int, tree: Pages) -> tuple[Pages, int]:
    """Move the upper half of a full page to a new one on its right; nothing where the new entry goes to the end."""
    tree, other = new_page(tree, tree[3][page, LEVEL])
    headings = tree[3]
    half = headings[page, COUNT] // 2 if at < headings[page, COUNT] else headings[page, COUNT]
    move(page, half, other, *tree)
    if headings[page, LEVEL] == 0:
        headings[other, NEXT], headings[page, NEXT] = headings[page, NEXT], other
    return tree, other


@njit(cache=True, nogil=True)
def insert_all(addresses: U64, numbers: I64, tree: Pages, root: int) -> tuple[Pages, int]:
    path = np.zeros((DEEPEST, 2), np.int64)
    fanout = tree[0].shape[1]
    for i in range(len(addresses)):
        address, number, child, level = addresses[i], numbers[i], 0, 0
        page = descend(address, number, *tree, root, path)
        at = slot(page, address, number, tree[0], tree[1], tree[3])
        while tree[3][page, COUNT] == fanout:
            tree, other = split(page, at, tree)
            count = tree[3][page, COUNT]
            if at > count or count == fanout:
                put(other, at - count, address, number, child, tree)
            else:
                put(page, at, address, number, child, tree)
            level += 1
            if page == root:
                tree, root = new_page(tree, level)
                put(root, 0, tree[0][page, 0], tree[1][page, 0], page, tree)
                path[level, 0], path[level, 1] = root, 0
            address, number, child = tree[0][other, 0], np.int64(tree[1][other, 0]), other
            page, at = path[level, 0], path[level, 1] + 1
        put(page, at, address, number, child, tree)
    return tree, root


@njit(cache=True, nogil=True)
def merge(page: int, parent: int, at: int, addresses: U64, numbers: I32, children: I32, headings: I32) -> bool:
    """Merge a page, child `at` of its parent, with a neighbour under the same parent where both fit into one."""
    at += at == 0
    if headings[parent, COUNT] == 1:
        return False
    left, right = children[parent, at - 1], children[parent, at]
    if headings[left, COUNT] + headings[right, COUNT] > addresses.shape[1]:
        return False
    if headings[left, LEVEL]:  # the first child had no lower end of its own: it was the page's
        addresses[right, 0], numbers[right, 0] = addresses[parent, at], numbers[parent, at]
    else:
        headings[left, NEXT] = headings[right, NEXT]
    move(right, 0, left, addresses, numbers, children, headings)
    free_page(right, headings)
    shift(parent, at + 1, -1, addresses, numbers, children, headings)
    return True


@njit(cache=True, nogil=True)
def free_page(page: int, headings: I32) -> None:
    headings[page, NEXT] = headings[0, NEXT]
    headings[0, NEXT] = page


@njit(cache=True, nogil=True)
def delete_all(gone: U64, whose: I64, addresses: U64, numbers: I32, children: I32, headings: I32, root: int) -> int:
    path = np.zeros((DEEPEST, 2), np.int64)
    few = max(2, addresses.shape[1] // 4)
    for i in range(len(gone)):
        page = descend(gone[i], whose[i], addresses, numbers, children, headings, root, path)
        at = slot(page, gone[i], whose[i], addresses, numbers, headings)
        shift(page, at + 1, -1, addresses, numbers, children, headings)
        level = 1
        while page != root and headings[page, COUNT] < few:
            parent = path[level, 0]
            merged = merge(page, parent, path[level, 1], addresses, numbers, children, headings)
            if not merged and headings[parent, COUNT] > 1:
                break
            page, level = parent, level + 1
        while headings[root, LEVEL] and headings[root, COUNT] == 1:
            page = root
            root = children[root, 0]
            free_page(page, headings)
    return root


@njit(cache=True, nogil=True)
def read_leaf(
    leaf: int, at: int, end: np.uint64, masks: U64, corner: U16, lows: I64, highs: I64, reached: I32,
    addresses: U64, numbers: I32, headings: I32, images: U16,
    start: I64, length: I32, attribute: I32, low: I64, high: I64,
) -> int:  # fmt: skip
    """The boxes of a leaf from `at` on that meet the event, into `reached`: by address, by image, by exact bounds."""
    used = 0
    for i in range(at, headings[leaf, COUNT]):
        number = numbers[leaf, i]
        if (
            inside(addresses[leaf, i], end, masks)
            and within(images[number], corner)
            and meets(number, lows, highs, start, length, attribute, low, high)
        ):
            reached[used] = number
            used += 1
    return used


@njit(cache=True, nogil=True)
def visit(
    lows: I64, highs: I64, corners: U16, ends: U64, masks: U64,
    addresses: U64, numbers: I32, children: I32, headings: I32, root: int,
    images: U16, bounds: tuple[I64, I32, I32, I64, I64], stamps: I64,
) -> tuple[I64, I32]:  # fmt: skip
    offsets = np.zeros(len(lows) + 1, np.int64)
    found, used = np.empty(64, np.int32), 0
    reached, path = np.empty(addresses.shape[1], np.int32), np.zeros((DEEPEST, 2), np.int64)
    for event in range(len(lows)):
        end, at = ends[event], 0
        query = (end, masks, corners[event], lows[event], highs[event], reached)
        leaf = descend(np.uint64(0), -1, addresses, numbers, children, headings, root, path)
        while leaf:
            count = read_leaf(leaf, at, *query, addresses, numbers, headings, images, *bounds)
            found, used = report(reached, count, found, used, stamps)
            leaf = headings[leaf, NEXT]
            while leaf and headings[leaf, COUNT] == 0:
                leaf = headings[leaf, NEXT]
            if leaf:
                first, last = addresses[leaf, 0], addresses[leaf, headings[leaf, COUNT] - 1]
                target = leap(first, end, masks)
                if target == 0 and first > 0:
                    break
                if target > last:
                    leaf = descend(target, -1, addresses, numbers, children, headings, root, path)
                at = slot(leaf, target, -1, addresses, numbers, headings)
        offsets[event + 1] = used
    return offsets, found[:used].copy()
