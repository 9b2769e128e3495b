"""mlgf: the multilevel grid file: regions of the transformed space that halve as they fill and merge as they empty.

Whang and Krishnamurthy, "The Multilevel Grid File" (DASFAA 1992), as the index of Wang and Kitsuregawa's symmetric
publish/subscribe (see transform.py), which this follows: boxes are points in 2m dimensions, an event asks for a
corner.

    directory, level 2        [ region | region ]                all data pages lie at the same depth
                                 |          \\
    directory, level 1    [ r | r | r ]   [ r | r ]              at most `fanout` regions per directory page
                            |   |   |       |   |
    data pages, level 0    box numbers, at most `capacity`       regions are disjoint and cover the space

A region is described by the cuts that made it, so a directory page keeps its regions as a small binary trie: inner
cells are cuts (dimension, code), outer cells are its regions. A full data page is cut in two and its directory gains
a region; a full directory page is cut where its own first cut is, and its halves become two regions of the directory
above; a full root gets a new level above it. Deletes undo this: neighbours on both sides of one cut that fit into
half a page merge, an empty page's cut vanishes, and a root with one region gives way to it.

Where a page is cut (`cut`):

    cyclic     as published: a region is halved, the dimensions take turns. Halves that would be empty get no page, so
               the next dimension is tried until one separates the boxes.
    sparing    ours: at a binary boundary of the codes (the highest that separates the boxes) on the dimension that
               promises to spare most boxes: those above the cut, times the share of the events that come here and stay
               below it, if they are spread evenly; cuts that leave less than an eighth on one side come last. So the
               structure follows skew, and of the 2m dimensions only those that discriminate are ever cut.

A page whose boxes have all the same image cannot be cut and grows.

Cost: match walks the cuts that the event's corner does not exclude and checks the boxes of the pages there, first by
image, then by exact bounds; insert and delete O(log n) cells, occasionally a split or merge; memory per box 4m bytes
for its image, about 6 for its place and 4 for the directory.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from hitbox.encoding.arrays import I32, I64, Boxes, Hits, Points, Space
from hitbox.matchers.base import check_choice, check_count
from hitbox.matchers.grid import U16, report
from hitbox.matchers.pages import PAGE, drop, empty, give_row, push, table, take_row
from hitbox.matchers.transform import Transformed, search

# columns of a cell: a cut (DIMENSION >= 0) or an outer cell (DIMENSION -1) with its region in LEFT
FREE, DIMENSION, CUT, LEFT, RIGHT, UP = range(6)
# columns of a region: data page (LEVEL 0, BODY a chain) or directory page (BODY a cell); CELL is its place in DIR
LEVEL, BODY, COUNT, ROOM, CELL, DIR = range(1, 7)
TOP = 1 << 16

Tables = tuple[I32, I32, I32]


class Mlgf(Transformed):
    def __init__(self, space: Space, *, capacity: int = 30, fanout: int = 20, cut: str = "sparing"):
        check_count("capacity", capacity, 2)
        check_count("fanout", fanout, 2)
        check_choice("cut", cut, ("sparing", "cyclic"))
        self.cyclic = cut == "cyclic"
        self.capacity, self.fanout = capacity, fanout
        super().__init__(space)

    def _restart(self, boxes: Boxes) -> None:
        self.cells, self.pages = table(6), table(PAGE)
        self.regions: I32
        self.regions, self.root = take_row(table(7))
        self.regions[self.root, ROOM] = self.capacity

    def _place(self, numbers: I64, boxes: Boxes) -> None:
        self.image_boxes(numbers, boxes)
        tables = (self.cells, self.regions, self.pages)
        self.cells, self.regions, self.pages, self.root = insert_all(
            numbers, tables, self.root, self.images, self.capacity, self.fanout, self.cyclic
        )

    def _remove(self, numbers: I64) -> None:
        tables = (self.cells, self.regions, self.pages)
        self.pages, self.root = delete_all(numbers, tables, self.root, self.images, self.capacity, self.fanout)

    def match_timed(self, points: Points, stamps: I64) -> Hits:
        tables = (self.cells, self.regions, self.pages, self.root)
        corners = self.image_points(points)
        return Hits(*visit(points.low, points.high, corners, *tables, self.images, self.bounds, stamps))

    def nbytes(self) -> int:
        return super().nbytes() + self.cells.nbytes + self.regions.nbytes + self.pages.nbytes + self.images.nbytes


@njit(cache=True, nogil=True)
def page_of(image: U16, root: int, cells: I32, regions: I32) -> int:
    """The data page whose region holds an image."""
    region = root
    while regions[region, LEVEL]:
        cell = regions[region, BODY]
        while cells[cell, DIMENSION] >= 0:
            cell = cells[cell, RIGHT] if image[cells[cell, DIMENSION]] >= cells[cell, CUT] else cells[cell, LEFT]
        region = cells[cell, LEFT]
    return region


@njit(cache=True, nogil=True)
def extent(region: int, cells: I32, regions: I32, dimensions: int) -> tuple[I64, I64, int]:
    """The corners of a region (below the upper one), and the dimension of its last cut, or -1."""
    floor, ceiling, last = np.zeros(dimensions, np.int64), np.full(dimensions, TOP), -1
    cell = regions[region, CELL]
    while cell:
        cut = cells[cell, UP]
        if cut == 0:  # the top of this directory page
            region = regions[region, DIR]
            cut = regions[region, CELL]
        else:
            d = cells[cut, DIMENSION]
            last = d if last < 0 else last
            if cells[cut, RIGHT] == cell:
                floor[d] = max(floor[d], cells[cut, CUT])
            else:
                ceiling[d] = min(ceiling[d], cells[cut, CUT])
        cell = cut
    return floor, ceiling, last


@njit(cache=True, nogil=True)
def highest_cuts(numbers: I32, images: U16) -> tuple[I32, I32]:
    """The highest boundary of each dimension that separates the boxes, and how many are not below it.

    Box by box, for what is near in memory is a box's dimensions: compilers take many of them at a time.
    """
    low, high = images[numbers[0]].copy(), images[numbers[0]].copy()
    for number in numbers:
        for d in range(len(low)):
            code = images[number, d]
            low[d] = code if code < low[d] else low[d]
            high[d] = code if code > high[d] else high[d]
    for d in range(len(low)):
        bit = 15
        while bit and (low[d] ^ high[d]) >> bit == 0:
            bit -= 1
        low[d] = (high[d] >> bit) << bit
    above = np.zeros(len(low), np.int32)
    for number in numbers:
        for d in range(len(low)):
            above[d] += images[number, d] >= low[d]
    return low.astype(np.int32), above


@njit(cache=True, nogil=True)
def choose_cut(numbers: I32, images: U16, floor: I64) -> tuple[int, int]:
    """Dimension and code of the cut that spares most boxes; dimension -1 where all images are the same."""
    cuts, above = highest_cuts(numbers, images)
    best, best_score = -1, -1.0
    for d in range(len(cuts)):
        if above[d] == len(numbers):  # they are all the same on this one
            continue
        score = above[d] * (cuts[d] - floor[d]) / (TOP - floor[d])
        if 8 * min(above[d], len(numbers) - above[d]) < len(numbers):
            score /= 1e6
        if score > best_score:
            best, best_score = d, score
    return best, cuts[best]


@njit(cache=True, nogil=True)
def next_half(numbers: I32, images: U16, floor: I64, ceiling: I64, last: int) -> tuple[int, int]:
    """The published cut: half of the region on the dimension after the last one. A half without boxes gets no page and
    is left off; then the next dimension takes its turn. Dimension -1 where all images are the same."""
    dimensions = len(floor)
    alike = 0
    while alike < dimensions:
        last = (last + 1) % dimensions
        if ceiling[last] - floor[last] < 2:
            alike += 1
            continue
        alike, middle, above = 0, (floor[last] + ceiling[last]) // 2, 0
        for number in numbers:
            above += images[number, last] >= middle
        if 0 < above < len(numbers):
            return last, middle
        if above:
            floor[last] = middle
        else:
            ceiling[last] = middle
    return -1, 0


@njit(cache=True, nogil=True)
def outer(cells: I32, region: int, up: int) -> tuple[I32, int]:
    cells, cell = take_row(cells)
    cells[cell, DIMENSION], cells[cell, LEFT], cells[cell, UP] = -1, region, up
    return cells, cell


@njit(cache=True, nogil=True)
def raise_root(root: int, cells: I32, regions: I32, fanout: int) -> tuple[I32, I32, int]:
    """A directory above the root, with the root as its only region."""
    regions, above = take_row(regions)
    cells, cell = outer(cells, root, 0)
    regions[above, LEVEL], regions[above, BODY] = regions[root, LEVEL] + 1, cell
    regions[above, COUNT], regions[above, ROOM] = 1, fanout
    regions[root, CELL], regions[root, DIR] = cell, above
    return cells, regions, above


@njit(cache=True, nogil=True)
def fork(region: int, other: int, dimension: int, cut: int, cells: I32, regions: I32) -> I32:
    """Turn the region's cell into a cut with the region below it and `other` above it."""
    cell, directory = regions[region, CELL], regions[region, DIR]
    cells, left = outer(cells, region, cell)
    cells, right = outer(cells, other, cell)
    cells[cell, DIMENSION], cells[cell, CUT], cells[cell, LEFT], cells[cell, RIGHT] = dimension, cut, left, right
    regions[region, CELL], regions[other, CELL] = left, right
    regions[other, DIR] = directory
    regions[directory, COUNT] += 1
    return cells


