"""Rates of one broker: deliveries to one subscriber, and subscriptions added.

    python benchmarks/broker_rates.py --rounds 3

The broker runs in a process of its own; what counts is its CPU time, in things done per second and core.

    delivered     one subscriber, connected after everything was published, gets it and acknowledges it
    end to end    the same subscriber, connected while 4 publishers send batches of 1,000
    subscribed    4 connections add subscriptions by HTTP, 1,000 per request: ranges on three integers
    one by one    64 connections add one subscription per request; what waits is applied as one group

Every delivery must arrive once and in order, and the subscriptions must match what `hitbox.Index` says.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np

import hitbox
from broker_load import DOMAIN, SCHEMA, Server, box_width, drained, events
from exchange import exchange, publisher_of
from hitbox import Schema
from hitbox.broker.broker import Broker
from hitbox.client import Client
from stamped import Connection

BATCH, PUBLISHERS, ONE_BY_ONE = 1_000, 4, 64
EVERYTHING = "a >= 0"


async def new_broker(folder: Path) -> None:
    """An empty broker with the schema of the other benchmarks."""
    broker = Broker(folder, Schema(SCHEMA))
    await broker.start()
    await broker.stop()


class OneSubscriber:
    """The subscriber; `seqs`: what it got."""

    def __init__(self, url: str):
        self.url = url
        self.seqs: list[int] = []
        self._receivers: dict[Connection, str] = {}

    def connect(self) -> None:
        receiver = Connection(self.url)
        receiver.hello("one")
        self._receivers[receiver] = "one"

    def close(self) -> None:
        for receiver in self._receivers:
            receiver.socket.close()

    def run(self, sent: list[dict[str, int]], wanted: int) -> None:
        """Publish everything, and read until that many deliveries are there."""
        publishers = [publisher_of(self.url) for _ in range(PUBLISHERS)] if sent else []
        exchange(sent, BATCH, publishers, self._receivers, self._receive, wanted)

    def _receive(self, receiver: Connection, _: str) -> int:
        found = [delivery.seq for delivery in receiver.deliveries()]
        self.seqs += found
        return len(found)


async def deliveries(folder: Path, count: int, seed: int, *, backlog: bool) -> tuple[float, float]:
    """Deliveries per second of the broker's CPU time, and per second by the clock."""
    await new_broker(folder)
    sent = events(count, seed)
    async with Server(folder) as server, Client(server.url) as client:
        await client.put_subscriber("one", limit=count)
        await client.put_subscription("one", "all", EVERYTHING)
        load = OneSubscriber(server.url)
        if backlog:
            load.run(sent, 0)
        began, used = time.monotonic(), server.cpu_seconds()
        load.connect()
        load.run([] if backlog else sent, count)
        whole = time.monotonic() - began
        await drained(client)
        used = server.cpu_seconds() - used
        load.close()
    assert load.seqs == sorted(set(load.seqs)), "deliveries came twice or out of order"
    assert len(load.seqs) == count
    return count / used, count / whole


def predicates(count: int, seed: int) -> list[str]:
    width = box_width(count)
    lows = np.random.default_rng(seed).integers(0, DOMAIN - width, (count, len(SCHEMA)))
    return [" AND ".join(f"{a} BETWEEN {x} AND {x + width}" for a, x in zip(SCHEMA, row, strict=True)) for row in lows]


async def subscribes(folder: Path, count: int, seed: int, *, size: int, connections: int) -> tuple[float, float]:
    """Subscriptions added per second of the broker's CPU time, and per second by the clock."""
    await new_broker(folder)
    wanted = [{"name": f"n{n}", "where": text} for n, text in enumerate(predicates(count, seed))]
    groups = iter([wanted[at : at + size] for at in range(0, count, size)])
    async with Server(folder) as server, Client(server.url, timeout=120) as client:
        await client.put_subscriber("one")

        async def adding() -> None:
            async with Client(server.url, timeout=120) as own:
                for group in groups:
                    await own.request("POST", "/v1/subscribers/one/subscriptions", group)

        began, used = time.monotonic(), server.cpu_seconds()
        await asyncio.gather(*(adding() for _ in range(connections)))
        used, whole = server.cpu_seconds() - used, time.monotonic() - began
        index = hitbox.Index(SCHEMA)
        for one in wanted:
            index.subscribe(one["name"], one["where"])
        for event in events(20, seed + 1):
            found = {one["name"] for one in (await client.request("POST", "/v1/try", {"event": event}))["matches"]}
            assert found == set(index.match(event)), event
    return count / used, count / whole


async def main(options: argparse.Namespace) -> None:
    print(f"{os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f} at the start, seed {options.seed}")
    few = options.subscriptions // 10
    with tempfile.TemporaryDirectory(prefix="hitbox-rates-") as name:
        for what, run in {
            "delivered": lambda at, s: deliveries(at, options.events, s, backlog=True),
            "end to end": lambda at, s: deliveries(at, options.events, s, backlog=False),
            "subscribed": lambda at, s: subscribes(at, options.subscriptions, s, size=BATCH, connections=PUBLISHERS),
            "one by one": lambda at, s: subscribes(at, few, s, size=1, connections=ONE_BY_ONE),
        }.items():
            found = [await run(Path(name) / f"{what}-{n}", options.seed + n) for n in range(options.rounds)]
            core, clock = zip(*found, strict=True)
            figures = f"{statistics.median(core):10,.0f} per second and core ({min(core):,.0f} to {max(core):,.0f})"
            print(f"{what:12}{figures}, {statistics.median(clock):10,.0f} per second by the clock", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=200_000, help="of each measurement of deliveries")
    parser.add_argument("--subscriptions", type=int, default=100_000, help="added in groups; a tenth one by one")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    asyncio.run(main(parser.parse_args()))
