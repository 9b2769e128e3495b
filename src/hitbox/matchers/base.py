"""What a matcher is: boxes in, points in, matching box numbers out.

The caller (the index) numbers the boxes: small non-negative integers, each used by at most one box at a time, and free
to be used again after a delete. A matcher may therefore use numbers as positions in bit sets and arrays. It need not
lock: the index lets many threads call `match` at once, but never together with `insert` or `delete`. So `match` must
not keep scratch state on `self` unless it guards it.

Priority order, subscriptions of several boxes, ids and residual checks are handled by the index, once for all matchers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from hitbox.encoding import array_checks
from hitbox.encoding.arrays import I32, I64, Boxes, Hits, Points, Space
from hitbox.encoding.values import brief
from hitbox.errors import MatcherError, nearest


class Matcher(ABC):
    """An algorithm over boxes. Subclasses take `(space, **options)`; options are keyword-only with defaults."""

    intervals: ClassVar[bool] = False
    """Whether `match` takes points that are intervals."""

    ordered: ClassVar[bool] = False
    """Whether the numbers of each point come out most urgent priority first."""

    threaded: ClassVar[bool] = False
    """Whether `match` takes `threads`."""

    exact: bool = True
    """Whether every number that `match` reports is right; none is ever lost."""

    space: Space

    @abstractmethod
    def insert(self, numbers: I64, boxes: Boxes) -> None:
        """Add `boxes[i]` under `numbers[i]`, none of which is in use."""

    @abstractmethod
    def delete(self, numbers: I64) -> None:
        """Remove the boxes under `numbers`, all of which are in use."""

    def change(self, delete: I64, numbers: I64, boxes: Boxes) -> Callable[[], None]:
        """Prepares to delete some boxes and insert others, under numbers that are not in use or are deleted here.

        Matching may go on meanwhile, changes may not; the returned commit is short, and must be alone. An error leaves
        what was there: here where a matcher says so (the engine), otherwise as far as `delete` and `insert` allow."""
        old = self.boxes(delete)

        def commit() -> None:
            try:
                self.delete(delete)
                self.insert(numbers, boxes)
            except BaseException:
                self._undo(delete, old, numbers)
                raise

        return commit

    def _undo(self, deleted: I64, old: Boxes, inserted: I64) -> None:
        """Puts the boxes that were deleted in the place of those that were inserted, as far as either happened."""
        living = self.numbers()
        self.delete(np.intersect1d(inserted, living))
        gone = np.flatnonzero(~np.isin(deleted, self.numbers()))
        self.insert(deleted[gone], old.take(gone))

    @abstractmethod
    def match(self, points: Points) -> Hits:
        """The numbers of the boxes that each point meets, each number once."""

    @abstractmethod
    def boxes(self, numbers: I64) -> Boxes:
        """The boxes under `numbers`, exactly as they were inserted."""

    @abstractmethod
    def numbers(self) -> I64:
        """The numbers in use."""

    @abstractmethod
    def __len__(self) -> int:
        """The number of boxes."""

    @abstractmethod
    def nbytes(self) -> int:
        """Bytes of everything that matching reads, the exact bounds included where candidates are checked by them."""

    def match_levels(self, points: Points) -> Iterator[tuple[int, I32]]:
        """One event's numbers level by level, most urgent first; levels without a match are left out."""
        numbers = self.match(points).numbers
        priority = self.boxes(numbers.astype(np.int64)).priority
        for level in np.unique(priority)[::-1].tolist():
            yield level, numbers[priority == level]

    def prepare(self) -> Callable[[], None] | None:
        """Prepare a compaction while others match and nobody changes; the returned function switches over to it."""
        return None

    def widened(self, space: Space, options: Mapping[str, object]) -> tuple[Matcher, Callable[[], None]]:
        """Prepare for a space with more attributes after those that are there: the matcher with the same boxes that
        takes the place of this one, and the commit, which must be alone. `options` are those that it was made with."""
        other = type(self)(space, **options)  # type: ignore[call-arg]
        numbers = self.numbers()
        other.insert(numbers, self.boxes(numbers))
        return other, lambda: None

    def kept_options(self) -> dict[str, Any]:
        """The options that a matcher with the same boxes should have, too: those that a snapshot remembers."""
        return {}

    def arrays(self) -> dict[str, NDArray[Any]]:
        """The complete state as flat arrays, for a snapshot."""
        numbers = self.numbers()
        boxes = self.boxes(numbers)
        return {
            "numbers": numbers,
            "offsets": boxes.offsets,
            "attribute": boxes.attribute,
            "low": boxes.low,
            "high": boxes.high,
            "priority": boxes.priority,
        }

    @classmethod
    def from_arrays(cls, space: Space, arrays: Mapping[str, NDArray[Any]], **options: Any) -> Self:
        """The matcher whose `arrays` these were; they are checked first."""
        matcher = cls(space, **options)  # type: ignore[call-arg]
        numbers, boxes = array_checks.boxes(arrays, "", space.attributes)
        array_checks.ascending(numbers, "numbers", strictly=True)
        matcher.insert(numbers, boxes)
        return matcher

    def require_points(self, points: Points) -> None:
        if points.intervals and not self.intervals:
            raise MatcherError(
                f"matcher {type(self).__name__} matches points only, but an event carries an interval; "
                "use matcher='hitbox' for interval events"
            )


def check_count(option: str, value: object, least: int, most: int = 2**31) -> None:
    """An error where an option of a matcher is no whole number from `least` to `most`."""
    whole = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    if not whole or not least <= value <= most:  # type: ignore[operator]
        raise MatcherError(f"{option} must be a whole number from {least} to {most}, not {brief(value)}")


def check_flag(option: str, value: object) -> None:
    """An error where an option of a matcher is neither True nor False."""
    if not isinstance(value, bool):
        raise MatcherError(f"{option} must be True or False, not {brief(value)}")


def check_choice(option: str, value: object, choices: Collection[str]) -> None:
    """An error where an option of a matcher is none of the texts that it may be."""
    if not isinstance(value, str) or value not in choices:
        have = ", ".join(choices)
        raise MatcherError(f"{option} must be one of {have}, not {brief(value)}{nearest(value, choices)}")