@njit(cache=True, nogil=True)
def adopt(directory: int, cells: I32, regions: I32) -> None:
    """Store in the regions of a directory where they are, and count them."""
    count = 0
    todo = [regions[directory, BODY]]
    while len(todo):
        cell = todo.pop()
        if cells[cell, DIMENSION] < 0:
            regions[cells[cell, LEFT], DIR] = directory
            count += 1
        else:
            todo.append(cells[cell, LEFT])
            todo.append(cells[cell, RIGHT])
    regions[directory, COUNT] = count


@njit(cache=True, nogil=True)
def split_page(
    region: int, cells: I32, regions: I32, pages: I32, images: U16, capacity: int, cyclic: bool
) -> tuple[I32, I32, I32, int]:
    """Cut a data page in two; the new one, or 0 where all its boxes have the same image."""
    numbers = empty(pages, regions[region, BODY], regions[region, COUNT])
    floor, ceiling, last = extent(region, cells, regions, images.shape[1])
    if cyclic:
        dimension, cut = next_half(numbers, images, floor, ceiling, last)
    else:
        dimension, cut = choose_cut(numbers, images, floor)
    other = 0
    if dimension < 0:
        regions[region, ROOM] = 2 * regions[region, COUNT]
    else:
        regions, other = take_row(regions)
        regions[region, ROOM] = regions[other, ROOM] = capacity
        cells = fork(region, other, dimension, cut, cells, regions)
    regions[region, BODY] = regions[region, COUNT] = 0
    for number in numbers:
        target = other if other and images[number, dimension] >= cut else region
        pages, regions[target, BODY] = push(pages, regions[target, BODY], number)
        regions[target, COUNT] += 1
    return cells, regions, pages, other


