"""Linked lists of numbers."""

from __future__ import annotations

import numpy as np
import pytest

from hitbox.matchers.linked_lists import NONE, LinkedLists


def entries(lists: LinkedLists) -> list[list[tuple[int, int]]]:
    found = []
    for head in lists.heads.tolist():
        own, node = [], head
        while node != NONE:
            own.append((int(lists.nodes[node]["number"]), int(lists.nodes[node]["value"])))
            node = int(lists.nodes[node]["next"])
        found.append(sorted(own))
    return found


@pytest.mark.parametrize("many", [False, True])
def test_entries_come_and_go_and_their_nodes_are_used_again(many: bool) -> None:
    lists = LinkedLists(3)
    where, whose = np.array([0, 2, 0, 0, 2]), np.array([5, 5, 6, 7, 7])
    lists.insert(where, whose, whose * 10)
    assert entries(lists) == [[(5, 50), (6, 60), (7, 70)], [], [(5, 50), (7, 70)]]
    assert lists.size.tolist() == [3, 0, 2]
    room = len(lists.nodes)
    if many:
        lists.size[1] = 100  # so that one pass over all lists reads less
        lists.purge(np.array([0, 2, 1]), np.array([5, 5, 5]))
        lists.size[1], lists.live = 0, 3
    else:
        lists.purge(np.array([0, 2]), np.array([5, 5]))
    assert entries(lists) == [[(6, 60), (7, 70)], [], [(7, 70)]]
    assert lists.size.tolist() == [2, 0, 1]
    lists.insert(np.array([1, 1]), np.array([8, 9]), np.zeros(0, np.int64))
    assert entries(lists) == [[(6, 60), (7, 70)], [(8, 0), (9, 0)], [(7, 70)]]
    assert len(lists.nodes) == room
