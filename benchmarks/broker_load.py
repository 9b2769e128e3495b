"""Load on a broker: throughput, latency by priority in each running way, idle connections, restart. Prints tables.

    python benchmarks/broker_load.py --subscriptions 1000000

One process is the broker, one publishes and receives, both on this machine, over the loopback address. 100 subscribers,
ten a level of priority, each with an equal share of the subscriptions: ranges on three integers, sized so that an event
matches about ten. Every delivery is checked against the index itself before anything is timed, and again counted after.

    throughput   batches published as fast as they are acknowledged; ends when the last delivery is acknowledged
    latency      single events at a fixed rate; to the first and to the last delivery of each level, by the broker's
                 trace (accepted to sent) and at the receivers (publish called to received by the kernel: stamped.py)
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import re
import shutil
import signal
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

import hitbox
from hitbox.broker.upkeep import import_export
from hitbox.client import Client, Delivery
from stamped import Stamped

SUBSCRIBERS = 100
DOMAIN = 1_000_000
SCHEMA = {"a": "int", "b": "int", "c": "int"}


def box_width(count: int) -> int:
    """Of ranges on three attributes, so that an event matches about ten of so many subscriptions."""
    return int(DOMAIN * (10 / count) ** (1 / 3))


def build(path: Path, count: int, seed: int) -> None:
    """A snapshot as Spark would make it: ids "s07/n123"; subscriber n has priority n % 10."""
    rng = np.random.default_rng(seed)
    width = box_width(count)
    table: dict[str, Any] = {"id": [f"s{n % SUBSCRIBERS:02d}/n{n}" for n in range(count)]}
    table["priority"] = np.arange(count) % SUBSCRIBERS % 10
    for name in SCHEMA:
        low = rng.integers(0, DOMAIN - width, count)
        table[f"{name}_low"], table[f"{name}_high"] = low, low + width
    index = hitbox.Index(SCHEMA)
    index.load(pa.table(table))
    index.save(path)


def events(count: int, seed: int) -> list[dict[str, int]]:
    rng = np.random.default_rng(seed)
    return [dict(zip(SCHEMA, map(int, row), strict=True)) for row in rng.integers(0, DOMAIN, (count, len(SCHEMA)))]


class Server:
    """A broker in a process of its own; `checkout`: another checkout of hitbox, with a `.venv`."""

    def __init__(self, folder: Path, way: str = "concurrent", checkout: Path | None = None):
        self.folder, self.way = folder, way
        self.python = sys.executable if checkout is None else str(checkout.absolute() / ".venv/bin/python")

    async def __aenter__(self) -> Server:
        began = time.monotonic()
        command = ["-m", "hitbox", "serve", "--data", str(self.folder), "--port", "0", "--way", self.way]
        self.process = await asyncio.create_subprocess_exec(self.python, *command, stdout=asyncio.subprocess.PIPE)
        assert self.process.stdout is not None
        line = (await self.process.stdout.readline()).decode()
        self.start_seconds = time.monotonic() - began
        found = re.search(r"http://\S+", line)
        assert found, line
        self.url = found[0]
        return self

    async def __aexit__(self, *_: object) -> None:
        if self.process.returncode is None:
            self.process.send_signal(signal.SIGTERM)
            await self.process.wait()

    def cpu_seconds(self) -> float:
        """What the broker has used of the processors: tells more than a clock where others work on the machine, too."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def megabytes(self) -> float:
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


class Receivers:
    """All subscribers, connected; counts what arrives, and when."""

    def __init__(self, client: Client):
        self.client = client
        self.got: dict[int, list[tuple[str, Delivery, float]]] = defaultdict(list)
        self.count = 0
        self.last = 0.0

    async def __aenter__(self) -> Receivers:
        self.subscribers = [self.client.subscriber(f"s{n:02d}", window=2000) for n in range(SUBSCRIBERS)]
        for subscriber in self.subscribers:
            await subscriber.__aenter__()
        self.tasks = [asyncio.create_task(self.listen(subscriber)) for subscriber in self.subscribers]
        return self

    async def listen(self, subscriber: Any) -> None:
        async for delivery in subscriber:
            self.last = time.monotonic()
            self.got[delivery.seq].append((subscriber.name, delivery, self.last))
            self.count += 1

    async def __aexit__(self, *_: object) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        for subscriber in self.subscribers:
            await subscriber.__aexit__()