@njit(cache=True, nogil=True)
def split_directories(directory: int, root: int, cells: I32, regions: I32, fanout: int) -> tuple[I32, I32, int]:
    """Cut a full directory page at its first cut, then the one above it where that is full now."""
    while regions[directory, COUNT] > regions[directory, ROOM]:
        if directory == root:
            cells, regions, root = raise_root(root, cells, regions, fanout)
        first = regions[directory, BODY]
        regions, other = take_row(regions)
        regions[other, LEVEL], regions[other, ROOM] = regions[directory, LEVEL], fanout
        regions[directory, BODY], regions[other, BODY] = cells[first, LEFT], cells[first, RIGHT]
        cells[cells[first, LEFT], UP] = cells[cells[first, RIGHT], UP] = 0
        cells = fork(directory, other, cells[first, DIMENSION], cells[first, CUT], cells, regions)
        give_row(cells, first)
        adopt(directory, cells, regions)
        adopt(other, cells, regions)
        directory = regions[directory, DIR]
    return cells, regions, root


@njit(cache=True, nogil=True)
def insert_all(
    numbers: I64, tables: Tables, root: int, images: U16, capacity: int, fanout: int, cyclic: bool
) -> tuple[I32, I32, I32, int]:
    cells, regions, pages = tables
    for number in numbers:
        region = page_of(images[number], root, cells, regions)
        pages, regions[region, BODY] = push(pages, regions[region, BODY], number)
        regions[region, COUNT] += 1
        while regions[region, COUNT] > regions[region, ROOM]:
            if region == root:
                cells, regions, root = raise_root(root, cells, regions, fanout)
            cells, regions, pages, other = split_page(region, cells, regions, pages, images, capacity, cyclic)
            cells, regions, root = split_directories(regions[region, DIR], root, cells, regions, fanout)
            if other and regions[other, COUNT] > regions[region, COUNT]:
                region = other
    return cells, regions, pages, root


@njit(cache=True, nogil=True)
def close(cut: int, kept: int, directory: int, cells: I32, regions: I32) -> None:
    """Put the cell `kept` in the place of the cut above it; the cut and its other cell are gone."""
    gone = cells[cut, LEFT] + cells[cut, RIGHT] - kept
    up = cells[cut, UP]
    cells[kept, UP] = up
    if up == 0:
        regions[directory, BODY] = kept
    elif cells[up, LEFT] == cut:
        cells[up, LEFT] = kept
    else:
        cells[up, RIGHT] = kept
    give_row(cells, gone)
    give_row(cells, cut)
    regions[directory, COUNT] -= 1


@njit(cache=True, nogil=True)
def buddy(region: int, cells: I32, regions: I32) -> tuple[int, int, int]:
    """The cut beside a region, the cell on its other side, and that cell's region (0 where it is cut further)."""
    cut = cells[regions[region, CELL], UP] if regions[region, CELL] else 0
    if cut == 0:
        return 0, 0, 0
    cell = cells[cut, LEFT] + cells[cut, RIGHT] - regions[region, CELL]
    return cut, cell, cells[cell, LEFT] if cells[cell, DIMENSION] < 0 else 0


