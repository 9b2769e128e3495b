"""be-tree: partition by an attribute, cluster by halves of its range, again and again until a leaf is small.

BE-Tree (Sadoghi and Jacobsen, "BE-Tree: An Index Structure to Efficiently Match Boolean Expressions over
High-dimensional Discrete Space", SIGMOD 2011), here from that publication and its description in the DEXIN paper.

    c-node        l-node: boxes          every c-node has one, checked by exact bounds
      |
    p-directory   p-node(a)  p-node(b)   one per attribute; boxes that constrain it may go below
                    |
    c-directory   [ whole range of a ]   a bucket takes the boxes that fit into it but into neither half
                   /              \\
               [ left half ]  [ right half ]      each bucket holds a c-node of its own

A box goes down while some p-node below fits it (the attribute that it constrains most tightly), and within a
c-directory to the smallest bucket that encloses it. When an l-node overflows, a leaf bucket is first halved (space
clustering); then the attribute with the highest score that is not yet used on the path becomes a p-node (space
partitioning); where neither helps, the l-node's own capacity is doubled. The adjustment on delete: sibling buckets, or
a p-node's only bucket, that are plain leaves and fit into half of the l-node above are merged back into it.

Choices where the paper leaves room: the score of an attribute is the sum over the boxes of the share of its range that
they exclude (popularity weighted by selectivity); ranges are compared on a grid of 2^16 codes (see grid.py); only
constraints that need the attribute to be present lead below a p-node, so "missing" is a matter of l-nodes.

Cost: match visits the p-nodes of the attributes that the event carries and one path down each c-directory, O(boxes
there); insert and delete O(depth x constraints) and now and then a split; memory per box 4 bytes and 4 for its place,
per c-node 44, per p-node 16, beside the exact bounds.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from hitbox.encoding.arrays import I32, I64, MISSING, Boxes, Hits, Points, Space
from hitbox.matchers.base import check_count
from hitbox.matchers.grid import F64, Gridded, Rulers, code, report, widened
from hitbox.matchers.pages import PAGE, drop, empty, give_row, push, search, table, take_row

# columns of a c-node with its bucket; LINK is also the free list's
LINK, LOW, HIGH, LEFT, RIGHT, ABOVE, OWNER, HEAD, SIZE, CAPACITY, WIDTH = range(11)
# columns of a p-node; NEXT is also the free list's
NEXT, ATTRIBUTE, HOLDER, BUCKET = range(4)
ROOT = 1

TOP = 1 << 16
Bounds = tuple[I64, I32, I32, I64, I64]
Tree = tuple[I32, I32, I32]


class BeTree(Gridded):
    top = TOP

    def __init__(self, space: Space, *, capacity: int = 20):
        check_count("capacity", capacity, 1)
        self.capacity = capacity
        super().__init__(space)
        self._restart(Boxes.of([]))

    def _restart(self, boxes: Boxes) -> None:
        self.nodes: I32 = take_row(table(WIDTH))[0]
        self.nodes[ROOT, CAPACITY] = self.capacity
        self.dirs, self.pages = table(4), table(PAGE)
        self.place: I32 = np.zeros(0, np.int32)

    def _place(self, numbers: I64, boxes: Boxes) -> None:
        self.place = widened(self.place, self.store.capacity)
        tree = (self.nodes, self.dirs, self.pages)
        self.nodes, self.dirs, self.pages = insert_all(
            numbers, tree, self.place, self.capacity, self.space.attributes, self.grid.rulers, self.bounds
        )

    def _remove(self, numbers: I64) -> None:
        tree = (self.nodes, self.dirs, self.pages)
        self.pages = delete_all(numbers, tree, self.place, self.capacity)

    def match_timed(self, points: Points, stamps: I64) -> Hits:
        self.require_points(points)
        tree = (self.nodes, self.dirs, self.pages)
        return Hits(*visit(points.low, *tree, self.grid.rulers, self.bounds, stamps))

    def nbytes(self) -> int:
        return super().nbytes() + self.nodes.nbytes + self.dirs.nbytes + self.pages.nbytes + self.place.nbytes


@njit(cache=True, nogil=True)
def row_of(number: int, wanted: int, bounds: Bounds) -> int:
    """The row of a box's constraint on an attribute, or -1 where it has none that needs the attribute."""
    start, length, attribute, low, _ = bounds
    for row in range(start[number], start[number] + length[number]):
        if attribute[row] == wanted:
            return int(row) if low[row] > MISSING else -1
    return -1


