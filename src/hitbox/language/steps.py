"""Steps: how much work one subscription may take on one event, whatever the two of them hold.

A predicate is bounded by its text, and an event by its size, but lists inside lists and patterns on long texts multiply
the two. So what evaluates a condition counts steps. A step is about a microsecond:

    one condition, or one function in an expression             in Python
    128 words of a program                                      in native code (src/engine/program/work.hpp)
    128 characters that a pattern reads, 2 if it has a `_`      a regular expression: 128 of its instructions
    512 characters that are compared or checked

The count depends on the predicate and the event alone, never on a clock: the same match gives the same answer
everywhere.
"""

from __future__ import annotations

from typing import Any

from hitbox.errors import HitboxError

PLAIN_TEXT, WILDCARDS, ONE_BY_ONE, COPIED = 128, 2, 4, 512
"""Characters per step: of a plain pattern, of one with `_`, of letters that are not ASCII, and of what is compared."""
INSTRUCTIONS = 128
"""Of a regular expression, per step: each character may be looked at by all of its instructions."""
UNLIMITED = 2**62


class OutOfSteps(HitboxError):
    """A predicate takes more steps on an event than it may."""


class Steps:
    """Counts down from a maximum."""

    __slots__ = ("left", "most")

    def __init__(self, most: int = UNLIMITED):
        self.left = self.most = most

    @property
    def taken(self) -> int:
        return self.most - max(self.left, 0)

    def spend(self, steps: int) -> None:
        """Take so many steps; OutOfSteps if that is too many."""
        self.left -= steps
        if self.left < 0:
            raise OutOfSteps(f"the predicate takes more than {self.most:,} steps")

    def spend_on_text(self, text: Any) -> None:
        """Take the steps in which a value is compared, if it is a long text."""
        if type(text) is str and len(text) >= COPIED:
            self.spend(len(text) // COPIED)
