"""What one match call may spend: the steps of each subscription on each event (language/steps.py).

A subscription whose predicate needs more does not match that event. By default that is an error, TooExpensive, because
the answer would be incomplete without a word; a caller that takes reports gets the others exactly as they are.
"""

from __future__ import annotations

from collections.abc import Callable

from hitbox.errors import TooExpensive
from hitbox.index.catalog import Id

Report = Callable[[TooExpensive], None]


class MatchBudget:
    """Made for one match call, or for several that number their events in the same way.

    Most subscriptions are decided by keys alone. That is bounded by the length of their texts, and not counted. Counted
    is a *look*: what a subscription that keys leave open takes on one event.
    """

    counts = False
    """Whether each look asks `allowed` before and calls `took` afterwards. Without, all looks have the same maximum,
    and only `exceeded` is called."""

    def __init__(self, steps: int, report: Report | None = None):
        self.steps, self.report = steps, report
        self.over: set[tuple[Id, int | None]] = set()
        """The looks that ran out. A call that looks again, because the index has changed meanwhile, leaves them out."""

    def allowed(self, id: Id, event: int | None) -> int:
        """How many steps this subscription may take on this event; `event` is its number in a batch, None of a single
        one."""
        return self.steps

    def took(self, id: Id, event: int | None, steps: int) -> None:
        """A look has taken so many whole steps; not called where that is none. A look that ran out has taken all that
        it was allowed: `exceeded` is called after this."""

    def exceeded(self, id: Id, event: int | None, steps: int) -> None:
        """A look ran out of the steps that it was allowed. Unless this raises, the subscription does not match this
        event, and everything else is as it was. Called once per subscription and event."""
        problem = TooExpensive(id, event, steps)
        if self.report is None:
            raise problem
        self.report(problem)

    def run_out(self, id: Id, event: int | None, steps: int) -> None:
        """The index calls this, perhaps several times for one look."""
        if (id, event) not in self.over:
            self.over.add((id, event))
            self.exceeded(id, event, steps)
