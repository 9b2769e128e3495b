"""A number per key, such as the bytes pending of each subscriber: changed in transactions, read from any thread."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Generic, TypeVar

K = TypeVar("K")


class Tally(Generic[K]):
    """`committed`: the numbers above 0. `more`: what the transaction under way adds to them."""

    def __init__(self) -> None:
        self.committed: dict[K, int] = {}
        self.more: Counter[K] = Counter()

    def load(self, found: Mapping[K, int]) -> None:
        self.committed = {key: number for key, number in found.items() if number > 0}

    def now(self, key: K) -> int:
        """The number in the transaction under way."""
        return self.committed.get(key, 0) + self.more[key]

    def commit(self) -> None:
        for key in self.more:
            if (total := self.now(key)) > 0:
                self.committed[key] = total
            else:
                self.committed.pop(key, None)
        self.more.clear()
