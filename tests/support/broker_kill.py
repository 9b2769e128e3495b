"""Kill the broker with SIGKILL at random moments under load, start it again, and hold what arrives against an oracle.

    python tests/support/broker_kill.py --cycles 1000

A cycle takes about as long as the broker needs to start, plus up to half a second of load.

Checked: every acknowledged event reaches every durable subscriber that wants it, naming exactly the subscriptions that
match (told by plain Python); nobody gets what he did not ask for; what comes twice is marked as redelivered, and after
a quiet moment nothing comes twice; first arrivals are in order for each subscriber and priority. Subscriptions change
between the kills.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import signal
import socket
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hitbox.client import Client, Delivery
from hitbox.protocol.errors import BrokerError

SCHEMA = "n:int,a:int,b:int"
SUBSCRIBERS = 6
DOMAIN = 100


@dataclass(frozen=True)
class Want:
    """One subscription, as text and as Python."""

    name: str
    low: int
    high: int
    most: int
    priority: int

    @property
    def where(self) -> str:
        return f"a BETWEEN {self.low} AND {self.high} AND b < {self.most}"

    def matches(self, event: dict[str, int]) -> bool:
        return self.low <= event["a"] <= self.high and event["b"] < self.most


def lasting_port() -> int:
    """A free port outside the range from which the system chooses: nobody else may get it while the broker is down."""
    while True:
        port = random.randrange(20_000, 30_000)
        with socket.socket() as trial, contextlib.suppress(OSError):
            trial.bind(("127.0.0.1", port))
            return port


@dataclass
class Torture:
    folder: Path
    seed: int
    port: int = 0
    wants: dict[str, dict[str, Want]] = field(default_factory=dict)
    expected: dict[int, dict[str, tuple[int, frozenset[str]]]] = field(default_factory=dict)
    seqs: dict[int, int] = field(default_factory=dict)
    got: dict[str, list[Delivery]] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    restarts: list[float] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.number = self.inside = 0
        self.publishing = asyncio.Event()
        self.ends = False
        self.port = lasting_port()
        self.client = Client(f"http://127.0.0.1:{self.port}", timeout=10, connect_seconds=60)

    async def start(self) -> None:
        began = time.monotonic()
        command = ["serve", "--data", str(self.folder), "--schema", SCHEMA, "--port", str(self.port)]
        self.counts["starts"] += 1
        self.process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "hitbox", *command, stdout=asyncio.subprocess.PIPE
        )
        assert self.process.stdout is not None
        line = await asyncio.wait_for(self.process.stdout.readline(), 60)
        assert b"hitbox broker on" in line, line
        self.restarts.append(time.monotonic() - began)

    async def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        await self.process.wait()

    # ---- load

    async def publish(self) -> None:
        """One of several publishers, until the end."""
        while not self.ends:
            await self.publishing.wait()
            events = []
            for _ in range(self.rng.choice([1, 1, 2, 10, 50])):
                self.number += 1
                events.append({"n": self.number, "a": self.rng.randrange(DOMAIN), "b": self.rng.randrange(DOMAIN)})
            wanted = {event["n"]: self.oracle(event) for event in events}
            try:
                self.counts["published"] += len(events)
                self.inside += 1
                first = await self.client.publish_many(events)
            except BrokerError:
                self.counts["not acknowledged"] += len(events)
                await asyncio.sleep(0.02)
            else:
                for at, event in enumerate(events):
                    self.seqs[event["n"]] = first + at
                self.expected |= wanted
            finally:
                self.inside -= 1

    def oracle(self, event: dict[str, int]) -> dict[str, tuple[int, frozenset[str]]]:
        found = {}
        for subscriber, wants in self.wants.items():
            mine = [want for want in wants.values() if want.matches(event)]
            if mine:
                found[subscriber] = (max(w.priority for w in mine), frozenset(w.name for w in mine))
        return found

    async def listen(self, name: str) -> None:
        async with self.client.subscriber(name, window=64) as subscriber:
            async for delivery in subscriber:
                self.got[name].append(delivery)

    async def change(self) -> None:
        """Add, replace and remove some subscriptions, while nobody publishes."""
        for _ in range(4):
            subscriber = f"s{self.rng.randrange(SUBSCRIBERS)}"
            name = f"w{self.rng.randrange(5)}"
            mine = self.wants[subscriber]
            path = f"/v1/subscribers/{subscriber}/subscriptions/{name}"
            if name in mine and self.rng.random() < 0.3:
                await self.client.request("DELETE", path)
                del mine[name]
            else:
                low = self.rng.randrange(DOMAIN)
                want = Want(name, low, low + self.rng.randrange(40), self.rng.randrange(DOMAIN), self.rng.randrange(10))
                await self.client.request("PUT", path, {"where": want.where, "priority": want.priority})
                mine[name] = want

    # ---- cycles

    async def run(self, cycles: int) -> None:
        await self.start()
        for n in range(SUBSCRIBERS):
            self.wants[f"s{n}"], self.got[f"s{n}"] = {}, []
            await self.client.request("PUT", f"/v1/subscribers/s{n}", {})
        for _ in range(5):
            await self.change()
        tasks = [asyncio.create_task(self.listen(name)) for name in self.wants]
        publishers = [asyncio.create_task(self.publish()) for _ in range(4)]
        for cycle in range(cycles):
            if cycle and cycle % 50 == 0:
                print(f"{cycle} cycles, {self.counts['published']} events published", file=sys.stderr, flush=True)
            self.publishing.set()
            await asyncio.sleep(self.rng.uniform(0.02, 0.5))
            if self.rng.random() < 0.3:
                snapshot = asyncio.create_task(self.snapshot())
                await asyncio.sleep(self.rng.uniform(0, 0.05))
                await self.kill()
                await snapshot
            elif cycle % 10 == 9:
                await self.quiet_kill()
            else:
                await self.kill()
            self.publishing.clear()
            await self.start()
            await self.settle_publishers()
            await self.change()
        self.ends = True
        self.publishing.set()
        await asyncio.gather(*publishers)
        await self.drained()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self.process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(self.process.wait(), 30) == 0
        await self.client.close()

    async def snapshot(self) -> None:
        try:
            await self.client.request("POST", "/v1/snapshot")
        except BrokerError:
            self.counts["snapshots cut short"] += 1

    async def settle_publishers(self) -> None:
        """Wait for the publishes that the kill met to end, one way or the other."""
        while self.inside:
            await asyncio.sleep(0.01)

    async def quiet_kill(self) -> None:
        """Kill when all is acknowledged: nothing may come twice."""
        self.publishing.clear()
        await self.drained()
        before = {name: len(got) for name, got in self.got.items()}
        await self.kill()
        await self.start()
        await self.connected()
        await asyncio.sleep(0.3)
        assert {name: len(got) for name, got in self.got.items()} == before, "acknowledged deliveries came again"
        self.counts["quiet kills"] += 1
        await self.kill()

    async def connected(self, seconds: float = 60) -> None:
        """Wait until every subscriber is there again: what comes again would come now."""
        until = time.monotonic() + seconds
        while (await self.client.request("GET", "/v1/stats"))["connections"] < len(self.wants):
            assert time.monotonic() < until, "the subscribers do not come back"
            await asyncio.sleep(0.02)

    async def drained(self, seconds: float = 60) -> None:
        """Wait until everything is delivered and acknowledged."""
        until = time.monotonic() + seconds
        while True:
            found = await self.client.request("GET", "/v1/stats")
            if found["pending"] == 0 and found["waiting"] == 0:
                return
            if time.monotonic() > until:
                rows = await self.client.request("GET", "/v1/subscribers")
                raise AssertionError(f"something stays pending: {json.dumps(rows)}")
            await asyncio.sleep(0.02)

    # ---- verdict

    def check(self) -> dict[str, Any]:
        """Count what is lost or wrong, with the first few of them in words."""
        counts = self.counts
        for key in ("lost", "wrong", "unmarked", "out of order", "redeliveries", "deliveries", "arrivals"):
            counts[key] += 0
        by_subscriber = {name: {} for name in self.wants}  # type: dict[str, dict[int, Delivery]]
        order: dict[tuple[str, int], int] = {}
        for name, got in self.got.items():
            for d in got:
                counts["arrivals"] += 1
                if d.seq in by_subscriber[name]:
                    counts["redeliveries"] += 1
                    self.hold(d.redelivered, "unmarked", f"{name} got {d.seq} twice, unmarked")
                    continue
                by_subscriber[name][d.seq] = d
                in_order = d.seq > order.get((name, d.level), 0)
                self.hold(in_order, "out of order", f"{name}: {d.seq} is out of order at level {d.level}")
                order[name, d.level] = d.seq
                n = d.event["n"]
                if n in self.expected:
                    wanted = self.expected[n].get(name)
                    self.hold(wanted == (d.level, frozenset(d.subscriptions)), "wrong", f"{name} got {d}: {wanted}")
        for n, wanted_by in self.expected.items():
            for name in wanted_by:
                counts["deliveries"] += 1
                here = self.seqs[n] in by_subscriber[name]
                self.hold(here, "lost", f"{name} never got event {n} (number {self.seqs[n]})")
        counts["acknowledged"] = len(self.expected)
        starts = sorted(self.restarts)
        times = {"start, median (s)": starts[len(starts) // 2], "start, slowest (s)": starts[-1]}
        return {**counts, **{key: round(value, 2) for key, value in times.items()}, "seed": self.seed}

    def hold(self, good: bool, what: str, text: str) -> None:
        if not good:
            self.counts[what] += 1
            if self.counts[what] <= 3:
                self.problems.append(text)


def torture(folder: Path, cycles: int, seed: int) -> dict[str, Any]:
    async def go() -> dict[str, Any]:
        trial = Torture(folder, seed)
        try:
            await trial.run(cycles)
        finally:
            if trial.process.returncode is None:
                await trial.kill()
        found = trial.check()
        if trial.problems:
            raise AssertionError("\n".join([table({"cycles": cycles, **found}), *trial.problems]))
        return found

    return asyncio.run(go())


ROWS = (
    "cycles", "starts", "quiet kills", "snapshots cut short", "published", "acknowledged", "not acknowledged",
    "deliveries", "arrivals", "redeliveries", "lost", "wrong", "unmarked", "out of order",
    "start, median (s)", "start, slowest (s)", "seed",
)  # fmt: skip


def table(found: dict[str, Any]) -> str:
    return "\n".join(f"{name:<22} {found.get(name, 0):>10}" for name in ROWS)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--cycles", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        found = {"cycles": options.cycles, **torture(Path(place), options.cycles, options.seed)}
    print(table(found))
    print(json.dumps(found))