@njit(cache=True, nogil=True)
def spread(row: int, grid: Rulers, bounds: Bounds) -> tuple[int, int]:
    """The codes of a constraint's ends."""
    attribute, low, high = bounds[2], bounds[3], bounds[4]
    return code(attribute[row], low[row], grid), code(attribute[row], high[row], grid)


@njit(cache=True, nogil=True)
def down(number: int, node: int, nodes: I32, dirs: I32, grid: Rulers, bounds: Bounds) -> int:
    """The c-node below `node` that a new box belongs to."""
    while True:
        best, best_low, best_high, best_width = 0, 0, 0, TOP + 1
        link = nodes[node, LINK]
        while link:
            row = row_of(number, dirs[link, ATTRIBUTE], bounds)
            if row >= 0:
                low, high = spread(row, grid, bounds)
                if high - low < best_width:
                    best, best_low, best_high, best_width = link, low, high, high - low
            link = dirs[link, NEXT]
        if best == 0:
            return node
        node = dirs[best, BUCKET]
        while nodes[node, LEFT]:
            half = nodes[nodes[node, LEFT], HIGH]
            if best_high <= half:
                node = nodes[node, LEFT]
            elif best_low > half:
                node = nodes[node, RIGHT]
            else:
                break


@njit(cache=True, nogil=True)
def put(number: int, node: int, nodes: I32, pages: I32, place: I32) -> I32:
    pages, nodes[node, HEAD] = push(pages, nodes[node, HEAD], number)
    nodes[node, SIZE] += 1
    place[number] = node
    return pages


@njit(cache=True, nogil=True)
def new_bucket(nodes: I32, low: int, high: int, above: int, owner: int, capacity: int) -> tuple[I32, int]:
    nodes, node = take_row(nodes)
    nodes[node, LOW], nodes[node, HIGH], nodes[node, ABOVE], nodes[node, OWNER] = low, high, above, owner
    nodes[node, CAPACITY] = capacity
    return nodes, node


@njit(cache=True, nogil=True)
def cluster(
    node: int, nodes: I32, dirs: I32, pages: I32, place: I32, capacity: int, grid: Rulers, bounds: Bounds
) -> tuple[I32, I32]:
    """Halve a leaf bucket where some of its boxes fit into a half."""
    owner, low, high = nodes[node, OWNER], nodes[node, LOW], nodes[node, HIGH]
    half = low + (high - low) // 2
    numbers = empty(pages, nodes[node, HEAD], nodes[node, SIZE])
    nodes[node, HEAD] = nodes[node, SIZE] = 0
    for number in numbers:
        begin, end = spread(row_of(number, dirs[owner, ATTRIBUTE], bounds), grid, bounds)
        target = node
        if end <= half or begin > half:
            if nodes[node, LEFT] == 0:
                nodes, left = new_bucket(nodes, low, half, node, owner, capacity)
                nodes, right = new_bucket(nodes, half + 1, high, node, owner, capacity)
                nodes[node, LEFT], nodes[node, RIGHT] = left, right
            target = nodes[node, LEFT] if end <= half else nodes[node, RIGHT]
        pages = put(number, target, nodes, pages, place)
    return nodes, pages


