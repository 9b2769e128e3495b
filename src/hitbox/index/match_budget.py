"""What one match call may spend: the steps of each subscription on each event (language/steps.py).

A subscription whose predicate needs more does not match that event. By default that is an error, TooExpensive, because
the answer would be incomplete without a word; a caller that takes reports gets the others exactly as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

import numpy as np

from hitbox.encoding.arrays import I32, I64
from hitbox.errors import TooExpensive
from hitbox.index.catalog import Id

WHERE_STEPS = 10
"""What an event's own `where` may take, for all subscriptions together, in steps of one look."""
WHERE_SHARE = 100
"""One subscription uses up at most this part of it, whatever it says about itself."""

Report = Callable[[TooExpensive], None]


class UsedUp(Exception):
    """A call needs more than the budget's `in_all`. What it has told the budget so far is of no use."""


class Allowance(NamedTuple):
    """The steps that some looks at one event may take."""

    each: I64
    accounts: I32
    """Looks with the same account, a number, share what is left in it; -1: only `each` counts."""
    left: I64

    def of(self, place: int) -> int:
        """What one of the looks may still take."""
        account = self.accounts[place]
        return int(self.each[place] if account < 0 else min(self.each[place], self.left[account]))

    def take(self, place: int, steps: int) -> None:
        self.each[place] -= steps
        if self.accounts[place] >= 0:
            self.left[self.accounts[place]] -= steps


class MatchBudget:
    """Made for one match call, or for several that number their events in the same way.

    Most subscriptions are decided by keys alone. That is bounded by the length of their texts, and not counted. Counted
    is a *look*: what a subscription that keys leave open takes on one event.
    """

    counts = False
    """Whether each look asks `allowed` before and calls `took` afterwards. Without, all looks have the same maximum,
    and only `exceeded` is called."""

    together = 0
    """If all looks at an event take at most so many steps, in native code alone, nothing is asked and nothing told: it
    is quicker. 0: never."""

    in_all: int | None = None
    """The most steps of all looks that are made with this budget. Beyond, UsedUp is raised, before it is twice as many.
    For a caller that must not wait long: it makes the call again elsewhere, with another budget."""

    spent = 0
    """The steps of all looks so far, also of those that are not told. Counted with an `in_all`, or with `counts`; looks
    that are made twice count twice."""

    excluded: Collection[Id] = frozenset()
    """No look is made at these subscriptions: where keys leave one open, it does not match."""

    def __init__(self, steps: int, report: Report | None = None):
        self.steps, self.report = steps, report
        self.over: set[tuple[Id | None, int | None]] = set()
        """The looks that ran out. A call that looks again, because the index has changed meanwhile, leaves them out."""

    def allowed(self, id: Id, event: int | None) -> int:
        """How many steps this subscription may take on this event; `event` is its number in a batch, None of a single
        one."""
        return self.steps

    def accounts(self, ids: Sequence[Id], event: int | None) -> tuple[I32, I64]:
        """The account of each look, and what is left in each account: see Allowance. Not asked without `counts`."""
        return unshared(len(ids))

    def took(self, id: Id, event: int | None, steps: int) -> None:
        """A look has taken so many whole steps; not called where that is none. A look that ran out has taken all that
        it was allowed: `exceeded` is called after this."""

    def exceeded(self, id: Id | None, event: int | None, steps: int) -> None:
        """A look ran out of the steps that it was allowed. Unless this raises, the subscription does not match this
        event, and everything else is as it was. Called once per subscription and event. No `id`: the event's `where`
        ran out, and no subscription that was left matches this event."""
        problem = TooExpensive(id, event, steps)
        if self.report is None:
            raise problem
        self.report(problem)

    def spend(self, steps: int) -> None:
        """The index calls this for all looks."""
        self.spent += steps
        if self.in_all is not None and self.spent >= self.in_all:
            raise UsedUp

    def left_in_all(self, most: int) -> int:
        """`most` steps, or less if there are less."""
        return most if self.in_all is None else min(most, self.in_all - self.spent)

    def of_documents(self) -> tuple[int, int]:
        """The steps that native code may take by itself, of a look and of all looks at an event: negative is no bound.
        Where they are not enough, it decides nothing, and Python looks."""
        together = 0 if self.excluded or self.over else self.together if self.counts else -1
        if self.in_all is None or not together:
            return self.steps, together
        left = self.left_in_all(self.in_all)
        return self.steps, left if together < 0 else min(together, left)

    def run_out(self, id: Id | None, event: int | None, steps: int) -> None:
        """The index calls this, perhaps several times for one look."""
        if (id, event) not in self.over:
            self.over.add((id, event))
            self.exceeded(id, event, steps)


def shared(looks: int, steps: int) -> tuple[I32, I64]:
    """All looks have one account."""
    return np.zeros(looks, np.int32), np.full(1, steps, np.int64)


def unshared(looks: int) -> tuple[I32, I64]:
    """No look has an account."""
    return np.full(looks, -1, np.int32), np.zeros(0, np.int64)