@njit(cache=True, nogil=True)
def merge_page(region: int, cells: I32, regions: I32, pages: I32, capacity: int) -> tuple[I32, bool, int]:
    """Merge a data page into its buddy where both fit into half a page, or drop it where it is empty.

    Whether that was done, and the buddy, which may now merge in its turn.
    """
    cut, cell, other = buddy(region, cells, regions)
    count = regions[region, COUNT]
    fits = other != 0 and count + regions[other, COUNT] <= capacity // 2
    if cut == 0 or (count and not fits):
        return pages, False, 0
    for number in empty(pages, regions[region, BODY], count):
        pages, regions[other, BODY] = push(pages, regions[other, BODY], number)
        regions[other, COUNT] += 1
    close(cut, cell, regions[region, DIR], cells, regions)
    give_row(regions, region)
    return pages, True, other


@njit(cache=True, nogil=True)
def merge_directories(directory: int, root: int, cells: I32, regions: I32, fanout: int) -> int:
    """Merge a directory with its buddy where both fit into half of one, upwards; then lower a root of one region."""
    while directory != root:
        above = regions[directory, DIR]
        cut, cell, other = buddy(directory, cells, regions)
        if cut == 0 or other == 0 or regions[directory, COUNT] + regions[other, COUNT] > fanout // 2:
            break
        left, right = regions[cells[cells[cut, LEFT], LEFT], BODY], regions[cells[cells[cut, RIGHT], LEFT], BODY]
        dimension, code = cells[cut, DIMENSION], cells[cut, CUT]
        close(cut, cell, above, cells, regions)
        cells, first = take_row(cells)  # one of those that `close` has given, so the table stays where it is
        cells[first, DIMENSION], cells[first, CUT], cells[first, LEFT], cells[first, RIGHT] = (
            dimension,
            code,
            left,
            right,
        )
        cells[left, UP] = cells[right, UP] = first
        regions[other, BODY] = first
        adopt(other, cells, regions)
        give_row(regions, directory)
        directory = above
    while regions[root, LEVEL] and regions[root, COUNT] == 1:
        only = cells[regions[root, BODY], LEFT]
        give_row(cells, regions[root, BODY])
        give_row(regions, root)
        root = only
        regions[root, CELL] = regions[root, DIR] = 0
    return root


@njit(cache=True, nogil=True)
def delete_all(numbers: I64, tables: Tables, root: int, images: U16, capacity: int, fanout: int) -> tuple[I32, int]:
    cells, regions, pages = tables
    for number in numbers:
        region = page_of(images[number], root, cells, regions)
        regions[region, BODY] = drop(pages, regions[region, BODY], number)
        regions[region, COUNT] -= 1
        if regions[region, COUNT] < regions[region, ROOM] // 4:
            regions[region, ROOM] = max(capacity, regions[region, ROOM] // 2)
        while region:
            directory = regions[region, DIR]
            pages, merged, region = merge_page(region, cells, regions, pages, capacity)
            if merged:
                root = merge_directories(directory, root, cells, regions, fanout)
    return pages, root


@njit(cache=True, nogil=True)
def visit(
    lows: I64, highs: I64, corners: U16, cells: I32, regions: I32, pages: I32, root: int, images: U16,
    bounds: tuple[I64, I32, I32, I64, I64], stamps: I64,
) -> tuple[I64, I32]:  # fmt: skip
    offsets = np.zeros(len(lows) + 1, np.int64)
    matched, used = np.empty(64, np.int32), 0
    reached = np.empty(64, np.int32)
    stack = np.empty(cells[0, 1] + 2, np.int32)
    for event in range(len(lows)):
        corner, depth, region = corners[event], 0, root
        while True:
            if regions[region, LEVEL]:
                stack[depth] = regions[region, BODY]
                depth += 1
            else:
                if regions[region, COUNT] > len(reached):
                    reached = np.empty(2 * regions[region, COUNT], np.int32)
                head = regions[region, BODY]
                count = search(pages, head, images, corner, lows[event], highs[event], reached, *bounds)
                matched, used = report(reached, count, matched, used, stamps)
            if depth == 0:
                break
            depth -= 1
            cell = stack[depth]
            while cells[cell, DIMENSION] >= 0:  # below the cut always, above it where the corner reaches
                if corner[cells[cell, DIMENSION]] >= cells[cell, CUT]:
                    stack[depth] = cells[cell, RIGHT]
                    depth += 1
                cell = cells[cell, LEFT]
            region = cells[cell, LEFT]
        offsets[event + 1] = used
    return offsets, matched[:used].copy()
