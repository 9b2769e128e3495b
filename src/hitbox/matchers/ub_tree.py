"""ub-tree: boxes as Z-addresses in a B+-tree; a query leaps from one stretch of addresses in its corner to the next.

Bayer's UB-tree ("The Universal B-Tree for Multidimensional Indexing", 1996), with the dimension transform as the
index of Wang, Zhang and Kitsuregawa's publish/subscribe (DASFAA 2004; see transform.py). The bits of all dimensions,
taken in turn from the top, make one address; a B+-tree keeps (address, number) in order, `fanout` of them per page:

    dimension 0  a1 a2 ..        address  a1 b1 c1 a2 b2 c2 ..        inner pages   [ first key of each child ]
    dimension 1  b1 b2 ..                                                              |        |        |
    dimension 2  c1 c2 ..                                             leaves        [ z z z ]->[ z z ]->[ z z z ]

A query reads a leaf, computes the smallest address beyond it that lies in the corner again (Tropf and Herzog's
bit-by-bit rule), and goes down the tree to that one unless it is in the next leaf anyway; so empty space and space
outside the corner are skipped, at the price of that computation.

Choices where the papers leave room: an address has all 16 bits of every dimension, 64 bytes for 16 attributes (filled
up with zeros to eights of dimensions, which keeps the order). What an entry's address says is looked up in the box's
16-bit image, as mlgf does, then decided by its exact bounds. With `entries="addresses"` there are no images beside the
tree: an entry's address itself is read, bit by bit until it leaves the corner, as a UB-tree that keeps nothing but
addresses must do it and the paper's authors probably did. A page that has become less than a quarter full is merged
with a neighbour that has room for it.

Cost: match O(pages that the corner's addresses touch) and a leap of at most 32m steps each; insert and delete O(m
(fanout + log n)); memory 4m + 8 bytes per entry at about 70% filling, 4m for its image, beside the exact bounds.
"""

from __future__ import annotations

import sys

import numpy as np
from numba import njit
from numpy.typing import NDArray

from hitbox.encoding.arrays import I32, I64, Boxes, Hits, Points, Space
from hitbox.matchers.base import check_choice, check_count
from hitbox.matchers.grid import U16, meets, report
from hitbox.matchers.kernels import U64, prefetch, slide
from hitbox.matchers.pages import doubled
from hitbox.matchers.transform import Transformed, within

BITS = 16  # per dimension
WORD = 64
EIGHT = np.uint64(8)
FLIP = 7 if sys.byteorder == "little" else 0  # the first byte of an address is the highest of its first word
# columns of a page's heading; NEXT is the leaf to the right, or the next free page
NEXT, COUNT, LEVEL = range(3)
DEEPEST = 12

Pages = tuple[U64, I32, I32, I32]  # addresses, numbers, children, headings


class UbTree(Transformed):
    def __init__(self, space: Space, *, fanout: int = 200, entries: str = "images"):
        check_count("fanout", fanout, 4)
        check_choice("entries", entries, ("images", "addresses"))
        self.fanout, self.imaged = fanout, entries == "images"
        super().__init__(space)

    def _restart(self, boxes: Boxes) -> None:
        shape = (4, self.fanout)
        self.tree: Pages = (
            np.zeros((*shape, words_of(2 * self.space.attributes)), np.uint64),
            np.zeros(shape, np.int32),
            np.zeros(shape, np.int32),
            np.zeros((4, 3), np.int32),
        )
        self.tree[3][0, COUNT], self.root = 1, 1  # heading 0: first free page, last page ever used

    def _place(self, numbers: I64, boxes: Boxes) -> None:
        self.image_boxes(numbers, boxes)
        addresses = addresses_of(numbers, self.images)
        order = np.argsort(addresses[:, 0], kind="stable")  # neighbours in turn: the same pages stay in cache
        self.tree, self.root = insert_all(order, addresses, numbers, self.tree, self.root)

    def _remove(self, numbers: I64) -> None:
        self.root = delete_all(numbers, self.images, *self.tree, self.root)

    def match_timed(self, points: Points, stamps: I64) -> Hits:
        query = (points.low, points.high, self.image_points(points))
        return Hits(*visit(*query, *self.tree, self.root, self.images, self.imaged, self.bounds, stamps))

    def nbytes(self) -> int:
        images = self.images.nbytes if self.imaged else 0  # matching reads none otherwise
        return super().nbytes() + sum(part.nbytes for part in self.tree) + images


