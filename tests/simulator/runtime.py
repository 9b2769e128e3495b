"""Simulated time: one thread, and a clock that jumps to the next timer instead of waiting."""

from __future__ import annotations

import asyncio
import contextlib
import random
import selectors
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from hitbox.broker import clock as broker_clock
from hitbox.broker.store.group_commit import RETRY_SECONDS, Job, Writer, resolve_futures

START = 1_700_000_000.0


class SimulatedClock:
    """Simulated time. The system's wall clock may jump; the monotonic clock never does."""

    def __init__(self, rng: random.Random):
        self.random = rng
        self.now = 1000.0
        self.wall = START - self.now
        self.boots = 0
        self._latest = START

    def system(self) -> float:
        """The wall clock of the system."""
        return self.now + self.wall

    def time(self) -> float:
        """What the broker's clock tells."""
        return broker_clock.clock.seconds()

    def latest(self) -> float:
        """The latest time that it has told."""
        self._latest = max(self._latest, self.time())
        return self._latest

    def jump(self, seconds: float, accepted: bool = False) -> None:
        """The system's clock jumps, and the broker is told that it is right, or is not."""
        self.latest()
        self.wall += seconds
        broker_clock.clock.step()
        if accepted:
            broker_clock.clock.accept()

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Make the broker use this clock."""
        broker_time = broker_clock.time
        before = dict(vars(broker_time))
        broker_time.monotonic = lambda: self.now
        broker_time.perf_counter_ns = lambda: int(self.now * 1e9)
        broker_time.elapsed_ns = lambda: int(self.now * 1e6) * 1000
        broker_time.boot = lambda: f"simulated {self.boots}"
        broker_time.time = self.system
        broker_time.time_ns = lambda: int(self.system() * 1e6) * 1000
        try:
            yield
        finally:
            vars(broker_time).update(before)
            broker_clock.clock.stop()


class _Selector(selectors.SelectSelector):
    """There is no input or output: to wait means to advance the clock."""

    def __init__(self, clock: SimulatedClock):
        super().__init__()
        self._clock = clock

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None:
            raise RuntimeError("deadlock: all tasks wait, and there is no timer")
        self._clock.now += max(timeout, 0)
        return []


class Loop(asyncio.SelectorEventLoop):
    """An event loop on simulated time; work for a thread runs immediately."""

    def __init__(self, clock: SimulatedClock):
        self._clock = clock
        super().__init__(_Selector(clock))
        self.set_exception_handler(lambda loop, context: None)

    def time(self) -> float:
        return self._clock.now

    def call_soon_threadsafe(self, callback: Any, *args: Any, context: Any = None) -> asyncio.Handle:  # type: ignore[override]
        return self.call_soon(callback, *args, context=context)

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:  # type: ignore[override]
        future: asyncio.Future[Any] = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as problem:
            future.set_exception(problem)
        return future


def writer_of(clock: SimulatedClock, slow: float, counts: Counter[str], written: Callable[[], None]) -> type[Writer]:
    """The broker's writer, run by the event loop instead of a thread: a commit takes up to `slow` seconds.

    `written` is called when all submitted operations are in the store.
    """

    class SimulatedWriter(Writer):
        def _begin(self) -> None:
            self._planned = False
            self._answers: list[Job] = []
            if self.full:
                self._plan(RETRY_SECONDS)

        def submit(
            self, op: Callable[[], Any], *, mandatory: bool = False, frees_space: bool = False
        ) -> asyncio.Future[Any]:
            future = super().submit(op, mandatory=mandatory, frees_space=frees_space)
            self._plan(clock.random.choice([0.0, 0.0, 0.001, slow]))
            return future

        def _plan(self, delay: float) -> None:
            if not self._planned:
                self._planned = True
                self._loop.call_later(delay, self._step)

        def _step(self) -> None:
            wait = self.commit_group()
            if not self._jobs and self.broken is None:
                written()
            pause = clock.random.uniform(0, slow)
            counts["slow sync"] += pause > 1
            self._loop.call_later(pause, self._synced, wait)

        def _synced(self, wait: bool) -> None:
            self._tell()
            self._planned = False
            if self._jobs or self.full:
                self._plan(RETRY_SECONDS if wait else 0.0)

        def _answer(self, jobs: list[Job]) -> None:
            self._answers += jobs

        def _tell(self) -> None:
            answers, self._answers = self._answers, []
            resolve_futures(answers)

        async def close(self) -> None:
            self._closing = True
            while self._jobs:
                self.commit_group()
            self._tell()

    return SimulatedWriter
