"""The dimension transform: an interval on m attributes is a point in 2m dimensions, intersection is a range query.

Wang and Kitsuregawa, "Dimension Transform Based Efficient Event Filtering for Symmetric Publish/Subscribe System",
DEXA 2005. A subscription's interval [s, e] on an attribute meets an event's [p, q] where s <= q and e >= p. With the
end counted from the top both conditions point the same way, so every range query is one corner:

    image of a box     2a: code(s)         2a+1: top - code(e)         0 where it says nothing
    image of an event  2a: code(q)         2a+1: top - code(p)
    they may meet where the box's image is nowhere greater than the event's

       2a+1 |   . (other box)
            |------------+ event        all candidates lie in the corner below the event
            |  .      .  |
            +------------+------ 2a

Codes are 16 bits wide (the paper's attributes are short integers) over the grid of grid.py: 0 is "missing", so a box
that needs the attribute misses an event that lacks it, and an event that does not care has both dimensions at the
top. Candidates are confirmed by the exact bounds. Cost: 4 bytes per attribute and box.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from hitbox.encoding.arrays import I32, I64, Boxes, Points, Space
from hitbox.matchers.grid import U16, Gridded, Rulers, code, meets, widened
from hitbox.matchers.kernels import prefetch
from hitbox.matchers.pages import FIRST, NEXT, USED

TOP = (1 << 16) - 1


class Transformed(Gridded):
    """A matcher over the images of boxes, which it keeps by number."""

    intervals = True
    top = TOP

    def __init__(self, space: Space):
        super().__init__(space)
        self.images: U16 = np.zeros((0, 2 * space.attributes), np.uint16)
        self._restart(Boxes.of([]))

    def image_boxes(self, numbers: I64, boxes: Boxes) -> None:
        self.images = widened(self.images, self.store.capacity)
        image_boxes(numbers, boxes.offsets, boxes.attribute, boxes.low, boxes.high, self.grid.rulers, self.images)

    def image_points(self, points: Points) -> U16:
        corners: U16 = image_points(points.low, points.high, self.grid.rulers)
        return corners


@njit(cache=True, nogil=True)
def image_boxes(numbers: I64, offsets: I64, attribute: I32, low: I64, high: I64, grid: Rulers, images: U16) -> None:
    for box in range(len(numbers)):
        image = images[numbers[box]]
        image[:] = 0
        for row in range(offsets[box], offsets[box + 1]):
            image[2 * attribute[row]] = code(attribute[row], low[row], grid)
            image[2 * attribute[row] + 1] = TOP - code(attribute[row], high[row], grid)


@njit(cache=True, nogil=True)
def image_points(lows: I64, highs: I64, grid: Rulers) -> U16:
    corners = np.empty((len(lows), 2 * lows.shape[1]), np.uint16)
    for event in range(len(lows)):
        for a in range(lows.shape[1]):
            corners[event, 2 * a] = code(a, highs[event, a], grid)
            corners[event, 2 * a + 1] = TOP - code(a, lows[event, a], grid)
    return corners


@njit(cache=True, nogil=True)
def within(image: U16, corner: U16) -> bool:
    d = 0
    while d < len(image) and image[d] <= corner[d]:
        d += 1
    return d == len(image)


@njit(cache=True, nogil=True)
def search(
    pages: I32, head: int, images: U16, corner: U16, lows: I64, highs: I64, reached: I32,
    start: I64, length: I32, attribute: I32, low: I64, high: I64,
) -> int:  # fmt: skip
    """The boxes of a chain (see pages.py) that meet the event, into `reached`; how many they are.

    Images lie by number and not in the pages, so all of a page's are asked for before the first is looked at.
    """
    used, width = 0, images.shape[1]
    while head:
        for place in range(FIRST, FIRST + pages[head, USED]):
            prefetch(images, width * pages[head, place])
        for place in range(FIRST, FIRST + pages[head, USED]):
            number = pages[head, place]
            if within(images[number], corner) and meets(number, lows, highs, start, length, attribute, low, high):
                reached[used] = number
                used += 1
        head = pages[head, NEXT]
    return used
