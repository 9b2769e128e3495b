"""What a schedule runs on: the random generator, the clock, the disk, and the current broker."""

from __future__ import annotations

import asyncio
import contextlib
import random
import zlib
from collections import Counter
from collections.abc import Iterator

from hitbox.broker.broker import Broker
from hitbox.broker.delivery import delivery, mailbox
from hitbox.broker.settings import Settings
from hitbox.broker.store import recent
from simulator.disk import Faults, SimulatedDisk
from simulator.runtime import SimulatedClock

ROOMY = 8 * 2**20


class Environment:
    """Shared by the actors and the checks of one schedule; all random choices come from `seed`."""

    def __init__(self, seed: int):
        self.random = rng = random.Random(seed)
        self.clock = SimulatedClock(rng)
        self.faults = Faults(rng)
        self.counts: Counter[str] = Counter()
        self.trace = 0
        self.slow = rng.choice([0.0005, 0.02, 0.02, 3.0])
        self.capacity = rng.choice([ROOMY, ROOMY, 300_000, 600_000])
        self.memory = rng.choice([5, 1_000])
        self.recent = rng.choice([20, 50_000])
        self.settle_seconds = rng.choice([0.2, 2.0, 20.0])
        self.settings = Settings(
            way=rng.choice(["serial", "alternate", "concurrent"]),
            snapshot_changes=rng.choice([5, 100_000, 100_000]),
            keep_seconds=rng.choice([1.0, 20.0, 7 * 86_400.0]),
            max_waiting=rng.choice([20, 20_000]),
            max_pending_seconds=3650 * 86_400.0,  # not what the schedules are about: the clock moves by months
        )

    disk: SimulatedDisk
    broker: Broker

    def up(self) -> bool:
        return self.broker.writer.broken is None

    async def pause(self, longest: float) -> None:
        await asyncio.sleep(self.random.choice([0.0, 0.001, self.random.uniform(0, longest)]))

    def chance(self, share: float) -> bool:
        return self.random.random() < share

    def note(self, *what: object) -> None:
        """Add what happened to `trace`, a checksum: two runs of one seed must give the same."""
        self.trace = zlib.crc32(repr((round(self.clock.now, 6), *what)).encode(), self.trace)

    @contextlib.contextmanager
    def small_memory(self) -> Iterator[None]:
        """Keep and fetch few deliveries at a time, so that the order on disk matters, and settle early or late."""
        before = mailbox.MEMORY_ROWS, delivery.FETCH_ROWS
        settling = recent.MOST_RECENT, recent.SETTLE_SECONDS
        mailbox.MEMORY_ROWS = delivery.FETCH_ROWS = self.memory
        recent.MOST_RECENT, recent.SETTLE_SECONDS = self.recent, self.settle_seconds
        try:
            yield
        finally:
            mailbox.MEMORY_ROWS, delivery.FETCH_ROWS = before
            recent.MOST_RECENT, recent.SETTLE_SECONDS = settling
