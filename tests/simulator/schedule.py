"""One schedule: a broker runs and crashes several times under load and faults, and is compared with the model."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from hitbox.broker.broker import Broker
from hitbox.encoding.schema import Schema
from hitbox.errors import HitboxError
from hitbox.protocol.errors import StoreDamaged, StoreFailed, StoreFull
from simulator.actors import Actors
from simulator.checks import Checks
from simulator.disk import KILLED, POWER_CUT, SimulatedDisk
from simulator.environment import ROOMY, Environment
from simulator.model import BrokenPromise, Model, ModelConnection
from simulator.runtime import Loop, writer_of

SCHEMA = Schema({"n": "int", "a": "int", "pad": "string"})
LIFE_SECONDS = 30.0
DRAIN_SECONDS = 600.0
TRIM_SECONDS = 6.0


class Schedule:
    """`faults`: injected faults. `counts`: what happened. `trace`: a number that is equal for equal seeds.

    Who uses the broker, and what is checked, is in the methods from `_set_up` on."""

    schema = SCHEMA

    def __init__(self, seed: int):
        self.environment = Environment(seed)
        self.random = rng = self.environment.random
        self.rates = {
            "crash": rng.choice([0.0, 0.002, 0.01, 0.03]),
            "eio": rng.choice([0.0, 0.0, 0.002]),
            "short": rng.choice([0.0, 0.0, 0.005]),
        }
        self._set_up()
        self.writer = writer_of(
            self.environment.clock, self.environment.slow, self.environment.faults.counts, self._written
        )
        self.problem: Exception | None = None

    @property
    def faults(self) -> Counter[str]:
        return self.environment.faults.counts

    @property
    def counts(self) -> Counter[str]:
        return self.environment.counts

    @property
    def trace(self) -> int:
        return self.environment.trace

    def run(self) -> None:
        """Run the schedule. Raises BrokenPromise if the broker does not keep a promise."""
        log = logging.getLogger("hitbox.broker")
        before = log.disabled
        log.disabled = True
        hook, sys.unraisablehook = (
            sys.unraisablehook,
            lambda problem: None,
        )  # raised by SQLite when it cleans up after a crash
        # snapshots of the index are real files, in memory if possible
        self.folder = Path(tempfile.mkdtemp(prefix="hitbox-torture-", dir="/dev/shm" if _in_memory() else None))
        self.environment.disk = SimulatedDisk(self.environment.faults, self.environment.capacity, self._crashed)
        try:
            with self.environment.clock.installed(), self.environment.small_memory():
                self._prepare()
                lives = self.random.randint(2, 5)
                for life in range(lives):
                    self._live(last=life == lives - 1)
        finally:
            log.disabled, sys.unraisablehook = before, hook
            self.environment.disk.close()
            shutil.rmtree(self.folder, ignore_errors=True)

    def _crashed(self) -> None:
        self.over.set()

    def _written(self) -> None:
        """Called by the event loop, so an exception is kept for later."""
        try:
            self._check_written()
        except Exception as problem:
            self.problem = self.problem or problem
            self.over.set()

    def _live(self, last: bool) -> None:
        """One life: from a start of the broker to its end."""
        loop = Loop(self.environment.clock)
        asyncio.set_event_loop(loop)
        self.over = asyncio.Event()
        broker = None
        try:
            self._arm(not last)
            if last:
                self.environment.disk.capacity = self.last_capacity
            broker = self._open()
            if broker is None and last:
                raise BrokenPromise("the store does not open on a healthy disk")
            if broker is not None:
                loop.run_until_complete(self._life(broker, last))
        finally:
            self._arm(False)
            for task in asyncio.all_tasks(loop):
                task.cancel()
            self.environment.disk.dead = True
            with contextlib.suppress(RuntimeError):
                loop.run_until_complete(asyncio.sleep(0))
            asyncio.set_event_loop(None)
            loop.close()
            dead = self.environment.disk
            self._reboot()
            if broker is not None:
                broker.store.close()
            dead.close()

    def _arm(self, on: bool) -> None:
        for name, rate in self.rates.items():
            setattr(self.environment.faults, name, rate if on else 0.0)

    def _reboot(self) -> None:
        disk = self.environment.disk
        power = self.environment.chance(0.5) if disk.ended is None else disk.ended == POWER_CUT
        self.environment.disk = disk.reboot(self._crashed, power)
        self.environment.clock.boots += power
        self._crashed_with_it()
        if self.environment.chance(0.3):
            shutil.rmtree(
                self.folder / "snapshots", ignore_errors=True
            )  # snapshots are derived data: the broker must work without them
        self.environment.note("reboot", power)

    def _open(self) -> Broker | None:
        """Open the store; None if a fault prevents it, then the next life tries again."""
        disk = self.environment.disk
        schema = None if disk.size(self.folder / "hitbox.db") > 0 and self.counts["lives"] else self.schema
        try:
            return Broker(self.folder, schema, self.environment.settings, disk, self.writer)
        except StoreDamaged as problem:
            if disk.dead:
                return None
            raise BrokenPromise(f"the store does not open: {problem}") from problem
        except StoreFull:
            disk.capacity = ROOMY
            self.counts["starts on a full disk"] += 1
            return None
        except StoreFailed:
            return None

    async def _life(self, broker: Broker, last: bool) -> None:
        environment = self.environment
        environment.broker = broker
        self._opened(broker)
        starting = asyncio.create_task(self._start(broker))
        await self._until_over(starting, 60 if last else 20)
        if not starting.done() or environment.disk.dead or broker.writer.broken is not None:
            if last:
                raise BrokenPromise(f"the broker does not start on a healthy disk: {broker.health()}")
            return
        starting.result()
        self._check_started()
        self.counts["lives"] += 1
        environment.note("life", last)
        if last:
            await self._drain()
            if self.problem is not None:
                raise self.problem
            return
        errors = self.faults["I/O error"]
        tasks = [asyncio.create_task(actor) for actor in self._actors()]
        await self._until_over(asyncio.gather(*tasks), self.random.uniform(1, LIFE_SECONDS))
        self._judge(tasks, errors)
        if not environment.disk.dead and environment.chance(0.3):
            self.counts["clean stops"] += 1
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._arm(False)
            await broker.stop()
        elif not environment.disk.dead:
            environment.disk.crash(self.random.choice([KILLED, POWER_CUT]))

    async def _start(self, broker: Broker) -> None:
        """Start, and wait until all deliveries of earlier accepted events are stored."""
        await broker.start()
        while not broker.caught_up():
            await asyncio.sleep(0.01)

    def _judge(self, tasks: list[asyncio.Task[None]], errors: int) -> None:
        """No task may fail, unless the disk did."""
        broker = self.environment.broker
        broken = broker.writer.broken
        if self.environment.disk.dead:
            return
        if broken is not None and self.faults["I/O error"] == errors:
            raise BrokenPromise(f"the store failed for no reason: {broken!r}") from broken
        if broken is None and broker.failed is not None:
            raise BrokenPromise(f"the broker failed: {broker.failed!r}") from broker.failed
        for task in tasks:
            problem = task.exception() if task.done() and not task.cancelled() else None
            if problem is not None and not (broken is not None and isinstance(problem, HitboxError)):
                raise problem

    async def _until_over(self, work: asyncio.Future[Any], seconds: float) -> None:
        ends = asyncio.create_task(self.over.wait())
        await asyncio.wait([work, ends], timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        ends.cancel()
        if self.problem is not None:
            raise self.problem

    # ---- who uses the broker, and what is checked

    last_capacity = ROOMY
    """Of the disk in the last life."""

    def _set_up(self) -> None:
        self.model = Model(SCHEMA, self.environment.clock.latest)
        self.checks = Checks(self.environment, self.model)
        self.actors = Actors(self.environment, self.model, self.checks)

    def _prepare(self) -> None:
        """Before the first life."""

    def _opened(self, broker: Broker) -> None:
        """Before the broker starts."""
        self.model.reopen(broker.store.meta.get("matched", 0))

    def _check_started(self) -> None:
        self.checks.started()

    def _actors(self) -> list[Any]:
        return self.actors.all()

    def _check_written(self) -> None:
        """Everything that was submitted is in the store."""
        self.checks.written()

    def _crashed_with_it(self) -> None:
        """The life has ended."""
        self.model.crashed(self.environment.clock.now)

    async def _drain(self) -> None:
        """Without faults: all subscribers receive what is left, and then nothing may be pending."""
        broker, clock = self.environment.broker, self.environment.clock
        tasks = []
        for name, subscriber in self.model.subscribers.items():
            client = ModelConnection(100)
            subscriber.paused = {True, False}
            await broker.pause(name, False)
            mailbox = await broker.attach(name, client, client.window, None)
            tasks.append(asyncio.create_task(self.actors.drain(subscriber, mailbox, client)))
        until = clock.now + DRAIN_SECONDS
        last = max((row[1] / 1e6 for row in broker.store.delayed.table.scan()), default=0.0)
        clock.jump(max(0.0, last + 1 - clock.system()), accepted=True)  # so that all delayed events are due
        while (
            broker.store.deliveries.unacknowledged()
            or not broker.caught_up()
            or broker.writer.full
            or broker.store.delayed.table.rows()
        ):
            await asyncio.sleep(0.5)
            for task in tasks:
                if task.done():
                    task.result()
            if self.problem is not None:
                raise self.problem
            if clock.now > until:
                rows = [*broker.store.recent.all(), *broker.store.deliveries.table.scan()][:5]
                raise BrokenPromise(f"deliveries stay pending: {rows}, {broker.health()}")
        await asyncio.sleep(10 * self.environment.slow)
        self.checks.drained()
        await asyncio.sleep(TRIM_SECONDS + 10 * self.environment.slow)
        self.checks.let_go()
        await broker.stop()
        for task in tasks:
            task.cancel()


def _in_memory() -> bool:
    return os.access("/dev/shm", os.W_OK)
