"""What matching may cost in the broker, and the subscriptions that were set aside because they cost too much.

Each subscription may take `match_steps` on an event, and all those of one principal together `principal_steps`. One
that needs more does not get this event; nobody else notices.

    a subscription runs out of steps on an event   ->  a failure: counted and logged
    `suspend_after` failures within FORGET_SECONDS ->  suspended: it matches nothing, until it is changed or resumed

Where all of a principal run out together, the failure is that of those that took at least the average. An event with a
`where` suspends nobody: what that takes is the choice of its publisher.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from threading import Lock
from typing import NamedTuple

import numpy as np

from hitbox.broker.clock import clock, time
from hitbox.encoding.arrays import I32, I64
from hitbox.index.match_budget import MatchBudget

FORGET_SECONDS = 3600
"""A failure is forgotten after so long."""
MOST_FAILING = 100_000
"""Subscriptions whose failures are known; beyond, those that failed longest ago are forgotten."""
TOGETHER = 10_000
"""If all looks at an event take so few steps, nobody is asked to pay."""
TOO_EXPENSIVE = "too expensive"


class Suspension(NamedTuple):
    """Since when, in microseconds since 1970, and why."""

    time: int
    reason: str

    def text(self) -> str:
        return f"suspended: {self.reason}"


class Failure(NamedTuple):
    """A subscription ran out of steps on an event, or, if it is `blamed`, it made others run out."""

    id: str
    seq: int
    blamed: bool


class MatchCosts(MatchBudget):
    """Of one match call of the broker. `ran_out`: the subscriptions that ran out of steps, each with the number of the
    event."""

    counts = True

    def __init__(
        self,
        steps: int,
        principal_steps: int,
        payer: Callable[[str], str],
        suspended: Collection[str] = frozenset(),
        in_all: int | None = None,
    ):
        super().__init__(steps)
        self.together = min(TOGETHER, principal_steps)
        self.excluded, self.in_all = suspended, in_all
        self.ran_out: list[tuple[str, int | None]] = []
        self._payer, self._most = payer, principal_steps
        self._accounts: dict[tuple[str, int | None], int] = {}
        self._left = np.zeros(0, np.int64)
        self._taken: dict[tuple[str, int | None], Counter[str]] = {}
        """The steps of each subscription that took some, by payer and event."""

    def accounts(self, ids: Sequence[str], event: int | None) -> tuple[I32, I64]:  # type: ignore[override]
        numbers = [self._accounts.setdefault((self._payer(id), event), len(self._accounts)) for id in ids]
        fresh = len(self._accounts) - len(self._left)
        self._left = np.append(self._left, np.full(fresh, self._most, np.int64))
        return np.array(numbers, np.int32), self._left

    def took(self, id: str, event: int | None, steps: int) -> None:  # type: ignore[override]
        self._taken.setdefault((self._payer(id), event), Counter())[id] += steps

    def exceeded(self, id: str | None, event: int | None, steps: int) -> None:  # type: ignore[override]
        if id is not None:
            self.ran_out.append((id, event))

    def add(self, other: MatchCosts, numbers: Sequence[int]) -> None:
        """Another call is part of this one; its event i has the number `numbers[i]` here."""
        self.spent += other.spent
        known = set(self.ran_out)
        found = [(id, None if event is None else numbers[event]) for id, event in other.ran_out]
        self.ran_out += [one for one in found if one not in known]
        for (payer, event), taken in other._taken.items():
            number = None if event is None else numbers[event]
            self._taken.setdefault((payer, number), Counter()).update(taken)

    def blamed(self) -> list[tuple[str, int | None]]:
        """The subscriptions whose fault it is, with the number of the event."""
        out: dict[tuple[str, int | None], set[str]] = {}
        for id, event in self.ran_out:
            out.setdefault((self._payer(id), event), set()).add(id)
        found: list[tuple[str, int | None]] = []
        for account, ids in out.items():
            taken = self._taken.get(account, Counter[str]())
            guilty = {id for id in ids if taken[id] >= self.steps}
            if ids != guilty:  # the account of all was used up
                guilty |= {id for id, steps in taken.items() if steps * len(taken) >= taken.total()}
            found += [(id, account[1]) for id in sorted(guilty)]
        return found


class Suspensions:
    """Known in memory; those of stored subscriptions are in the store, too."""

    def __init__(self, after: int):
        self._after = after
        self._by_id: dict[str, Suspension] = {}
        self._failures: OrderedDict[str, tuple[int, float]] = OrderedDict()
        """How many, and when the latest was."""
        self._of: dict[str, set[str]] = {}
        """The ids in these two, by subscriber."""
        self._changing = Lock()  # some changes of subscriptions are made in a thread

    def __len__(self) -> int:
        return len(self._by_id)

    def __contains__(self, id: object) -> bool:
        return id in self._by_id

    def get(self, id: str) -> Suspension | None:
        return self._by_id.get(id)

    def ids(self) -> Collection[str]:
        return self._by_id.keys()

    def load(self, found: Mapping[str, Suspension]) -> None:
        with self._changing:
            self._by_id.update(found)
            for id in found:
                self._know(id)

    def blame(self, id: str) -> Suspension | None:
        """A subscription has failed; returns its suspension if that is once too often."""
        if not self._after or id in self._by_id:
            return None
        now = time.monotonic()
        with self._changing:
            count, latest = self._failures.pop(id, (0, now))
            count = count + 1 if now - latest < FORGET_SECONDS else 1
            self._know(id)
            if count < self._after:
                self._failures[id] = (count, now)
                while len(self._failures) > MOST_FAILING:
                    self._forget_id(self._failures.popitem(last=False)[0])
                return None
            found = self._by_id[id] = Suspension(clock.now(), TOO_EXPENSIVE)
            return found

    def forget(self, ids: Iterable[str]) -> None:
        """These subscriptions were changed, resumed or removed."""
        with self._changing:
            for id in ids:
                self._by_id.pop(id, None)
                self._failures.pop(id, None)
                self._forget_id(id)

    def forget_subscriber(self, name: str) -> None:
        """This subscriber was removed with all of its subscriptions."""
        self.forget(list(self._of.get(name, ())))

    def _know(self, id: str) -> None:
        self._of.setdefault(_subscriber_of(id), set()).add(id)

    def _forget_id(self, id: str) -> None:
        name = _subscriber_of(id)
        known = self._of.get(name)
        if known is not None:
            known.discard(id)
            if not known:
                del self._of[name]


def _subscriber_of(id: str) -> str:
    return id.partition("/")[0]
