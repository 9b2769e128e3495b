"""Parsed predicates by their text, for residual checks.

An event may have to be checked against every residual predicate of the index, always in the same order. A cache that
forgets the oldest entry first would then miss every time as soon as there is one predicate too many. This one forgets
half of its entries, chosen at random, so the share that is found falls slowly.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from hitbox.language import Predicate

ROOM = 2**27
"""Bytes that the predicates may take."""
BASE, PER_CHARACTER = 600, 30
"""About what a tree takes, from measurements."""


class PredicateCache:
    """Any number of threads may ask it; they never wait for each other."""

    def __init__(self, parse: Callable[[str], Predicate], room: int = ROOM):
        self._parse, self._room = parse, room
        self._known: dict[str, Predicate] = {}
        self._taken = 0

    def __call__(self, text: str) -> Predicate:
        found = self._known.get(text)
        if found is None:
            found = self._parse(text)
            if self._taken > self._room:
                self._forget()
            self._known[text] = found
            self._taken += _size(text)
        return found

    def _forget(self) -> None:
        # a thread that adds to the old dict meanwhile has only parsed for itself
        kept = {text: found for text, found in self._known.copy().items() if random.getrandbits(1)}
        self._known, self._taken = kept, sum(map(_size, kept))


def _size(text: str) -> int:
    return BASE + PER_CHARACTER * len(text)
