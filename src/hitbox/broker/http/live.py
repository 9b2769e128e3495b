"""GET /v1/live: events for the page, once per second: the figures, and the latest events or those that fit."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager
from typing import Any

import msgspec
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from hitbox.broker.access.rights import OBSERVE, Caller
from hitbox.broker.broker import Broker
from hitbox.broker.clock import time
from hitbox.broker.events.published_event import PublishedEvent
from hitbox.broker.fair_threads import FairThreads
from hitbox.broker.http.connections import HttpProtocol
from hitbox.broker.http.routes import shown_figures
from hitbox.broker.stats import RECENT, Matches
from hitbox.errors import HitboxError
from hitbox.language import Predicate, evaluate
from hitbox.language.steps import Steps
from hitbox.protocol.errors import NotAllowed

LIVE_SECONDS = 1.0
LATEST = 20
"""Number of events that the page lists."""
LIVE_STEPS = 200_000
"""That the predicate of one stream may take on the events of a second: each about a microsecond."""


class LiveFigures:
    """The broker's figures, the same ones for all streams: to count them takes time for each subscriber. `predicates`:
    where those of the streams are evaluated."""

    def __init__(self, broker: Broker):
        self.broker = broker
        self._found: dict[str, Any] = {}
        self._from = float("-inf")
        self.predicates = FairThreads("hitbox-live", 1)

    def now(self) -> dict[str, Any]:
        if time.monotonic() - self._from >= LIVE_SECONDS:
            self._found, self._from = dict(self.broker.describe()), time.monotonic()
        return self._found


class LiveStream:
    """One stream: the answer to a GET, which does not end by itself."""

    need = OBSERVE

    def __init__(
        self,
        figures: LiveFigures,
        caller: Caller,
        wanted: Predicate | None,
        headers: dict[str, str],
        admit: Callable[[LiveStream], AbstractContextManager[None]],
    ):
        self.caller, self._figures, self._wanted, self._headers, self._admit = caller, figures, wanted, headers, admit
        self._ended = False
        self._line: HttpProtocol

    def close(self, code: int, reason: str) -> None:
        self._ended = True  # the page asks again, and is told why

    def discard_unsent(self) -> None:
        self._line.discard_unsent()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._line = scope["extensions"]["hitbox"]
        with self._admit(self):
            answer = StreamingResponse(self._lines(), media_type="text/event-stream", headers=self._headers)
            await answer(scope, receive, send)

    async def _lines(self) -> AsyncIterator[bytes]:
        seen, broker = 0, self._figures.broker
        statistics = broker.statistics
        while not (broker.closing or self._ended):
            fresh, seen = statistics.events_after(seen, RECENT), statistics.event_count
            try:
                latest = await self._latest(fresh)
                self.caller.check(self.need)
            except NotAllowed:
                return
            counts = await self._counts([one["matches"] for one in latest])
            events = [_shown(one, count) for one, count in zip(latest, counts, strict=True)]
            line = statistics.history[-1] if statistics.history else {}
            now = self._figures.now()
            figures = shown_figures({**now, **line, "pending": now["pending"]}, self.caller)
            found = {"stats": figures, "events": events, "arrived": seen}
            yield b"data: " + msgspec.json.encode(found) + b"\n\n"
            await asyncio.sleep(LIVE_SECONDS)

    async def _latest(self, fresh: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """The latest of the events that fit, of those that the caller may see."""
        wanted, caller = self._wanted, self.caller

        def find() -> list[dict[str, Any]]:
            return caller.shown_events(fresh if wanted is None else _that_fit(wanted, fresh))

        while (sight := caller.sight()) is not None or wanted is not None:
            found = await self._figures.predicates.run(caller.name, find)
            if caller.sight() == sight:
                return found[-LATEST:]
        return fresh[-LATEST:]

    async def _counts(self, matches: list[Matches]) -> list[int]:
        """How many subscriptions each of the events matched, of those that the caller may know of."""
        if self.caller.shows_all():
            return [one.total() for one in matches]
        shows, known = self.caller.shows_now(), self._figures.broker.registry.by_number

        def count(one: Matches) -> int:
            both = zip(one.subscribers, one.counts, strict=True)
            return sum(some for number, some in both if (it := known.get(number)) is not None and shows(it))

        return await asyncio.to_thread(lambda: list(map(count, matches)))


def _shown(one: dict[str, Any], matches: int) -> dict[str, Any]:
    """An event for the page's list: of its payload the beginning."""
    payload = msgspec.json.decode(one["body"], type=PublishedEvent).shown_payload()
    found = {name: value for name, value in one.items() if name != "body"}
    found["matches"] = matches
    return {**found, "payload": payload} if payload else found


def _that_fit(wanted: Predicate, events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    found, steps = [], Steps(LIVE_STEPS)
    for one in events:
        with contextlib.suppress(HitboxError):  # the schema has changed since, or it takes too long to find out
            if evaluate(wanted, one["event"], None, steps) is True:
                found.append(one)
    return found
