"""The state of an index and the lock under which it changes: what changing, matching and explaining share.

Threads: any number may match while one changes. A change has two parts (read_write_lock.py). What takes long or may
fail comes first, while matching goes on: parsing, compiling, new segments, new columns. Then all of it is committed in
one short section that is alone and that no signal handler can interrupt. So a change is seen whole or not at all, and
an interrupt or a lack of memory leaves the index as it was or as it was to be.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime

import numpy as np

from hitbox import language
from hitbox.encoding.keys import Keys
from hitbox.encoding.schema import Schema
from hitbox.encoding.values import brief
from hitbox.engine.event_encoder import EventEncoder
from hitbox.errors import UnknownSubscription, ValueProblem
from hitbox.index.catalog import Catalog, Id, kind_of
from hitbox.index.explain import describe_box
from hitbox.index.load.predicate_cache import PredicateCache
from hitbox.index.match_budget import MatchBudget
from hitbox.index.read_write_lock import ReadWriteLock
from hitbox.index.resolver import Resolver
from hitbox.index.state import IndexState
from hitbox.language import Limits, Predicate

Also = Callable[[], None] | None
"""What the owner of an index changes together with it, in the same commit."""


def check_limits(limits: Limits) -> Limits:
    if not isinstance(limits, Limits):
        raise ValueProblem(f"limits are hitbox.Limits, not {brief(limits)}")
    return limits


class GuardedState:
    """`options` are those that the matcher was made with; `noun` is what the messages call an entry."""

    def __init__(self, state: IndexState, limits: Limits, options: Mapping[str, object], noun: str):
        self.state, self.limits, self.options, self.noun = state, check_limits(limits), dict(options), noun
        self.lock = ReadWriteLock()
        self.changes = 0
        """Commits so far: readers that work in several slices notice it."""
        self.parsed = PredicateCache(self._parse_stored)

    @property
    def schema(self) -> Schema:
        return self.state.keys.schema

    @property
    def keys(self) -> Keys:
        return self.state.keys

    @property
    def catalog(self) -> Catalog:
        return self.state.catalog

    @property
    def encoder(self) -> EventEncoder:
        return self.state.encoder

    def commit(self, *steps: Also) -> None:
        """Take prepared steps while nobody matches and no signal handler runs. Each is short."""
        if any(steps):
            with self.lock.commit:
                self.changes += 1
                for step in steps:
                    if step is not None:
                        step()

    def compact(self) -> IndexState:
        """The state, ready to be written. The caller prepares (read_write_lock.py)."""
        self.commit(self.catalog.compact())
        return self.state

    def slot(self, id: Id) -> int:
        kind_of(id)
        slot = self.catalog.slot(id)
        if slot is None:
            raise UnknownSubscription(f"no {self.noun} has the id {id!r:.100}")
        return slot

    def where(self, slot: int) -> str:
        text: str | None = self.catalog.where[slot]
        if text is None:
            numbers = self.catalog.boxes_of(np.array([slot]))
            text = describe_box(self.keys, self.state.boxes(numbers)[0]) if len(numbers) else "FALSE"
        return text

    def predicate(self, slot: int) -> Predicate:
        return self.parsed(self.where(slot))

    def can_match(self, slot: int) -> bool:
        return bool(self.catalog.counts[slot])

    def _parse_stored(self, where: str) -> Predicate:
        """The tree of a subscription, which was within the limits of the index that it was made in."""
        return language.parse(where, self.schema, role="criteria", limits=self.limits.for_stored())

    def asked(self, where: str) -> Predicate:
        """What an event asks of the subscriptions."""
        return language.parse(where, self.schema, role="information", limits=self.limits)

    def resolver(
        self, now: datetime | None = None, budget: MatchBudget | None = None, first: int | None = None
    ) -> Resolver:
        """`now` is what NOW() is: one value per call, however many parts it has. `first` is the number of the first
        event, of many."""
        state = self.state
        return Resolver(
            state.keys,
            state.matcher,
            state.catalog,
            self.predicate,
            self.limits,
            now or datetime.now(UTC),
            state.anchors,
            state.boxes,
            state.use.used,
            budget or MatchBudget(self.limits.match_steps),
            first,
        )
