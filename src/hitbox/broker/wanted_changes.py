"""Changes of subscriptions that wait to be applied as one group."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Container
from dataclasses import dataclass, field

import msgspec

from hitbox.broker.store.store import StoredChange
from hitbox.broker.subscriptions import Change, Subscription

GROUP = 5_000
"""Subscriptions in a group; a request with more is a group of its own."""


@dataclass(slots=True, eq=False)
class WantedChange:
    """What a request asks for. `change`, `fresh`, `claimed` and `warnings` are known when its turn comes."""

    name: str
    put: list[Subscription]
    remove: list[str]
    strict: bool
    owner: str
    done: asyncio.Future[list[str]]
    change: Change = field(init=False)
    fresh: bool = False
    """Its subscriber is new."""
    claimed: str = ""
    """The principal that its subscriber belongs to from now on."""
    warnings: list[str] = field(default_factory=list)

    def count(self) -> int:
        return len(self.put) + len(self.remove)

    def size(self) -> int:
        """Of its texts, in characters."""
        return sum(len(one.where) + 100 for one in self.put) + 100 * len(self.remove)

    def ids(self) -> set[str]:
        return {f"{self.name}/{one.name}" for one in self.put} | {f"{self.name}/{name}" for name in self.remove}

    def stored(self) -> StoredChange:
        """For the store."""
        subscriber = self.change.subscriber
        options = msgspec.json.encode(subscriber.options) if self.fresh or self.claimed else None
        rows = [one.row() for one in self.put]
        return StoredChange(subscriber.number, subscriber.name, rows, self.remove, options, self.claimed)

    def succeed(self) -> None:
        if not self.done.done():
            self.done.set_result(self.warnings)

    def fail(self, problem: BaseException) -> None:
        if not self.done.done():
            self.done.set_exception(problem)
            self.done.exception()  # the client may have gone


def next_group(waiting: deque[WantedChange], known: Container[str]) -> list[WantedChange]:
    """Take the changes that can be applied together: no two of one subscription, and only one of a new subscriber."""
    group = [waiting.popleft()]
    count, ids, new = group[0].count(), group[0].ids(), {group[0].name}
    while waiting and count + waiting[0].count() <= GROUP:
        one = waiting[0]
        if (one.name in new and one.name not in known) or not ids.isdisjoint(one.ids()):
            break
        group.append(waiting.popleft())
        count += one.count()
        ids |= one.ids()
        new.add(one.name)
    return group