@njit(cache=True, nogil=True)
def best_attribute(
    numbers: I32, node: int, nodes: I32, dirs: I32, attributes: int, grid: Rulers, bounds: Bounds
) -> int:
    """The attribute with the highest score among those that no p-node on the path has, or -1."""
    start, length, attribute, low, _ = bounds
    score: F64 = np.zeros(attributes)
    for number in numbers:
        for row in range(start[number], start[number] + length[number]):
            if low[row] > MISSING:
                begin, end = spread(row, grid, bounds)
                score[attribute[row]] += (TOP - (end - begin)) / TOP
    link = nodes[node, LINK]
    while link:
        score[dirs[link, ATTRIBUTE]] = 0
        link = dirs[link, NEXT]
    while node != ROOT:
        score[dirs[nodes[node, OWNER], ATTRIBUTE]] = 0
        node = dirs[nodes[node, OWNER], HOLDER]
    best = int(np.argmax(score))
    return best if score[best] > 0 else -1


@njit(cache=True, nogil=True)
def partition(
    node: int,
    nodes: I32,
    dirs: I32,
    pages: I32,
    place: I32,
    capacity: int,
    attributes: int,
    grid: Rulers,
    bounds: Bounds,
) -> tuple[I32, I32, I32, int]:
    """Move the boxes that constrain the best attribute below a new p-node; its bucket, or 0 where there is none."""
    numbers = empty(pages, nodes[node, HEAD], nodes[node, SIZE])
    nodes[node, HEAD] = nodes[node, SIZE] = 0
    best = best_attribute(numbers, node, nodes, dirs, attributes, grid, bounds)
    bucket = 0
    if best >= 0:
        dirs, link = take_row(dirs)
        nodes, bucket = new_bucket(nodes, 1, TOP, 0, link, capacity)
        dirs[link, NEXT], dirs[link, ATTRIBUTE], dirs[link, HOLDER], dirs[link, BUCKET] = (
            nodes[node, LINK],
            best,
            node,
            bucket,
        )
        nodes[node, LINK] = link
    for number in numbers:
        target = bucket if best >= 0 and row_of(number, best, bounds) >= 0 else node
        pages = put(number, target, nodes, pages, place)
    return nodes, dirs, pages, bucket


@njit(cache=True, nogil=True)
def relieve(node: int, tree: Tree, place: I32, capacity: int, attributes: int, grid: Rulers, bounds: Bounds) -> Tree:
    """Cluster and partition from an overflowing l-node downwards until all have their size."""
    nodes, dirs, pages = tree
    todo = [node]
    while len(todo):
        node = todo.pop()
        if nodes[node, SIZE] <= nodes[node, CAPACITY]:
            continue
        if nodes[node, OWNER] and nodes[node, LEFT] == 0 and nodes[node, LOW] < nodes[node, HIGH]:
            nodes, pages = cluster(node, nodes, dirs, pages, place, capacity, grid, bounds)
            if nodes[node, LEFT]:
                todo.append(nodes[node, LEFT])
                todo.append(nodes[node, RIGHT])
        while nodes[node, SIZE] > nodes[node, CAPACITY]:
            nodes, dirs, pages, bucket = partition(node, nodes, dirs, pages, place, capacity, attributes, grid, bounds)
            if bucket:
                todo.append(bucket)
            else:
                nodes[node, CAPACITY] = 2 * nodes[node, SIZE]
    return nodes, dirs, pages


@njit(cache=True, nogil=True)
def insert_all(
    numbers: I64, tree: Tree, place: I32, capacity: int, attributes: int, grid: Rulers, bounds: Bounds
) -> Tree:
    nodes, dirs, pages = tree
    for number in numbers:
        node = down(number, ROOT, nodes, dirs, grid, bounds)
        pages = put(number, node, nodes, pages, place)
        if nodes[node, SIZE] > nodes[node, CAPACITY]:
            nodes, dirs, pages = relieve(node, (nodes, dirs, pages), place, capacity, attributes, grid, bounds)
    return nodes, dirs, pages


