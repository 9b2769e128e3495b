"""What is counted per principal is forgotten with it: there are always new names."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from hitbox.broker.fair_threads import FairThreads, Shares, held
from hitbox.broker.http import auth
from hitbox.broker.http.auth import RateLimiter
from hitbox.protocol.errors import Overloaded


def test_shares() -> None:
    async def scenario() -> None:
        shares, order = Shares(), list[str]()

        async def work(name: str, principal: str) -> None:
            async with shares.turn(principal, 2):
                order.append(name)
                await asyncio.sleep(0)
                await asyncio.sleep(0)
                order.append(name)

        tasks = [asyncio.create_task(work(name, name[0])) for name in ("a1", "a2", "a3", "b1")]
        await asyncio.sleep(0)
        assert (shares.waiting, order) == ({"a": 3, "b": 1}, ["a1", "a2", "b1"])
        tasks[2].cancel()
        await asyncio.wait(tasks)
        assert (shares.waiting, shares._turns, len(order)) == ({}, {}, 6)

    asyncio.run(scenario())


def test_threads_forget_who_has_no_work() -> None:
    async def scenario() -> None:
        threads = FairThreads("hitbox-test", 2, 1)
        assert await threads.run("ann", len, "abc") == 3
        with pytest.raises(ZeroDivisionError):
            await threads.run("ann", lambda: 1 // 0)
        assert threads._shares._turns == {}
        threads.end()

    asyncio.run(scenario())


def test_held_counts() -> None:
    counts = Counter[str]()
    with held(counts, "ann"), held(counts, "ann"):
        assert counts["ann"] == 2
    assert counts == {}
    assert list(counts) == []


def test_the_rates_of_those_who_are_gone_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(auth.time, "monotonic", lambda: now[0])
    limiter = RateLimiter(10.0)
    limiter.take("ann", 1_000_000)
    for n in range(5_000):
        now[0] += 0.01
        limiter.take(f"live-{n}", 1)
    assert len(limiter._levels) <= 2_000
    with pytest.raises(Overloaded):
        limiter.take("ann", 1)  # its debt stays
    limiter.give_back("ann", 1_000_000)
    limiter.take("ann", 1)
