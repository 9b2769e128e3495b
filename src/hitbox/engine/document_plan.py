"""What native code computes of events as documents, where nothing is declared (src/engine/bindings/document_plan.hpp).

A plan says which fields are wanted, and what becomes of each: a key of the point, a member of a set that anchors ask
for, or a list or text for a second look. What no description fits is for Python: an event with all of its fields is
matched as encoding/derived.py says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from hitbox.encoding.keys import Keys
from hitbox.encoding.string_dictionary import MAX_MEMO
from hitbox.encoding.values import EPOCH
from hitbox.engine import _kernels

MOST_STEPS = 8
"""Of a path: there are as many ways to write one as its steps can be joined by dots."""
TYPES = ("number", "string", "bool", "timestamp", "any")


class OpenSet(NamedTuple):
    """A set that events bring, as language/boxes/anchors.py describes it."""

    name: bytes
    kind: str
    lists: tuple[str, ...]
    field: str
    type: str


class Documents(NamedTuple):
    """Events that native code has read: those from number `first` on."""

    batch: _kernels.DocumentBatch
    first: int


class DocumentPlans:
    """The plan for the events of one state of an index, made again when other attributes or sets are in use.

    `fold(text, upper)` changes the case of letters.
    """

    def __init__(self, keys: Keys, fold: Callable[[str, bool], str]):
        self._keys, self._fold = keys, fold
        self._version: tuple[int, Sequence[OpenSet]] | None = None
        self._plan: _kernels.DocumentPlan | None = None

    def get(self, used: Sequence[int], changes: int, sets: Sequence[OpenSet]) -> _kernels.DocumentPlan | None:
        """The plan for the attributes in use, which changed so many times, and for some sets; None if native code can
        read no event."""
        known = self._version
        if known is None or known[0] != changes or known[1] is not sets:
            self._plan = document_plan(self._keys, used, sets, self._fold) if self._keys.schema.is_open else None
            self._version = changes, sets
        return self._plan


def document_plan(
    keys: Keys, used: Iterable[int], sets: Sequence[OpenSet], fold: Callable[[str, bool], str]
) -> _kernels.DocumentPlan | None:
    points: list[tuple[Any, ...]] = []
    details: list[tuple[Any, ...]] = []
    others: list[list[str]] = []
    for number in used:
        one = keys.derived[number - len(keys.schema)]
        described = one.native
        if described is not None and _is_plain(described):
            (details if one.is_detail else points).append((number, *described))
        elif not one.is_detail and one.attributes and all(map(_is_plain_name, one.attributes)):
            others.append(list(one.attributes))
        elif not one.is_detail:
            return None
    wanted = [tuple(one) for one in sets]
    if not all(_is_plain((one.lists, one.field)) and one.type in TYPES for one in sets):
        return None
    labels = {number: dictionary.current for number, dictionary in keys.dictionaries.items()}
    epochs = EPOCH, EPOCH.replace(tzinfo=None)
    return _kernels.DocumentPlan(len(keys.codecs), points, details, wanted, others, labels, MAX_MEMO, fold, *epochs)


def _is_plain(described: Iterable[Any]) -> bool:
    """Whether native code takes all the names in a description."""
    return all(
        _is_plain_name(one) if isinstance(one, str) else _is_plain(one) if isinstance(one, tuple) else True
        for one in described
    )


def _is_plain_name(name: str) -> bool:
    """Whether a name is no path, or one with few steps, none of which is empty."""
    return not name or (all(steps := name.split(".")) and len(steps) <= MOST_STEPS)