@njit(cache=True, nogil=True)
def plain(node: int, nodes: I32) -> bool:
    return bool(nodes[node, LEFT] == 0 and nodes[node, LINK] == 0)


@njit(cache=True, nogil=True)
def lift(node: int, above: int, nodes: I32, pages: I32, place: I32) -> I32:
    """Move all boxes of a plain leaf into the l-node above and free it."""
    for number in empty(pages, nodes[node, HEAD], nodes[node, SIZE]):
        pages = put(number, above, nodes, pages, place)
    give_row(nodes, node)
    return pages


@njit(cache=True, nogil=True)
def merge(node: int, nodes: I32, dirs: I32, pages: I32, place: I32, capacity: int) -> tuple[I32, int]:
    """Merge a leaf that has become small into the l-node above; that node, or 0 where it stays."""
    above, other, owner = nodes[node, ABOVE], 0, nodes[node, OWNER]
    if above:
        other = nodes[above, LEFT] + nodes[above, RIGHT] - node
    else:
        above = dirs[owner, HOLDER]
    moved = nodes[node, SIZE] + (nodes[other, SIZE] if other else 0)
    small = moved == 0 or moved + nodes[above, SIZE] <= capacity // 2
    if not (small and plain(node, nodes) and (other == 0 or plain(other, nodes))):
        return pages, 0
    pages = lift(node, above, nodes, pages, place)
    if other:
        pages = lift(other, above, nodes, pages, place)
        nodes[above, LEFT] = nodes[above, RIGHT] = 0
        return pages, above
    if nodes[above, LINK] == owner:
        nodes[above, LINK] = dirs[owner, NEXT]
    else:
        before = nodes[above, LINK]
        while dirs[before, NEXT] != owner:
            before = dirs[before, NEXT]
        dirs[before, NEXT] = dirs[owner, NEXT]
    give_row(dirs, owner)
    return pages, above


@njit(cache=True, nogil=True)
def delete_all(numbers: I64, tree: Tree, place: I32, capacity: int) -> I32:
    nodes, dirs, pages = tree
    for number in numbers:
        node = place[number]
        nodes[node, HEAD] = drop(pages, nodes[node, HEAD], number)
        nodes[node, SIZE] -= 1
        if nodes[node, SIZE] < nodes[node, CAPACITY] // 4:
            nodes[node, CAPACITY] = max(capacity, nodes[node, CAPACITY] // 2)
        while node and node != ROOT:
            pages, node = merge(node, nodes, dirs, pages, place, capacity)
    return pages


@njit(cache=True, nogil=True)
def visit(lows: I64, nodes: I32, dirs: I32, pages: I32, grid: Rulers, bounds: Bounds, stamps: I64) -> tuple[I64, I32]:
    offsets = np.zeros(len(lows) + 1, np.int64)
    matched, used = np.empty(64, np.int32), 0
    reached = np.empty(64, np.int32)
    stack = np.empty(nodes[0, 1] + 1, np.int32)
    for event in range(len(lows)):
        keys = lows[event]
        stack[0], depth = ROOT, 1
        while depth:
            depth -= 1
            node = stack[depth]
            if nodes[node, SIZE] > len(reached):
                reached = np.empty(2 * nodes[node, SIZE], np.int32)
            count = search(pages, nodes[node, HEAD], keys, keys, reached, *bounds)
            matched, used = report(reached, count, matched, used, stamps)
            link = nodes[node, LINK]
            while link:
                here = code(dirs[link, ATTRIBUTE], keys[dirs[link, ATTRIBUTE]], grid)
                node = dirs[link, BUCKET] if here else 0
                while node:
                    stack[depth] = node
                    depth += 1
                    left = nodes[node, LEFT]
                    node = nodes[node, RIGHT] if left and here > nodes[left, HIGH] else left
                link = dirs[link, NEXT]
        offsets[event + 1] = used
    return offsets, matched[:used].copy()