async def drained(client: Client) -> None:
    """Wait until everything is acknowledged."""
    while True:
        found = await client.request("GET", "/v1/stats")
        if found["pending"] == 0 and found["waiting"] == 0:
            return
        await asyncio.sleep(0.05)


def confirm(receivers: Receivers | Stamped, index: hitbox.Index, sent: list[dict[str, int]], first: int) -> int:
    """Every delivery is what the index says; how many subscriptions matched."""
    matches = index.match_batch(sent)
    wanted = 0
    for at in range(len(sent)):
        ids = set(matches.ids[matches.offsets[at] : matches.offsets[at + 1]].to_pylist())
        got = {f"{name}/{one}" for name, d, _ in receivers.got[first + at] for one in d.subscriptions}
        assert got == ids, f"event {first + at}: {got ^ ids}"
        wanted += len(ids)
    return wanted


async def throughput(folder: Path, index: hitbox.Index, count: int, batch: int, seed: int) -> dict[str, Any]:
    async with Server(folder) as server, Client(server.url, timeout=120) as client, Receivers(client) as receivers:
        sent = events(count + 200, seed)
        await client.publish_many(sent[:200])  # warm up
        await drained(client)
        before, began, used = receivers.count, time.monotonic(), server.cpu_seconds()
        turn = iter(range(200, len(sent), batch))
        firsts: dict[int, int] = {}

        async def publisher() -> None:
            for at in turn:
                firsts[at] = await client.publish_many(sent[at : at + batch])

        await asyncio.gather(*(publisher() for _ in range(4)))
        published = time.monotonic() - began
        await drained(client)
        used = server.cpu_seconds() - used
        matches = sum(confirm(receivers, index, sent[at : at + batch], first) for at, first in firsts.items())
        whole = receivers.last - began
        return {
            "batch": batch,
            "events": count,
            "matches per event": round(matches / count, 1),
            "published events/s": round(count / published),
            "delivered events/s": round(count / whole),
            "deliveries/s": round((receivers.count - before) / whole),
            "broker CPU ms an event": round(used / count * 1000, 2),
        }


async def latency(
    folder: Path, index: hitbox.Index, way: str, count: int, rate: float, seed: int
) -> list[dict[str, Any]]:
    async with Server(folder, way) as server, Client(server.url) as client:
        receivers = Stamped(server.url, [f"s{n:02d}" for n in range(SUBSCRIBERS)])
        try:
            sent = events(count + 50, seed)
            await client.publish_many(sent[:50])
            await drained(client)
            began: dict[int, float] = {}
            start = time.time()
            for n, event in enumerate(sent[50:]):
                await asyncio.sleep(max(start + n / rate - time.time(), 0))
                asked = time.time()
                began[await client.publish(event)] = asked
            await drained(client)
            trace = (await client.request("GET", "/v1/trace", first=min(began), limit=10_000))["rows"]
        finally:
            receivers.close()
        confirm(receivers, index, sent[50:], min(began))
        return summarise(way, trace, receivers, began)


