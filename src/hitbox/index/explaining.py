"""Explaining: why a subscription matched an event or did not, and which came nearest."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from hitbox import language
from hitbox.encoding import events
from hitbox.encoding.documents import Event
from hitbox.encoding.values import brief
from hitbox.errors import ValueProblem
from hitbox.index.catalog import Id
from hitbox.index.explain import BothSides, Explained, NearMisses, explain_without_values
from hitbox.index.guarded_state import GuardedState
from hitbox.index.matching import SLICE_SECONDS, Matching
from hitbox.language import Explanation


class Explaining:
    def __init__(self, held: GuardedState, matching: Matching):
        self._held, self._matching = held, matching

    def explain(
        self,
        event: Event,
        id: Id | None,
        where: str | None,
        misses: int,
        among: Callable[[Id], bool] | None,
    ) -> Explanation | BothSides | Explained:
        if id is not None:
            with self._held.lock.read:
                explained = self._explaining(event, self._held.slot(id), where)
            return explained()
        if not isinstance(misses, int):
            raise ValueProblem(f"misses is a whole number, not {brief(misses)}")
        if among is not None and not callable(among):
            raise ValueProblem(f"among is a function of an id, not {brief(among)}")
        if misses <= 0:
            return Explained(self._matching.one(event, where, None, True, None), {})
        return self._with_misses(event, where, misses, among)

    def _with_misses(
        self, event: Event, where: str | None, misses: int, among: Callable[[Id], bool] | None
    ) -> Explained:
        """It looks at every subscription, so it gives the lock back between slices; the index may change meanwhile."""
        filters = self._matching.filters(where, 1)
        near: NearMisses | None = None
        while True:
            with self._held.lock.read:
                points = self._held.encoder.one(event)  # in every slice: labels may have moved
                if near is None or near.compactions != self._held.catalog.compactions:  # slots have moved: begin again
                    slots = self._held.resolver().one(points, event, filters, None)
                    matched = self._held.catalog.id_list(slots)
                    near = NearMisses(misses, slots, self._held.catalog.compactions, among)
                until = time.perf_counter() + SLICE_SECONDS / 25
                look = partial(near.look, self._held.state.boxes, self._held.catalog, points, self._held.keys)
                while look() and time.perf_counter() < until:
                    pass
                if near.done(self._held.catalog):
                    found = [
                        (self._held.catalog.ids[slot], self._explaining(event, slot, where))
                        for slot in near.best(self._held.catalog)
                    ]
                    break
        known = set(matched)
        explained = [(id, explain()) for id, explain in found if id not in known]
        missed = [(id, why) for id, why in explained if not why.matched]
        missed.sort(key=lambda one: one[1].distance)
        return Explained(matched, dict(missed[:misses]))

    def _explaining(self, event: Event, slot: int, where: str | None) -> Callable[[], Explanation | BothSides]:
        """Takes all that an explanation needs while the lock is held; calling the result makes it, without the lock."""
        values = events.normal(self._held.keys, event)
        self._held.encoder.one(event)  # checks names, roles and types
        about = self._held.resolver().about(slot) if where is not None and self._held.can_match(slot) else None
        return partial(self._explained, self._held.where(slot), values, where, about)

    def _explained(
        self, text: str, values: Mapping[str, Any], where: str | None, about: dict[str, Any] | None
    ) -> Explanation | BothSides:
        steps = self._held.limits.match_steps
        verdict = language.explain(self._held.parsed(text), values, steps=steps)
        if where is None:
            return verdict
        asked = self._held.asked(where)
        other = explain_without_values(asked) if about is None else language.explain(asked, about, steps=steps)
        return BothSides(verdict, other)
