"""compound: two R-trees, one on each role's attributes, whose answers are joined.

The method of Rjaibi, Dittrich and Jaepel ("Event Matching in Symmetric Subscription Systems", CASCON 2002) as Wang
and Kitsuregawa built it for their comparison: the subscriptions' criteria in one index, what they declare about
themselves in another; an event's values are searched in the first, its criteria in the second, and a match is in both
answers.

    criteria attributes     -> R*-tree -> numbers  \\
                                                    join -> exact bounds -> hits
    information attributes  -> R*-tree -> numbers  /

The roles come from the space (`space.information`); where one of them has no attributes there is one tree, as in the
paper. See r_tree.py for the trees. Each has half as many dimensions as the naive one, but neither is as selective as
both.

Cost: match two searches and a join of what they find; insert and delete once in each tree; memory as r-tree + 12
bytes per box.
"""

from __future__ import annotations

import numpy as np

from hitbox.encoding.arrays import I64, Space
from hitbox.matchers.r_tree import RTree


class Compound(RTree):
    @staticmethod
    def split(space: Space) -> list[I64]:
        information = np.isin(np.arange(space.attributes), space.information)
        parts = [np.flatnonzero(~information), np.flatnonzero(information)]
        return [part for part in parts if len(part)]