@njit(cache=True, nogil=True)
def words_of(dimensions: int) -> int:
    """Eight dimensions make two words; what is missing to eight is zero in every address."""
    return 2 * max(1, -(-dimensions // 8))


@njit(cache=True, nogil=True)
def addresses_of(numbers: I64, images: U16) -> U64:
    """The bits of each image's dimensions taken in turn, from the highest down, in words.

    Eight dimensions at a time: the upper halves of their codes are the rows of a square of bits and the lower halves
    those of another, whose columns are bytes of the address.
    """
    dimensions = images.shape[1]
    addresses = np.zeros((len(numbers), words_of(dimensions)), np.uint64)
    octets, eights = addresses.view(np.uint8), addresses.shape[1] // 2
    for i in range(len(numbers)):
        image, octet = images[numbers[i]], octets[i]
        for k in range(eights):
            upper = lower = np.uint64(0)
            for d in range(8 * k, 8 * k + 8):
                code = np.uint64(image[d] if d < dimensions else 0)
                upper = (upper << EIGHT) | (code >> EIGHT)
                lower = (lower << EIGHT) | (code & np.uint64(255))
            upper, lower = turned(upper), turned(lower)
            for row in range(8):
                last = np.uint64(56 - 8 * row)
                octet[(row * eights + k) ^ FLIP] = (upper >> last) & np.uint64(255)
                octet[((row + 8) * eights + k) ^ FLIP] = (lower >> last) & np.uint64(255)
    return addresses


@njit(cache=True, nogil=True)
def turned(square: np.uint64) -> np.uint64:
    """Eight rows of eight bits, from the highest down, with rows and columns exchanged (Warren, Hacker's Delight)."""
    for step, corner in ((7, 0x00AA00AA00AA00AA), (14, 0x0000CCCC0000CCCC), (28, 0x00000000F0F0F0F0)):
        by = np.uint64(step)
        other = (square ^ (square >> by)) & np.uint64(corner)
        square ^= other ^ (other << by)
    return square


@njit(cache=True, nogil=True)
def leap(address: U64, corner: U16, below: NDArray[np.bool_], target: U64) -> bool:
    """Whether any address in the corner is not below `address`; the smallest one goes to `target`.

    It is `address` itself, or agrees with it up to some 0, has 1 there and zeros behind: at the last place before
    `address` leaves the corner where that stays inside. `below` is room for a note of each dimension: already less.
    """
    dimensions, place, last = len(corner), 0, -1
    below[:] = False
    for share in range(BITS - 1, -1, -1):
        for d in range(dimensions):
            taken = (address[place // WORD] >> np.uint64(WORD - 1 - place % WORD)) & np.uint64(1)
            given = (corner[d] >> share) & 1
            if taken == 0 and (given or below[d]):
                last, below[d] = place, True
            elif taken and not given and not below[d]:
                if last >= 0:
                    cut(address, last, target)
                return last >= 0
            place += 1
        place += -dimensions % 8
    target[:] = address
    return True


@njit(cache=True, nogil=True)
def cut(address: U64, place: int, target: U64) -> None:
    """The address up to a place, 1 there, zeros behind."""
    word, bit = place // WORD, np.uint64(1) << np.uint64(WORD - 1 - place % WORD)
    target[:word] = address[:word]
    target[word] = (address[word] & ~(bit - np.uint64(1))) | bit
    target[word + 1 :] = 0


@njit(cache=True, nogil=True)
def slot(page: int, address: U64, number: int, addresses: U64, numbers: I32, headings: I32) -> int:
    """How many entries of a page come before (address, number)."""
    low, high = 0, headings[page, COUNT]
    while low < high:
        half, word = (low + high) // 2, 0
        while word < len(address) and addresses[page, half, word] == address[word]:
            word += 1
        if addresses[page, half, word] < address[word] if word < len(address) else numbers[page, half] < number:
            low = half + 1
        else:
            high = half
    return low


@njit(cache=True, nogil=True)
def descend(
    address: U64, number: int, addresses: U64, numbers: I32, children: I32, headings: I32, root: int, path: I64
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
            addresses, numbers = doubled(addresses), doubled(numbers)
            children, headings = doubled(children), doubled(headings)
    headings[page, NEXT], headings[page, COUNT], headings[page, LEVEL] = 0, 0, level
    return (addresses, numbers, children, headings), page


@njit(cache=True, nogil=True)
def shift(page: int, begin: int, by: int, addresses: U64, numbers: I32, children: I32, headings: I32) -> None:
    """Move the entries from `begin` on by one place, up or down."""
    count, (_, room, words) = headings[page, COUNT], addresses.shape
    begin, end = page * room + begin, page * room + count
    slide(addresses, begin * words, end * words, by * words)
    slide(numbers, begin, end, by)
    if headings[page, LEVEL]:
        slide(children, begin, end, by)
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
def put(page: int, at: int, address: U64, number: int, child: int, tree: Pages) -> None:
    shift(page, at, 1, *tree)
    tree[0][page, at] = address
    tree[1][page, at], tree[2][page, at] = number, child


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
def insert_all(order: I64, addresses: U64, numbers: I64, tree: Pages, root: int) -> tuple[Pages, int]:
    path = np.zeros((DEEPEST, 2), np.int64)
    fanout = tree[0].shape[1]
    for i in order:
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
def delete_all(whose: I64, images: U16, addresses: U64, numbers: I32, children: I32, headings: I32, root: int) -> int:
    gone = addresses_of(whose, images)
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
def inside(address: U64, corner: U16, below: NDArray[np.bool_]) -> bool:
    """Whether an address lies in the corner, read bit by bit; `below` as in `leap`."""
    dimensions, place = len(corner), 0
    below[:] = False
    for share in range(BITS - 1, -1, -1):
        for d in range(dimensions):
            taken = (address[place // WORD] >> np.uint64(WORD - 1 - place % WORD)) & np.uint64(1)
            given = (corner[d] >> share) & 1
            if taken and not given and not below[d]:
                return False
            if given and taken == 0:
                below[d] = True
            place += 1
        place += -dimensions % 8
    return True


@njit(cache=True, nogil=True)
def read_leaf(
    leaf: int, at: int, corner: U16, lows: I64, highs: I64, reached: I32, numbers: I32, headings: I32, images: U16,
    start: I64, length: I32, attribute: I32, low: I64, high: I64,
) -> int:  # fmt: skip
    """The boxes of a leaf from `at` on that meet the event, into `reached`: by image, then by exact bounds."""
    used, end, width = 0, headings[leaf, COUNT], images.shape[1]
    for i in range(at, end):
        prefetch(images, width * numbers[leaf, i])
    for i in range(at, end):
        number = numbers[leaf, i]
        if within(images[number], corner) and meets(number, lows, highs, start, length, attribute, low, high):
            reached[used] = number
            used += 1
    return used


@njit(cache=True, nogil=True)
def read_addresses(
    leaf: int, at: int, corner: U16, lows: I64, highs: I64, reached: I32, numbers: I32, headings: I32, addresses: U64,
    below: NDArray[np.bool_], start: I64, length: I32, attribute: I32, low: I64, high: I64,
) -> int:  # fmt: skip
    """`read_leaf` by address, then by exact bounds."""
    used = 0
    for i in range(at, headings[leaf, COUNT]):
        number = numbers[leaf, i]
        if inside(addresses[leaf, i], corner, below) and meets(
            number, lows, highs, start, length, attribute, low, high
        ):
            reached[used] = number
            used += 1
    return used


@njit(cache=True, nogil=True)
def visit(
    lows: I64, highs: I64, corners: U16, addresses: U64, numbers: I32, children: I32, headings: I32, root: int,
    images: U16, imaged: bool, bounds: tuple[I64, I32, I32, I64, I64], stamps: I64,
) -> tuple[I64, I32]:  # fmt: skip
    offsets = np.zeros(len(lows) + 1, np.int64)
    matched, used = np.empty(64, np.int32), 0
    reached, path = np.empty(addresses.shape[1], np.int32), np.zeros((DEEPEST, 2), np.int64)
    below, target = np.empty(corners.shape[1], np.bool_), np.empty(addresses.shape[2], np.uint64)
    for event in range(len(lows)):
        corner, at = corners[event], 0
        target[:] = 0
        leaf = descend(target, -1, addresses, numbers, children, headings, root, path)
        while leaf:
            where = (leaf, at, corner, lows[event], highs[event], reached, numbers, headings)
            if imaged:
                count = read_leaf(*where, images, *bounds)
            else:
                count = read_addresses(*where, addresses, below, *bounds)
            matched, used = report(reached, count, matched, used, stamps)
            leaf = headings[leaf, NEXT]
            while leaf and headings[leaf, COUNT] == 0:
                leaf = headings[leaf, NEXT]
            if leaf:
                if not leap(addresses[leaf, 0], corner, below, target):
                    break
                at = slot(leaf, target, -1, addresses, numbers, headings)
                if at == headings[leaf, COUNT]:
                    leaf = descend(target, -1, addresses, numbers, children, headings, root, path)
                    at = slot(leaf, target, -1, addresses, numbers, headings)
        offsets[event + 1] = used
    return offsets, matched[:used].copy()