def summarise(
    way: str, trace: list[dict[str, Any]], receivers: Stamped, began: dict[int, float]
) -> list[dict[str, Any]]:
    """Percentiles by level, to the first and to the last delivery of an event at that level, in milliseconds."""
    sent: dict[int, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    order: dict[int, list[int]] = defaultdict(list)
    for row in trace:
        assert row["live"]
        sent[row["level"]][row["seq"]].append((row["sent"] - row["accepted"]) / 1e6)
        order[row["seq"]].append(row["level"])
    assert all(levels == sorted(levels, reverse=True) for levels in order.values()), "a level was sent out of order"
    received: dict[int, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for seq, asked in began.items():
        for _, delivery, when in receivers.got[seq]:
            received[delivery.level][seq].append((when - asked) * 1e3)
    return [
        {"way": way, "level": level, "events": len(sent[level]), **spread("sent", sent[level])}
        | spread("received", received[level])
        for level in sorted(sent, reverse=True)
    ]


def spread(what: str, by_event: dict[int, list[float]]) -> dict[str, float]:
    found = {}
    for end, pick in (("first", min), ("last", max)):
        values = [pick(one) for one in by_event.values()]
        for share in (50, 99):
            found[f"{what} {end} p{share}"] = round(float(np.percentile(values, share)), 2)
    return found


async def idle(folder: Path, connections: int) -> dict[str, Any]:
    async with Server(folder) as server, Client(server.url) as client:
        await asyncio.sleep(1)
        before = server.megabytes()
        opened = [client.subscriber(ephemeral=True, policy="drop_oldest", limit=100) for _ in range(connections)]
        for at in range(0, connections, 50):
            await asyncio.gather(*(one.__aenter__() for one in opened[at : at + 50]))
        await asyncio.sleep(1)
        after = server.megabytes()
        await asyncio.gather(*(one.__aexit__() for one in opened))
        return {
            "idle connections": connections,
            "broker MB before": round(before),
            "broker MB with them": round(after),
            "KB a connection": round((after - before) * 1024 / connections, 1),
        }


async def restart(folder: Path) -> dict[str, Any]:
    async with Server(folder) as server, Client(server.url) as client:
        stats = await client.request("GET", "/v1/stats")
        return {
            "subscriptions": stats["subscriptions"],
            "restored from": stats["restored"],
            "index seconds": round(stats["restore_seconds"], 2),
            "start to serving, seconds": round(server.start_seconds, 2),
            "MB": round(server.megabytes()),
        }


def show(title: str, rows: list[dict[str, Any]]) -> None:
    print(f"\n### {title}\n")
    print("| " + " | ".join(rows[0]) + " |")
    print("|" + " ---: |" * len(rows[0]))
    for row in rows:
        print("| " + " | ".join(str(value) for value in row.values()) + " |", flush=True)


async def main(options: argparse.Namespace) -> None:
    place = Path(tempfile.mkdtemp(prefix="hitbox-load-"))
    try:
        machine = f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
        print(f"{machine}, load average {os.getloadavg()[0]:.1f} before the run")
        began = time.monotonic()
        build(place / "snapshot", options.subscriptions, options.seed)
        built = time.monotonic()
        import_export.load(place / "data", place / "snapshot")
        moved = time.monotonic() - built
        index = hitbox.Index.open(place / "snapshot")
        rows = [{"subscriptions": len(index), "build s": round(built - began, 1), "import s": round(moved, 1)}]
        show("Building and importing the snapshot", rows)
        show("Restart", [await restart(place / "data")])
        runs = [
            await throughput(place / "data", index, options.events, batch, options.seed + 1) for batch in (1, 100, 1000)
        ]
        show("Throughput, 100 connections", runs)
        ways = ("serial", "alternate", "concurrent")
        table = [
            row
            for way in ways
            for row in await latency(place / "data", index, way, options.singles, options.rate, options.seed)
        ]
        show(f"Latency in ms, {options.rate:g} events/s", table)
        show("Idle connections", [await idle(place / "data", options.idle)])
        print(json.dumps({"seed": options.seed, "matcher": index.matcher}))
    finally:
        shutil.rmtree(place, ignore_errors=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--subscriptions", type=int, default=1_000_000)
    parser.add_argument("--events", type=int, default=5_000, help="of a throughput run")
    parser.add_argument("--singles", type=int, default=400, help="events of a latency run")
    parser.add_argument("--rate", type=float, default=50.0)
    parser.add_argument("--idle", type=int, default=1_000)
    parser.add_argument("--seed", type=int, default=1)
    asyncio.run(main(parser.parse_args()))
