"""What differs between two sets of subscriptions, id by id: for two versions of a snapshot, or a part of each.

Predicates are compared as the user wrote them, bounds by their values. Most subscriptions are the same in both, so
whole columns are compared first: priorities, texts and, if all keys mean the same in both, boxes. Only what may differ
after that is written out and compared one by one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hitbox.encoding import arrow_compute as pc
from hitbox.encoding.arrays import I64
from hitbox.index.catalog import Id
from hitbox.index.state import IndexState

CHUNK = 50_000


class Content(NamedTuple):
    """What a subscription says."""

    where: str
    priority: int
    about: dict[str, Any]


class Difference(NamedTuple):
    """A subscription that is not the same on both sides. change: "added", "removed" or "changed"."""

    id: Id
    change: str
    before: Content | None
    after: Content | None


def differences(
    before: Sequence[IndexState], after: Sequence[IndexState], same_keys: bool, only: int | None = None
) -> Iterator[Difference]:
    """The subscriptions that differ; each side in any number of parts.

    same_keys: the schema and the dictionaries of both sides are the same
    only: what this part of each side contributes; the contributions of all parts are all differences
    """
    for number, part in enumerate(before):
        if only is None or number == only:
            yield from _listed(part, _missing(part, after), "removed")
            for other in after:
                yield from _changed(part, other, same_keys)
    for number, part in enumerate(after):
        if only is None or number == only:
            yield from _listed(part, _missing(part, before), "added")


def _missing(state: IndexState, others: Sequence[IndexState]) -> I64:
    """The slots whose ids are in none of the others."""
    slots = state.catalog.living_slots()
    for other in others:
        slots = slots[other.catalog.slots_of(state.catalog.ids.take(slots)) < 0]
    return slots


def _listed(state: IndexState, slots: I64, change: str) -> Iterator[Difference]:
    for start in range(0, len(slots), CHUNK):
        some = slots[start : start + CHUNK]
        for id, content in zip(state.catalog.id_list(some), _contents(state, some), strict=True):
            sides = (content, None) if change == "removed" else (None, content)
            yield Difference(id, change, *sides)


def _changed(one: IndexState, two: IndexState, same_keys: bool) -> Iterator[Difference]:
    slots = one.catalog.living_slots()
    there = two.catalog.slots_of(one.catalog.ids.take(slots))
    slots, there = slots[there >= 0], there[there >= 0]
    for start in range(0, len(slots), CHUNK):
        a, b = slots[start : start + CHUNK], there[start : start + CHUNK]
        unclear = ~_surely_equal(one, a, two, b, same_keys)
        a, b = a[unclear], b[unclear]
        for id, was, now in zip(one.catalog.id_list(a), _contents(one, a), _contents(two, b), strict=True):
            if was != now:
                yield Difference(id, "changed", was, now)


def _contents(state: IndexState, slots: I64) -> list[Content]:
    texts, about = state.texts_and_about(slots)
    return list(map(Content, texts, state.catalog.priority[slots].tolist(), about))


def _surely_equal(one: IndexState, a: I64, two: IndexState, b: I64, same_keys: bool) -> NDArray[np.bool_]:
    """Which of these pairs of slots hold the same, as far as whole columns show."""
    texts = [state.catalog.where.take(slots).cast(pa.large_string()) for state, slots in ((one, a), (two, b))]
    same_text = _column(pc.equal(*texts))
    about = bool(one.keys.space.information or two.keys.space.information)
    same = np.zeros(len(a), bool) if about else same_text
    if same_keys and not same.all():
        both_bounds = _column(pc.and_(texts[0].is_null(), texts[1].is_null()))
        same = same | ((same_text | both_bounds) & _same_boxes(one, a, two, b))
    equal: NDArray[np.bool_] = same & (one.catalog.priority[a] == two.catalog.priority[b])
    return equal


def _column(flags: Any) -> NDArray[np.bool_]:
    found: NDArray[np.bool_] = pa.array(flags.fill_null(False)).to_numpy(zero_copy_only=False)
    return found


def _same_boxes(one: IndexState, a: I64, two: IndexState, b: I64) -> NDArray[np.bool_]:
    """Which pairs of slots have the same boxes, in the same order."""
    sides = []
    for state, slots in ((one, a), (two, b)):
        boxes, count = state.boxes(state.catalog.boxes_of(slots)), state.catalog.counts[slots]
        sizes = np.diff(boxes.offsets)
        sides.append((boxes, count, sizes, np.repeat(np.arange(len(slots)), count)))
    (left, n, sizes, owner), (right, m, others, other) = sides
    same: NDArray[np.bool_] = n == m
    same &= np.bincount(owner, sizes, len(a)) == np.bincount(other, others, len(a))
    at, by = same[owner], same[other]  # from here on both sides have as many boxes and constraints
    _drop(same, owner[at], sizes[at] != others[by])
    at, by = np.repeat(same[owner], sizes), np.repeat(same[other], others)
    different = left.attribute[at] != right.attribute[by]
    different |= (left.low[at] != right.low[by]) | (left.high[at] != right.high[by])
    _drop(same, np.repeat(owner, sizes)[at], different)
    return same


def _drop(same: NDArray[np.bool_], owner: I64, different: NDArray[np.bool_]) -> None:
    same[owner[different]] = False
